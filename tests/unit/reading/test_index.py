"""A Batch must be what its notification says, wherever it is read."""

from __future__ import annotations

import msgspec
import pytest

from memq.errors import CorruptDataError
from memq.reading.objects import read_index
from tests.unit.reading.batches import Sent, notify, object_bytes, records, seal

SEALED = seal(Sent("p", 0, records(b"a")), Sent("p", 1, records(b"b")))


def index(**changes):
    """The index of the Batch, read as a notification says that was changed."""
    data = object_bytes(SEALED)
    notification = msgspec.structs.replace(notify(SEALED), **changes)
    return read_index(notification, lambda start, length: data[start : start + length])


def test_an_index_is_read_without_the_names_of_messages():
    """A planner leaves them out of the notifications that it keeps."""
    assert index() == index(producers=())
    assert len(index().entries) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_id": "other"},
        {"topic": "other"},
        {"write_partition": 1},
        {"messages": 1},
        {"records": 3},
        {"producers": notify(SEALED).producers * 2},
        {"index_offset": SEALED.index_offset + 1},
        {"size_bytes": SEALED.size_bytes - 1},
        {"size_bytes": SEALED.size_bytes + 1},
    ],
)
def test_an_index_that_its_notification_does_not_fit_is_refused(changes):
    """Who was given positions by the notification would read other Messages, or fewer."""
    with pytest.raises(CorruptDataError):
        index(**changes)
