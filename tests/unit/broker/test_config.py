"""What a broker's configuration refuses, and what of it wins."""

import logging

import pytest

from memq.broker.config import BrokerConfig, Tokens, load_file
from memq.errors import ConfigError

KAFKA, STORE, ZOOKEEPER = "kafka://host:port", "s3://bucket/prefix", "zk-1:2181/memq"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_dir": ""}, "data_dir is empty"),
        ({"cluster_id": "a/b"}, "cluster_id"),
        ({"broker_id": ""}, "broker_id"),
        ({"token": "a", "token_file": "b"}, "token and token_file are both given"),
        ({"token": ["a", ""]}, "texts that are not empty"),
        ({"token": 5}, "token must be a text"),
        ({"port": 65_536}, "port"),
        ({"memory_bytes": "7MiB"}, "memory_bytes"),
        ({"log_level": "loud"}, "log_level"),
        ({"topics": ["t"]}, r"topics: write a table \[topics.NAME\]"),
        ({"topics": {"t": "x"}}, "topics.t: expected a table of options, got 'x'"),
        ({"topics": {"t": {"schema": "x"}}}, "topics.t: a schema is Arrow"),
        ({"topics": {"t": {"retention": "never"}}}, "topics.t: .*retention"),
        ({"topics": {"t/u": {}}}, "topics.t/u: "),
        ({"zookeeper": ":", "queue": KAFKA, "storage": STORE}, "no address of a ZooKeeper"),
    ],
)
def test_what_is_refused(options, said):
    """Each by its name, whatever else is right; alone none of it is looked over."""
    with pytest.raises(ConfigError, match=said):
        BrokerConfig.create(options)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"port = ", "is not TOML"), (b"\xff", "is not TOML"), (None, "cannot read configuration")],
)
def test_a_file_that_is_none(tmp_path, content, said):
    """It is named, with what is wrong."""
    path = tmp_path / "broker.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as raised:
        load_file(path)
    assert str(path) in str(raised.value)
    path.write_text('port = 1\n[topics.t]\nretention = "1d"')
    assert load_file(path) == {"port": 1, "topics": {"t": {"retention": "1d"}}}


def test_a_broker_of_a_cluster_shares_all_of_it():
    """A broker that shares ZooKeeper, but not the queue or the storage, is told what to set."""
    given = {"zookeeper": ZOOKEEPER}
    with pytest.raises(ConfigError, match="zookeeper without queue"):
        BrokerConfig.create(given | {"storage": STORE})
    with pytest.raises(ConfigError, match="zookeeper without storage"):
        BrokerConfig.create(given | {"queue": KAFKA})
    with pytest.raises(ConfigError, match="without zookeeper"):
        BrokerConfig.create({"role": "read"})
    assert BrokerConfig.create(given | {"queue": KAFKA, "storage": STORE, "role": "read"})


# -- tokens -------------------------------------------------------------------------------------


def tokens(**options):
    config = BrokerConfig.create(options)
    return Tokens(config.token, config.token_file)


def test_any_of_several_tokens_is_accepted():
    """A list accepts each of its tokens, and nothing else; a text is one token."""
    several = tokens(token=["new", "old,er"])
    assert several.accept("new")
    assert several.accept("old,er")
    assert not any(several.accept(each) for each in ("old", "", "\u00e9"))
    assert tokens(token="a,b").accept("a,b")
    assert not tokens(token="a,b").accept("a")


def test_file_is_read_again(tmp_path):
    """The file's tokens, one a line, replace those read before."""
    path = tmp_path / "tokens"
    path.write_text("old\n\n  new \n")
    some = tokens(token_file=str(path))
    assert [some.accept(each) for each in ("old", "new", "")] == [True, True, False]
    path.write_text("new")
    some.reload()
    assert [some.accept(each) for each in ("old", "new")] == [False, True]


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff", b"x\n" * (1 << 20)])
def test_file_that_cannot_be_used(tmp_path, content, caplog):
    """It is refused at the start, and later leaves the tokens as they were, and says so."""
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="token_file"):
        tokens(token_file=str(path))
    path.write_text("good")
    some = tokens(token_file=str(path))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.INFO):
        some.reload()
    assert some.accept("good")
    assert not some.accept("")
    assert "tokens not reloaded" in caplog.text
    assert "good" not in caplog.text
