"""From URIs and options, as people write them, to storages."""

import os
import pickle

import pytest

from memq.broker.config import BrokerConfig
from memq.core.named_values import NO_VALUES, parse_storage_options
from memq.errors import ConfigError
from memq.storage.open import local_folder, open_storage, open_uri


@pytest.mark.parametrize("key", ["a/b.arrows", "with space/ü#?%20"])
def test_the_uri_of_a_key_opens_anywhere(tmp_path, key):
    """What `uri` gives leads back to the object with no configuration, and is its own URI."""
    storage = open_storage((tmp_path / "my objects").as_uri())
    storage.put(key, [b"abc"], timeout_s=30)
    found, found_key = open_uri(storage.uri(key))
    assert bytes(found.get(found_key)) == b"abc"
    assert found.uri(found_key) == storage.uri(key)


def test_a_writer_removes_what_is_left_of_crashed_puts(tmp_path):
    """A storage that is opened to be written to holds no unfinished write of long ago."""
    open_storage(tmp_path.as_uri()).put("a", [b"abc"], timeout_s=30)
    old, new = tmp_path / ".tmp" / "old", tmp_path / ".tmp" / "new"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    open_storage(tmp_path.as_uri())
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("ftp://host/path", "file://"),
        ("/no/scheme", "file://"),
        ("", "file://"),
        ("file:/one/slash", "file://"),
        ("file://other-host/path", "file:///absolute/path"),
        ("file://", "absolute path"),
        ("file:///a?b=c", "nothing else"),
        ("file:///a#b", "nothing else"),
    ],
)
def test_a_bad_uri_says_what_is_expected(uri, expected):
    """An unknown scheme names the known ones; a malformed URI names the right form."""
    for call in (open_storage, open_uri, local_folder):
        with pytest.raises(ConfigError, match=expected):
            call(uri)


def test_values_are_not_shown():
    """Options show their names, wherever they are part of something that is shown."""
    options = parse_storage_options({"secret_access_key": "hush", "region": "eu-west-1"})

    assert repr(options) == "<NamedValues region, secret_access_key>"
    assert "hush" not in f"{options} {BrokerConfig.create(storage_options=dict(options))!r}"
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - it is our own
    assert repr(NO_VALUES) == "<NamedValues none>"


def test_a_folder_has_none(tmp_path):
    """Who writes to a folder has no options: they would mean nothing."""
    with pytest.raises(ConfigError, match=r"are for object stores.*MEMQ_STORAGE_OPTIONS"):
        open_storage(tmp_path.as_uri(), parse_storage_options("region=x"))
    open_storage(tmp_path.as_uri())


@pytest.mark.parametrize(
    "uri",
    ["s3://", "s3:///a", "gs://b?x=1", "az://c#x", "s3://b/a//b", "s3://b/../c", "s3://b/%0a"],
)
def test_a_uri_that_names_no_place_is_refused(uri):
    """An object store is named by its bucket, and at most a prefix that keys can have."""
    for call in (open_storage, open_uri):
        with pytest.raises(ConfigError, match="storage URI"):
            call(uri)
