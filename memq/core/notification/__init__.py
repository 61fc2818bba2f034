"""Notifications and the queue that carries them."""
