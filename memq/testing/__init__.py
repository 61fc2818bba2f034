"""A broker, in this process or its own, and storage in memory: for tests of what uses MemQ."""

from memq.broker.config import BrokerConfig
from memq.broker.server import Broker
from memq.testing.broker import BrokerProcess
from memq.testing.storage import InMemoryStorage

__all__ = ["Broker", "BrokerConfig", "BrokerProcess", "InMemoryStorage"]
