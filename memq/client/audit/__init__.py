"""The audit, seen from a client: its reports are written, read, and compared."""
