"""What a broker tells operators of its configuration."""

from memq.broker.config import BrokerConfig
from memq.broker.operators import HIDDEN, _rows


def test_secrets_are_hidden_whatever_their_names():
    """Tokens, values of storage, queue and ZooKeeper, and credentials in addresses are not told."""
    config = BrokerConfig.create(
        {
            "token": ["alice t0p"],
            "storage": "s3://bucket/prefix",
            "storage_options": {"secret_access_key": "s3cr3t", "region": "eu-west-1"},
            "queue": "kafka://user:hunter2@kafka:9092",
            "queue_options": {"sasl.password": "hunter3"},
            "zookeeper": "zk-1:2181",
            "zookeeper_options": {"user": "memq", "password": "hunter4"},
            "listeners": {"outside": {"host": "127.0.0.1", "port": 7000}},
            "oidc": {"corp": {"issuer": "https://corp", "audience": "memq"}},
        }
    )
    rows = {name: text for name, text, _ in _rows(config)}
    assert rows["token"] == HIDDEN
    assert rows["storage_options"] == f"region={HIDDEN},secret_access_key={HIDDEN}"
    assert rows["queue"] == f"kafka://{HIDDEN}@kafka:9092"
    assert rows["listeners.outside.port"] == "7000"
    assert rows["oidc.corp.audience"] == "memq"
    assert not [
        text for text in rows.values() for secret in ("t0p", "s3cr3t", "hunter") if secret in text
    ]


def test_what_was_changed_is_told():
    """Only options that are not at their default, and these as people write them."""
    rows = {
        name: (text, changed)
        for name, text, changed in _rows(BrokerConfig.create({"drain_timeout": "5s"}))
    }
    assert rows["drain_timeout"] == ("5s", True)
    assert rows["token"] == ("", False)
    assert [name for name, (_, changed) in rows.items() if changed] == ["drain_timeout"]
