"""The `memq` command."""
