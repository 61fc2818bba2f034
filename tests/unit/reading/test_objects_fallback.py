"""Reading an object from storage or else through a broker, where both fail."""

import asyncio

import pytest

from memq.core.named_values import NO_VALUES, parse_storage_options
from memq.errors import (
    ConfigError,
    CorruptDataError,
    InvalidRequestError,
    StorageError,
    UnavailableError,
)
from memq.reading.objects import BROKER_TIMEOUT_S, FallbackReader, read_storage
from memq.storage.keys import BatchKey, object_key

KEY = object_key(BatchKey("c", "t", "0" * 16, 0, 1_750_000_000_000, "0" * 28, 7))


class Topic:
    """A topic whose broker reads the same storage."""

    topic = "t"
    storage_options = NO_VALUES
    refuses = False

    async def options_for(self, uri):
        return self.storage_options

    async def read(self, request, *, timeout_s):
        assert timeout_s == BROKER_TIMEOUT_S
        if self.refuses:
            raise InvalidRequestError("no Batch of topic 't'")
        return None, read_storage(request.uri, request.start, request.length)


@pytest.fixture
def topic():
    """See `Topic`."""
    return Topic()


@pytest.fixture
def read(topic, tmp_path):
    """Reads a byte of the object `KEY` of the storage `root`."""

    async def run():
        reader = FallbackReader(topic, asyncio.get_running_loop())
        return await asyncio.to_thread(reader.get_range, f"file://{tmp_path}/root/{KEY}", 0, 1)

    return run


async def test_an_object_that_alone_cannot_be_read_is_named(read, tmp_path):
    """An object fails by itself when the storage answers for others."""
    path = tmp_path / "root" / KEY
    path.parent.mkdir(parents=True)
    path.symlink_to(path.name)  # a loop, which cannot be opened
    with pytest.raises(StorageError, match="1750000000000"):
        await read()


async def test_a_storage_that_is_away_says_nothing_of_an_object(read, tmp_path):
    """When no object can be read, none is to blame; when the storage is back, it is read."""
    root = tmp_path / "root"
    root.symlink_to(root.name)
    with pytest.raises(UnavailableError, match="the storage is away"):
        await read()
    root.unlink()
    (root / KEY).parent.mkdir(parents=True)
    (root / KEY).write_bytes(b"a")
    assert bytes(await read()) == b"a"


async def test_options_that_no_storage_knows_are_refused(topic):
    """The broker is not asked in place of a storage that was to be read with wrong options."""
    reader = FallbackReader(topic, asyncio.get_running_loop())
    topic.refuses = True
    with pytest.raises(CorruptDataError, match="through the broker"):
        await asyncio.to_thread(reader.get_range, f"unknown://bucket/{KEY}", 0, 1)
    topic.storage_options = parse_storage_options("regoin=x")
    with pytest.raises(ConfigError, match="'regoin'"):
        await asyncio.to_thread(reader.get_range, f"s3://bucket/{KEY}", 0, 1)
