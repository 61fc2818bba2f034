"""From URIs and options, as people write them, to storages."""

from __future__ import annotations

import os
import pickle

import pytest

from memq.broker.config import BrokerConfig
from memq.core.named_values import NO_VALUES, parse_storage_options
from memq.errors import ClosedError, ConfigError, StorageError
from memq.storage.open import local_folder, open_storage, open_uri
from tests.advice import follows


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


class Store:
    """An object store whose first answer is decided here."""

    requests = ()

    def __init__(self, *place, runtime):
        self.place, self.error = place, None

    def check(self):
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "starts"),
    [
        (None, True),
        (StorageError("503"), True),
        (ConfigError("no such bucket"), False),
        (ClosedError("the storage was closed"), False),
    ],
)
def test_a_store_is_told_of_before_it_is_asked(monkeypatch, caplog, error, starts):
    """Whoever stops the start can so close it; one that is away may come back, and no other."""
    monkeypatch.setattr("memq.storage.open._object_storage", lambda: Store)
    told = []

    def opened(storage):
        storage.error = error
        told.append(storage)

    uri, options = "s3://bucket/a/b", parse_storage_options({"region": "x"})
    if starts:
        assert open_storage(uri, options, opened=opened) is told[0]
    else:
        with pytest.raises(type(error)):
            open_storage(uri, options, opened=opened)
    assert told[0].place == ("s3://bucket", "a/b", {"region": "x"})
    assert ("is away" in caplog.text) is isinstance(error, StorageError)


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
