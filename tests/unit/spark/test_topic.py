"""What a Batch must be, where driver and tasks read its index."""

from __future__ import annotations

import msgspec
import pytest

from memq.core.notification import PublishedBatch
from memq.errors import CorruptDataError
from memq.spark.topic import read_index
from tests.unit.reading.batches import Sent, notify, object_bytes, records, seal


def test_an_index_that_its_notification_does_not_fit_is_refused():
    """A task that was given positions by the notification would read other Messages, or fewer."""
    sealed = seal(Sent("p", 0, records(b"a")), Sent("p", 1, records(b"b")))
    data, said = object_bytes(sealed), notify(sealed)

    def index(messages):
        batch = PublishedBatch(0, 7, 0, msgspec.structs.replace(said, messages=messages))
        return read_index(lambda _, start, length: data[start : start + length], batch)

    assert len(index(2).entries) == 2
    for messages in (1, 3):
        with pytest.raises(CorruptDataError, match="offset 7"):
            index(messages)
