"""Notifiers: who is told when a task fails."""
