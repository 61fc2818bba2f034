"""Notifications in memory-mapped files of one broker: `queue` has the theory."""
