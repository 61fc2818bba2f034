"""The wire protocol as sans-I/O state machines."""
