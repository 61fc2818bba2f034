"""What every layer takes from its machine: clocks, threads, files, retries, log lines."""
