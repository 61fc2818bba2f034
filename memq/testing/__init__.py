"""Fakes and fault injection for tests of MemQ and of programs that use it."""

from memq.testing.queue import InMemoryQueue
from memq.testing.storage import InMemoryStorage

__all__ = ["InMemoryQueue", "InMemoryStorage"]
