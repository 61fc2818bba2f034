"""Brokers, fakes and fault injection for tests of MemQ and of programs that use it."""

from memq.broker.config import BrokerConfig
from memq.broker.server import Broker
from memq.testing.broker import BrokerProcess
from memq.testing.faults import Fault
from memq.testing.faulty_queue import FaultyQueue
from memq.testing.faulty_storage import FaultyStorage
from memq.testing.kafka import InMemoryKafka
from memq.testing.queue import InMemoryQueue
from memq.testing.storage import InMemoryStorage
from memq.testing.zookeeper import InMemoryZooKeeper

__all__ = [
    "Broker",
    "BrokerConfig",
    "BrokerProcess",
    "Fault",
    "FaultyQueue",
    "FaultyStorage",
    "InMemoryKafka",
    "InMemoryQueue",
    "InMemoryStorage",
    "InMemoryZooKeeper",
]
