"""Fakes and fault injection for tests of MemQ and of programs that use it."""

from memq.testing.faults import Fault
from memq.testing.faulty_queue import FaultyQueue
from memq.testing.faulty_storage import FaultyStorage
from memq.testing.queue import InMemoryQueue
from memq.testing.storage import InMemoryStorage

__all__ = ["Fault", "FaultyQueue", "FaultyStorage", "InMemoryQueue", "InMemoryStorage"]
