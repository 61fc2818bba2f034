"""Options of what memq is built upon may be secret, and are not shown."""

import re
import tomllib

import pytest

from memq.broker.config import BrokerConfig
from memq.core.named_values import (
    parse_queue_options,
    parse_storage_options,
    parse_zookeeper_options,
    text_of,
)
from memq.errors import ConfigError


@pytest.mark.parametrize(
    "parse", [parse_queue_options, parse_storage_options, parse_zookeeper_options]
)
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("password=a,secret", "no NAME=VALUE after password=…,"),
        ("password=a,=secret", "no NAME=VALUE after password=…,"),
        ("secret", "no NAME=VALUE at its beginning"),
        (["password=secret"], "or a table, not list"),
        ({"password": b"secret"}, "password: expected a text, a number or a flag, not bytes"),
        ({"password": ["secret"]}, "password: expected a text, a number or a flag, not list"),
        ({"sasl": {"password": "secret"}}, 'put the whole name in quotes: "sasl.password" = …'),
        ({"sasl": {}}, 'put the whole name in quotes: "sasl.NAME" = …'),
    ],
)  # fmt: skip
def test_what_is_refused_is_not_shown(parse, given, problem):
    """The error says where it stands, and nothing of a value, as it may be of a password."""
    with pytest.raises(ConfigError, match=re.escape(problem)) as refused:
        parse(given)
    assert "secret" not in str(refused.value)


def test_a_name_with_dots_wants_quotes():
    """Where TOML takes the dots of a name for tables, the message says how to write it."""
    text = "sasl.password = 'secret'"
    with pytest.raises(ConfigError) as refused:
        parse_queue_options(tomllib.loads(text))
    quoted = re.search(r'"[\w.]+" =', str(refused.value))[0]
    again = text.replace("sasl.password =", quoted)
    assert dict(parse_queue_options(tomllib.loads(again))) == {"sasl.password": "secret"}


def test_a_value_with_a_comma_is_for_a_table():
    """A text ends values at commas, and a table does not."""
    with pytest.raises(ConfigError, match="where a value has a comma"):
        parse_queue_options("sasl.password=a,b")
    table = tomllib.loads('"sasl.password" = "a,b"')
    assert dict(parse_queue_options(table)) == {"sasl.password": "a,b"}


@pytest.mark.parametrize(
    ("given", "text"),
    [({}, ""), ({"b": "x=y=", "a": 1}, "a=1,b=x=y="), ({"a": ""}, "a=")],
)
def test_options_as_one_text(given, text):
    """The text of options is read as the same options again."""
    options = parse_storage_options(given)
    assert text_of(options) == text
    assert parse_storage_options(text) == options


@pytest.mark.parametrize("value", ["hu,sh", "hush ", " hush"])
def test_options_that_have_no_text(value):
    """What would be read as something else is refused, and not shown."""
    with pytest.raises(ConfigError, match="password has a comma, or a space") as refused:
        text_of(parse_storage_options({"password": value}))
    assert value not in str(refused.value)


def test_a_configuration_does_not_show_what_is_in_it():
    """A broker's configuration has credentials, and its representation has none of them."""
    config = BrokerConfig.create(
        token="secret-1",
        queue="kafka://k:9092",
        queue_options="sasl.password=secret-2",
        storage="s3://bucket",
        storage_options="secret_access_key=secret-3",
        zookeeper="zk:2181/memq",
        zookeeper_options="user=memq,password=secret-4",
    )
    assert repr(config) == "<BrokerConfig broker-1 [memq]>"
