"""No damage stays unnoticed."""

import pyarrow as pa
import pytest

from memq.core.format.batch import BatchBuilder
from memq.core.format.index import IndexEntry
from memq.core.format.message import encode_message
from memq.core.format.reader import BatchReader
from memq.core.format.schema import serialize_schema
from memq.core.format.verify import verify
from memq.errors import CorruptDataError
from tests.unit.core.format.builders import add, joined, records, reindexed, seal

KIB = 1 << 10


@pytest.fixture(scope="module")
def sixteen_kib() -> bytes:
    """A Batch object of 16 KiB with a few Messages of different sizes."""
    parts = [records(1), records(40), records(20)]
    rest = 16 * KIB - len(joined(seal([*parts, records(1, size=0)])))
    data = joined(seal([*parts, records(1, size=rest)]))
    assert abs(len(data) - 16 * KIB) < 64
    return data


def test_every_flipped_bit_is_detected(sixteen_kib) -> None:
    """All of about 131,000: by the reader of the Message it is in, else by opening the Batch."""
    data = bytearray(sixteen_kib)
    reader = BatchReader(data)  # it sees each flip, as it copies nothing
    owner = {
        position: number
        for number, entry in enumerate(reader.entries)
        for position in range(entry.offset, entry.offset + entry.length)
    }
    missed = []
    for position in range(len(data)):
        number = owner.get(position)
        for bit in range(8):
            data[position] ^= 1 << bit
            try:
                BatchReader(data) if number is None else reader.read(number)
                missed.append((position, bit))
            except CorruptDataError:
                pass
            data[position] ^= 1 << bit
    assert missed == []
    assert len(owner) > 13 * KIB
    assert verify(data).ok


def test_every_truncation_is_detected(sixteen_kib) -> None:
    """All of about 16,000, from the front and from the end."""
    view = memoryview(sixteen_kib)
    for length in range(len(sixteen_kib)):
        assert not verify(view[:length]).ok
    for start in range(1, len(sixteen_kib), 7):
        assert not verify(view[start:]).ok


def test_bytes_cut_out_or_put_in_are_detected(sixteen_kib) -> None:
    """Eight at a time, so that alignment does not give them away."""
    for position in range(0, len(sixteen_kib), 56):
        assert not verify(sixteen_kib[:position] + sixteen_kib[position + 8 :]).ok
        assert not verify(sixteen_kib[:position] + b"\0" * 8 + sixteen_kib[position:]).ok


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"records": 41}, "it has 40 records; the index says 41"),
        ({"min_timestamp_us": 1_700_000_000_000_001}, "its timestamps reach from"),
        ({"max_timestamp_us": 1_700_000_000_000_038}, "its timestamps reach from"),
        ({"min_timestamp_us": 0, "max_timestamp_us": 0}, "the index says 0 to 0"),
        ({"crc32c": 7}, "the index says 00000007"),
        ({"sequence": 0}, "epoch 2, sequence 0 is in the Batch 2 times"),
        ({"length": 8}, "Message 2 is said to have"),
    ],
)
def test_an_index_that_does_not_tell_the_truth_is_found_out(sixteen_kib, changes, finding) -> None:
    """All checksums are right, the claims are not."""
    findings = verify(reindexed(sixteen_kib, changed=1, **changes)).findings
    assert any(finding in found for found in findings), findings


TIMES = [pa.scalar(at, pa.timestamp("us")) for at in (5, 9, 100, 200)]
ROWS = pa.record_batch({"at": pa.array(TIMES[:2]), "timestamp": pa.array(TIMES[2:])})


@pytest.mark.parametrize(
    ("column", "claimed", "ok"),
    [
        ("at", (5, 9), True),
        ("at", (4, 2**62), True),
        ("at", (100, 200), False),
        ("timestamp", (100, 200), True),
        ("timestamp", (5, 9), False),
        ("none", (0, 0), True),
        ("none", (1, 2), False),
    ],
)
def test_the_times_of_a_batch_are_those_of_its_own_column(column, claimed, ok) -> None:
    """That which its topic has named: its rows lie within the range, or have no times."""
    names = {"batch_id": "b", "topic": "t", "write_partition": 0, "time_column": column}
    builder = BatchBuilder(serialize_schema(ROWS.schema), **names)
    add(builder, encode_message(ROWS), min_timestamp_us=claimed[0], max_timestamp_us=claimed[1])
    assert verify(joined(builder.seal())).ok is ok


def test_messages_that_overlap_are_not_read_one_by_one(sixteen_kib) -> None:
    """Each could be as long as the object: the index alone says what is wrong."""
    entry = IndexEntry("p", 0, 0, 424, len(sixteen_kib) - 424, 1, 0, 0, 0)
    (finding,) = verify(reindexed(sixteen_kib, [entry] * 100)).findings
    assert finding.startswith("Message 1 is said to have")


def test_a_message_of_another_epoch_is_another_one(sixteen_kib) -> None:
    """Its sequence may be in the Batch as well; three of one name are told of once."""
    assert verify(reindexed(sixteen_kib, changed=1, epoch=9, sequence=0)).ok
    assert verify(reindexed(sixteen_kib, changed=1, producer_id="other", sequence=0)).ok
    twice = reindexed(reindexed(sixteen_kib, changed=1, sequence=0), changed=2, sequence=0)
    (finding,) = verify(twice).findings
    assert "is in the Batch 3 times" in finding


def test_a_damaged_schema_message_does_not_hide_damaged_messages(sixteen_kib) -> None:
    """Their checksums are compared all the same."""
    data = bytearray(sixteen_kib)
    entry = BatchReader(sixteen_kib).entries[2]
    data[100] ^= 1
    data[entry.offset + 9] ^= 1
    schema, message = verify(data).findings
    assert schema.startswith("the schema message (bytes 0 to 424) has CRC32C")
    assert message.startswith(f"Message at byte {entry.offset}: it has CRC32C")


def test_what_is_no_batch_at_all_is_a_finding() -> None:
    """Nothing, noise, or another format."""
    for data in (b"", b"noise" * 100, b"PAR1" + b"\0" * 100 + b"PAR1"):
        (finding,) = verify(data).findings
        assert finding.startswith("Index or footer: ")
