from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from memq.core.format.reader import BatchReader
from memq.core.format.recover import recover
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from tests.unit.core.format.builders import joined, records, seal

MESSAGES = [records(3), records(20), records(1), records(9)]
DATA = joined(seal(MESSAGES))
ENTRIES = BatchReader(DATA).entries
INDEX_OFFSET = BatchReader(DATA).index.offset
SCHEMA_BYTES = serialize_schema(DEFAULT_SCHEMA)


def damaged(*positions: int) -> bytearray:
    data = bytearray(DATA)
    for position in positions:
        data[position] ^= 0x10
    return data


def saved(recovered) -> list[int]:
    """Positions of the Messages that were recovered, each checked to be what was sent."""
    numbers = {entry.offset: number for number, entry in enumerate(ENTRIES)}
    found = [numbers[message.position] for message in recovered.messages]
    for number, message in zip(found, recovered.messages, strict=True):
        assert message.batch.equals(MESSAGES[number])
    return found


def test_with_an_index_all_but_the_damaged_messages_are_recovered() -> None:
    """What is lost is named by producer and sequence."""
    recovered = recover(damaged(ENTRIES[1].offset + 4, ENTRIES[3].offset + 600))
    assert saved(recovered) == [0, 2]
    assert len(recovered.lost) == 2
    assert recovered.lost[0].startswith(
        "Lost: 20 records of producer 'producer-1', epoch 2, sequence 1: "
        f"Message at byte {ENTRIES[1].offset}: it has CRC32C"
    )


def test_a_truncated_batch_is_walked_from_the_front() -> None:
    """Whole Messages before the cut are recovered; nothing vouches for them, and it shows."""
    for number, entry in enumerate(ENTRIES):
        for cut in (entry.offset, entry.offset + 1, entry.offset + entry.length - 1):
            recovered = recover(DATA[:cut])
            assert saved(recovered) == list(range(number))
            assert all(message.entry is None for message in recovered.messages)
            index, rest = recovered.lost
            assert index.startswith("The index is lost: ")
            assert f"What followed byte {entry.offset} is lost ({cut - entry.offset} bytes" in rest


def test_without_an_index_an_unsound_message_is_stepped_over() -> None:
    """As long as its envelope still leads to the next one."""
    body = bytearray(DATA[:INDEX_OFFSET])
    entry = ENTRIES[1]
    body[entry.offset + entry.length - 700 : entry.offset + entry.length - 300] = b"\xff" * 400
    recovered = recover(body)
    assert saved(recovered) == [0, 2, 3]
    assert (
        f"Bytes {entry.offset} to {entry.offset + entry.length} are no sound" in recovered.lost[1]
    )


def test_a_damaged_schema_is_replaced_by_the_right_one_only() -> None:
    """With an index the given schema must be the one that the index was written for."""
    data = damaged(100)
    assert saved(recover(data, schema_bytes=SCHEMA_BYTES)) == [0, 1, 2, 3]
    other = serialize_schema(pa.schema([("a", pa.int8())]))
    for wrong in (None, other):
        recovered = recover(data, schema_bytes=wrong)
        assert recovered.messages == []
        assert recovered.lost[1] == "4 Messages are lost without the schema"


def test_without_index_and_schema_nothing_is_recovered_unless_the_schema_is_given() -> None:
    """The topic knows its schemas, so they can be had from there."""
    data = damaged(0)[:INDEX_OFFSET]
    recovered = recover(data)
    assert recovered.schema is None
    assert recovered.messages == []
    assert recovered.lost[1].startswith("All Messages are lost without the schema message")
    assert saved(recover(data, schema_bytes=SCHEMA_BYTES)) == [0, 1, 2, 3]


@given(st.lists(st.integers(0, len(DATA) - 1), max_size=4), st.integers(0, len(DATA)))
def test_recovery_never_invents_a_message(positions, cut) -> None:
    """With the index, what is recovered is what was sent; without it, rows are sound at least."""
    recovered = recover(damaged(*positions)[:cut])
    for message in recovered.messages:
        message.batch.validate(full=True)
    if recovered.index is not None:
        saved(recovered)
    if cut < len(DATA):
        assert recovered.lost
