"""What a broker of a cluster must be given."""

from __future__ import annotations

import pytest

from memq.broker.config import BrokerConfig
from memq.errors import ConfigError
from tests.advice import follows

KAFKA, STORE, ZOOKEEPER = "kafka://host:port", "s3://bucket/prefix", "zk-1:2181/memq"


@follows(
    "zookeeper without queue: the brokers of a cluster share one Kafka",
    "zookeeper without storage: the brokers of a cluster share one storage",
    "name the ZooKeeper of its cluster",
)
def test_a_broker_of_a_cluster_shares_all_of_it():
    """A broker that shares ZooKeeper, but not the queue or the storage, is told what to set."""
    given = {"zookeeper": ZOOKEEPER}
    with pytest.raises(ConfigError, match="zookeeper without queue"):
        BrokerConfig.create(given | {"storage": STORE})
    with pytest.raises(ConfigError, match="zookeeper without storage"):
        BrokerConfig.create(given | {"queue": KAFKA})
    with pytest.raises(ConfigError, match="peers with zookeeper"):
        peer = {"id": "b", "address": "b:6367"}
        BrokerConfig.create(given | {"queue": KAFKA, "storage": STORE, "peers": [peer]})
    with pytest.raises(ConfigError, match="without zookeeper"):
        BrokerConfig.create({"role": "read"})
    assert BrokerConfig.create(given | {"queue": KAFKA, "storage": STORE, "role": "read"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("sesion_timeout=6s", "unknown option 'sesion_timeout'"),
        ("session_timeout=100ms", "at least 500"),
        ("session_timeout=soon", "soon"),
        ("tls=maybe", "tls = 'maybe': expected a flag"),
        ("user=memq", "has a password"),
    ],
)
def test_options_of_zookeeper_are_checked(options, problem):
    """A wrong option of ZooKeeper is refused when the configuration is read, by its name."""
    given = {"zookeeper": ZOOKEEPER, "queue": KAFKA, "storage": STORE}
    with pytest.raises(ConfigError, match=problem):
        BrokerConfig.create(given | {"zookeeper_options": options})
