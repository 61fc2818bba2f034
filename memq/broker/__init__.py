"""The broker process: sockets, threads and time around the core."""
