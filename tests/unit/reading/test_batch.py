"""A Batch as LogMessages and as a table, in each order."""

from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.notification import PublishedBatch
from memq.errors import InvalidRequestError, SchemaMismatchError
from memq.reading.batch import LogMessage
from memq.reading.objects import decode
from tests.unit.reading.batches import Sent, notify, object_bytes, records, seal


def open_batch(*messages, order="none", compression=None):
    """A Batch of these Messages, as a consumer hands it out."""
    sealed = seal(*messages, compression=compression)
    notification = msgspec.structs.replace(notify(sealed), write_partition=4)
    return decode(object_bytes(sealed), PublishedBatch(3, 7, 1, notification), order).batch


def typed(**columns):
    """Rows of a typed topic."""
    return pa.record_batch(columns)


def test_typed_topic():
    """A typed topic gives its own columns as a table, and its rows as dicts."""
    times = pa.array([1_500, None], pa.timestamp("ms", "UTC"))
    rows = typed(user=["ann", None], clicks=[1, 2], timestamp=times)
    batch = open_batch(Sent("p", 0, rows))
    assert (batch.topic, batch.partition, batch.offset, len(batch)) == ("t", 3, 7, 2)
    assert batch.to_arrow().column_names == ["user", "clicks", "timestamp"]
    first, second = batch
    assert first.value == {
        "user": "ann",
        "clicks": 1,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
    }
    assert first.timestamp == first.value["timestamp"]
    assert (first.key, first.headers, first.sequence) == (None, None, 0)
    assert (second.value["user"], second.timestamp_us, second.position) == (None, 0, 1)


def test_values_that_python_cannot_hold():
    """A value with no Python object of its type is a clear error, and Arrow still has it."""
    batch = open_batch(Sent("p", 0, typed(at=pa.array([1 << 40], pa.timestamp("s")))))
    with pytest.raises(InvalidRequestError, match=r"use to_arrow\(\)"):
        list(batch)
    assert batch.to_arrow().num_rows == 1


rows_strategy = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=8),
        st.none() | st.binary(max_size=8),
        st.none()
        | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3),
        st.integers(-(1 << 62), 1 << 62),
    ),
    min_size=1,
    max_size=8,
)


@given(messages=st.lists(rows_strategy, min_size=1, max_size=4))
def test_iteration_agrees_with_arrow(messages):
    """LogMessages have exactly what was sent, with their place and name, as the table has it."""
    batch = open_batch(
        *(
            Sent(
                "p",
                number,
                records(
                    *[value for _, value, _, _ in rows],
                    keys=[key for key, _, _, _ in rows],
                    headers=[headers for _, _, headers, _ in rows],
                    times_us=[time for _, _, _, time in rows],
                ),
                epoch=2,
            )
            for number, rows in enumerate(messages)
        )
    )
    assert list(batch) == [
        LogMessage(key, value, headers, time_us, "t", 3, 7, 4, "p", 2, number, position)
        for number, rows in enumerate(messages)
        for position, (key, value, headers, time_us) in enumerate(rows)
    ]
    assert type(next(iter(batch))) is LogMessage
    assert batch.to_arrow()["value"].to_pylist() == [each.value for each in batch]


# -- the order of LogMessages -------------------------------------------------------------------


MIXED = [
    Sent("q", 1, records(b"q1", times_us=[5])),
    Sent("p", 0, records(b"p00", b"p01", times_us=[9, 1])),
    Sent("q", 0, records(b"q0", times_us=[7])),
    Sent("p", 0, records(b"P0", times_us=[0]), epoch=1),
]


def test_producer_order():
    """By producer, epoch and sequence, whatever the timestamps; in a Message as it was sent."""
    batch = open_batch(*MIXED, order="producer")
    assert [m.value for m in batch] == [b"p00", b"p01", b"P0", b"q0", b"q1"]
    assert list(batch) == sorted(open_batch(*MIXED), key=lambda m: m[-4:])
    assert batch.to_arrow()["value"].to_pylist() == [m.value for m in batch]


row = st.tuples(st.none() | st.sampled_from([b"", b"a", b"b", b"ba"]), st.integers(0, 3))


@given(messages=st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=4))
def test_key_order_is_a_stable_sort(messages):
    """Any Batch comes as a stable sort by key and time would have it, with its origins."""
    number = iter(range(1000))
    sent = [
        Sent(
            "p",
            sequence,
            records(
                *[b"%d" % next(number) for _ in rows],
                keys=[key for key, _ in rows],
                times_us=[time for _, time in rows],
            ),
        )
        for sequence, rows in enumerate(messages)
    ]
    plain, ordered = list(open_batch(*sent)), list(open_batch(*sent, order="key"))
    assert ordered == sorted(plain, key=lambda m: (m.key is None, m.key or b"", m.timestamp_us))


def test_key_order_needs_a_key():
    """Without a column `key` the error names the columns that there are."""
    with pytest.raises(SchemaMismatchError, match=r"needs a column 'key'; there are \['x'\]"):
        open_batch(Sent("p", 0, typed(x=[1])), order="key")
