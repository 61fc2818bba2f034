"""The configuration of a broker as people may see it."""

from memq.broker.config import BrokerConfig
from memq.broker.effective import HIDDEN, shown_options


def test_secrets_are_hidden_whatever_their_names():
    """Tokens, credentials in addresses, and what may be secret among options of services."""
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
    shown = shown_options(config)
    assert shown["token"] == HIDDEN
    assert shown["storage_options"] == f"region=eu-west-1,secret_access_key={HIDDEN}"
    assert shown["queue"] == f"kafka://{HIDDEN}@kafka:9092"
    assert shown["listeners.outside.port"] == "7000"
    assert shown["oidc.corp.audience"] == "memq"
    secrets = ("t0p", "s3cr3t", "hunter")
    assert not [text for text in shown.values() for secret in secrets if secret in text]
