"""What has expired is deleted, as far as the storage and the broker's life allow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from memq.broker.retention import delete_expired
from memq.errors import ClosedError, StorageError
from memq.testing import InMemoryStorage


class OneByOne(InMemoryStorage):
    """Deletes no two objects in one request, and some of them not at all."""

    refused: tuple[str, ...] = ()

    def delete(self, *keys):
        """Delete one object."""
        if len(keys) > 1 or keys[0] in self.refused:
            raise StorageError("503 SlowDown")
        super().delete(*keys)


@pytest.fixture
def context():
    """What of a broker's context deletions use; `stopping` tells threads to end."""

    def check_not_stopping():
        if found.stopping:
            raise ClosedError("the broker is stopping")

    with ThreadPoolExecutor(1) as reads:
        found = SimpleNamespace(
            forgotten_after_s=0,
            reads=reads,
            storage=OneByOne(),
            stopping=False,
            check_not_stopping=check_not_stopping,
        )
        for key in ("a", "b"):
            found.storage.put(key, [b"x"], timeout_s=1)
        yield found


async def test_what_cannot_be_deleted_together_is_deleted_one_by_one(context):
    """A storage that refuses the request for all of them still gets rid of each."""
    await delete_expired(["a", "b"], context)
    assert not list(context.storage.list(""))


@pytest.mark.parametrize(
    ("refused", "left"),
    [(("a",), ["a"]), (("a", "b"), ["a", "b"]), (("a", "b", "c"), ["a", "b", "c", "d"])],
)
async def test_an_object_that_is_not_deleted_stops_no_other(context, refused, left):
    """The others are deleted all the same, until the storage has failed `MAX_FAILURES` times."""
    keys = ["a", "b", "c", "d"]
    for key in keys:
        context.storage.put(key, [b"x"], timeout_s=1)
    context.storage.refused = refused
    await delete_expired(keys, context)
    assert [info.key for info in context.storage.list("")] == left


async def test_a_broker_that_stops_leaves_the_rest_as_orphans(context, caplog):
    """To stop amid deletions is no error, which would end the broker as if it had failed."""
    caplog.set_level("INFO")
    context.stopping = True
    await delete_expired(["a", "b"], context)
    assert len(list(context.storage.list(""))) == 2
    assert "left, as orphans: the broker is stopping" in caplog.text
