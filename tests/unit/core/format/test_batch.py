from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.format.batch import BatchBuilder, producer_runs
from memq.core.format.index import MAX_PRODUCER_ID_BYTES, IndexEntry
from memq.core.format.message import encode_message
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.errors import ClosedError, InvalidRequestError
from tests.unit.core.format.builders import add as add_message
from tests.unit.core.format.builders import joined, records

SCHEMA_BYTES = serialize_schema(DEFAULT_SCHEMA)
BODY = encode_message(records(2))


def add(target, body=BODY, **changes) -> None:
    add_message(target, body, **changes)


def builder() -> BatchBuilder:
    return BatchBuilder(SCHEMA_BYTES, batch_id="b-1", topic="t", write_partition=0)


def entry(sequence: int, producer: str = "p", epoch: int = 0, crc: int = 1) -> IndexEntry:
    return IndexEntry(producer, epoch, sequence, 0, 8, 10, 0, 0, crc)


def test_a_batch_is_its_parts_in_order_and_nothing_is_copied() -> None:
    """Schema message, the bodies as they were given, marker, index, footer.

    Checksums are those that the sender made: to compute them anew would hide damage since.
    """
    gathering = builder()
    bodies = [encode_message(records(n)) for n in (1, 2, 3)]
    for number, body in enumerate(bodies):
        add(gathering, body, crc32c=number)
    sealed = gathering.seal()
    assert [entry.crc32c for entry in sealed.entries] == [0, 1, 2]
    schema, *messages, marker, index, footer = sealed.buffers
    assert schema is SCHEMA_BYTES
    assert all(kept is given for kept, given in zip(messages, bodies, strict=True))
    assert (marker, len(footer)) == (b"\xff\xff\xff\xff\0\0\0\0", 16)
    assert sealed.size_bytes == len(joined(sealed))
    assert joined(sealed)[sealed.index_offset :] == index + footer
    assert sealed.size_bytes - sealed.index_offset == len(index) + len(footer)


def test_a_sealed_batch_takes_nothing_more() -> None:
    """Neither another Message nor another seal."""
    gathering = builder()
    add(gathering)
    gathering.seal()
    with pytest.raises(ClosedError, match="b-1 is sealed"):
        add(gathering)
    with pytest.raises(ClosedError, match="b-1 is sealed"):
        gathering.seal()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"body": b"1234567"}, "no whole Message"),
        ({"body": b""}, "no whole Message"),
        ({"records": 0}, "no whole Message"),
        ({"producer_id": ""}, "producer id"),
        ({"producer_id": "é" * (MAX_PRODUCER_ID_BYTES // 2 + 1)}, "1 to 256 bytes"),
        ({"epoch": 2**63}, "out of range"),
        ({"sequence": -(2**63) - 1}, "out of range"),
        ({"max_timestamp_us": 2**63}, "out of range"),
        ({"crc32c": 2**32}, "out of range"),
    ],
)
def test_what_could_not_be_indexed_is_refused_at_once(changes, match) -> None:
    """The Messages that are in the Batch already are not harmed."""
    gathering = builder()
    add(gathering)
    with pytest.raises(InvalidRequestError, match=match):
        add(gathering, **changes)
    add(gathering, producer_id="é" * (MAX_PRODUCER_ID_BYTES // 2), epoch=2**63 - 1)
    assert gathering.seal().messages == 2


def test_a_batch_is_full_at_its_limit(monkeypatch) -> None:
    """The index of a Batch is bounded by the number of its Messages."""
    monkeypatch.setattr("memq.core.format.batch.MAX_MESSAGES", 2)
    gathering = builder()
    add(gathering)
    add(gathering)
    with pytest.raises(InvalidRequestError, match="has 2 Messages, the most"):
        add(gathering)


def test_the_timestamps_of_a_batch_are_those_of_the_messages_that_have_any() -> None:
    """A range of (0, 0) means unknown and does not reach into the rest."""
    gathering = builder()
    add(gathering, min_timestamp_us=0, max_timestamp_us=0)
    assert gathering.seal().timestamp_range_us == (0, 0)
    gathering = builder()
    for least, greatest in ((50, 60), (0, 0), (40, 45)):
        add(gathering, min_timestamp_us=least, max_timestamp_us=greatest)
    assert gathering.seal().timestamp_range_us == (40, 60)


@given(
    st.lists(
        st.builds(entry, st.integers(0, 12), st.sampled_from("pq"), st.integers(0, 1)), max_size=30
    )
)
def test_runs_account_for_every_message(entries) -> None:
    """Counts, records and checksums over all runs are those over all Messages."""
    runs = producer_runs(entries)
    spelled = [
        (run.producer_id, run.epoch, sequence)
        for run in runs
        for sequence in range(run.first, run.last + 1)
    ]
    assert sorted(spelled) == sorted((e.producer_id, e.epoch, e.sequence) for e in entries)
    assert sum(run.records for run in runs) == sum(e.records for e in entries)
    assert sum(run.crc_sum for run in runs) == sum(e.crc32c for e in entries)
    for before, after in pairwise(runs):
        same = (before.producer_id, before.epoch) == (after.producer_id, after.epoch)
        assert not (same and before.last + 1 == after.first)
