"""Options of an object store as people write them."""

from __future__ import annotations

import pickle

import pytest

from memq.broker.config import BrokerConfig
from memq.core.named_values import NO_VALUES, parse_storage_options
from memq.core.storage.open import open_storage, open_uri
from memq.errors import ConfigError
from tests.advice import follows


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", {}),
        ("region=eu-west-1", {"region": "eu-west-1"}),
        (" region = eu-west-1 , tag.team=a=b ", {"region": "eu-west-1", "tag.team": "a=b"}),
        ({"a": True, "b": 5, "c": "x"}, {"a": "true", "b": "5", "c": "x"}),
    ],
)  # fmt: skip
def test_options_are_read(given, expected):
    """They are pairs in one text, or a table as TOML has it."""
    assert dict(parse_storage_options(given)) == expected


@pytest.mark.parametrize(
    "given", ["region", "=x", "a=b,region", 5, ["a=b"], {"a": None}, {"a": {}}]
)
def test_what_is_none_is_refused(given):
    """Anything else is refused with what was expected."""
    with pytest.raises(ConfigError, match="storage_options"):
        parse_storage_options(given)


def test_values_are_not_shown():
    """Options show their names, wherever they are part of something that is shown."""
    options = parse_storage_options({"secret_access_key": "hush", "region": "eu-west-1"})

    assert repr(options) == "<NamedValues region, secret_access_key>"
    assert "hush" not in f"{options} {BrokerConfig.create(storage_options=dict(options))!r}"
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - it is our own
    assert repr(NO_VALUES) == "<NamedValues none>"


def test_they_are_an_option_of_the_broker():
    """A broker has them from its file, its environment or a flag."""
    assert BrokerConfig.create().storage_options == NO_VALUES
    config = BrokerConfig.create({"storage_options": {"region": "eu-west-1"}})
    assert (
        config.storage_options
        == BrokerConfig.create(storage_options="region=eu-west-1").storage_options
    )


@follows("is a folder; leave them out, also as …, which brokers and readers share")
def test_a_folder_has_none(tmp_path):
    """Who writes to a folder has no options: they would mean nothing."""
    with pytest.raises(ConfigError, match=r"are for object stores.*MEMQ_STORAGE_OPTIONS"):
        open_storage(tmp_path.as_uri(), parse_storage_options("region=x"))
    open_storage(tmp_path.as_uri())


def test_a_reader_with_options_reads_files(tmp_path):
    """A reader follows the URIs that it is given: its options count where one is of a store."""
    (tmp_path / "object").write_bytes(b"abc")
    storage, key = open_uri((tmp_path / "object").as_uri(), parse_storage_options("region=x"))

    assert bytes(storage.get(key)) == b"abc"


@pytest.mark.parametrize(
    "uri",
    ["s3://", "s3:///a", "gs://b?x=1", "az://c#x", "s3://b/a//b", "s3://b/../c", "s3://b/%0a"],
)
def test_a_uri_that_names_no_place_is_refused(uri):
    """An object store is named by its bucket, and at most a prefix that keys can have."""
    for call in (open_storage, open_uri):
        with pytest.raises(ConfigError, match="storage URI"):
            call(uri)
