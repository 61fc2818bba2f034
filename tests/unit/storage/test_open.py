"""From URIs to storages."""

from __future__ import annotations

import os

import pytest

from memq.core.named_values import parse_storage_options
from memq.core.storage.open import local_folder, open_storage, open_uri
from memq.errors import ClosedError, ConfigError, StorageError


@pytest.mark.parametrize("key", ["a/b.arrows", "with space/ü#?%20"])
def test_the_uri_of_a_key_opens_anywhere(tmp_path, key):
    """What `uri` gives leads back to the object with no configuration, and is its own URI."""
    storage = open_storage((tmp_path / "my objects").as_uri())
    storage.put(key, [b"abc"], timeout_s=30)
    found, found_key = open_uri(storage.uri(key))
    assert bytes(found.get(found_key)) == b"abc"
    assert found.uri(found_key) == storage.uri(key)


def test_localhost_is_this_machine(tmp_path):
    """The host `localhost` in a file URI is the same as none."""
    storage = open_storage(f"file://localhost{tmp_path}")
    assert storage.uri("a") == (tmp_path / "a").as_uri()
    assert local_folder(f"file://localhost{tmp_path}") == tmp_path


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
    monkeypatch.setattr("memq.core.storage.open._object_storage", lambda: Store)
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
