"""Batches and tables that the tests of the format share."""

import struct

import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder, SealedBatch
from memq.core.format.envelope import _vector
from memq.core.format.index import IndexEntry, encode_footer, encode_index
from memq.core.format.message import encode_records
from memq.core.format.reader import BatchReader
from tests.unit.reading.batches import Sent
from tests.unit.reading.batches import seal as seal_messages

START_US = 1_700_000_000_000_000


def records(count: int, size: int = 20, start_us: int = START_US) -> pa.RecordBatch:
    """LogMessages of the default schema with distinct values, some keys and some headers."""
    return encode_records(
        [None if i % 3 else b"key %d" % i for i in range(count)],
        [(b"value %d " % i).ljust(size, b".") for i in range(count)],
        [None if i % 4 else {"n": b"%d" % i} for i in range(count)],
        [start_us + i for i in range(count)],
    )


def add(builder: BatchBuilder, body, **changes) -> None:
    """Add a Message to a Batch; two records of one producer's next, but for the changes."""
    fields = {
        "producer_id": "p",
        "epoch": 0,
        "sequence": builder.messages,
        "records": 2,
        "min_timestamp_us": 5,
        "max_timestamp_us": 6,
        "crc32c": crc32c(body),
    }
    builder.add(body, **(fields | changes))


def seal(batches: list[pa.RecordBatch], compression: str | None = None) -> SealedBatch:
    """A Batch of one Message per RecordBatch, from one producer."""
    sent = [Sent("producer-1", number, rows, 2) for number, rows in enumerate(batches)]
    names = {"batch_id": "batch-1", "topic": "clicks", "write_partition": 3}
    return seal_messages(*sent, compression=compression, **names)


def joined(sealed: SealedBatch) -> bytes:
    """The bytes of the object."""
    return b"".join(map(bytes, sealed.buffers))


def reindexed(
    data: bytes, entries: list[IndexEntry] | None = None, changed: int = 0, **changes
) -> bytes:
    """The object with other entries in its index, of which one has changed; checksums are right."""
    index = BatchReader(data).index
    entries = [*(entries or index.entries)]
    entries[changed] = msgspec.structs.replace(entries[changed], **changes)
    raw = encode_index(entries, index.metadata)
    return data[: index.offset] + raw + encode_footer(raw)


def shared(data: bytes, *vectors: int) -> bytes:
    """An Arrow message, all references of each of some vectors made to lead to one place.

    Args:
        data: it begins with the message.
        vectors: positions of their fields in its metadata; 0 for one that is not there.
    """
    for at in vectors:
        count, start = _vector(memoryview(data)[8:], at)
        data = repointed(data, [start + 4 * number for number in range(count)])
    return data


def repointed(data: bytes, places: list[int]) -> bytes:
    """An Arrow message, some references of its metadata made to lead where the farthest does."""
    changed = bytearray(data)
    targets = [at + struct.unpack_from("<I", data, 8 + at)[0] for at in places]
    for at in places:
        struct.pack_into("<I", changed, 8 + at, max(targets) - at)
    return bytes(changed)


_LEAVES = st.sampled_from(
    [
        (pa.bool_(), st.booleans()),
        (pa.int8(), st.integers(-128, 127)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.utf8(), st.text(max_size=8)),
        (pa.large_utf8(), st.text(max_size=8)),
        (pa.binary(), st.binary(max_size=8)),
        (pa.binary(3), st.binary(min_size=3, max_size=3)),
        (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
        (pa.date32(), st.dates()),
        (pa.timestamp("ms", "UTC"), st.integers(-(2**40), 2**40)),
        (pa.duration("us"), st.integers(-(2**50), 2**50)),
        (pa.null(), st.none()),
    ]
)


def _nested(inner: st.SearchStrategy) -> st.SearchStrategy:
    """Types that hold `inner`, each with a strategy for its values; every value may be null."""

    def lists(pair):
        kind, values = pair
        optional = st.none() | values
        return st.sampled_from(
            [
                (pa.list_(kind), st.lists(optional, max_size=3)),
                (pa.large_list(kind), st.lists(optional, max_size=3)),
                (pa.list_(kind, 2), st.lists(optional, min_size=2, max_size=2)),
                (
                    pa.map_(pa.utf8(), kind),
                    st.lists(st.tuples(st.text(max_size=3), optional), max_size=3),
                ),
            ]
        )

    def structs(pairs):
        names = [f"f{i}" for i in range(len(pairs))]
        kind = pa.struct([(name, kind) for name, (kind, _) in zip(names, pairs, strict=True)])
        return kind, st.fixed_dictionaries(
            {name: st.none() | values for name, (_, values) in zip(names, pairs, strict=True)}
        )

    return inner.flatmap(lists) | st.lists(inner, min_size=1, max_size=3).map(structs)


@st.composite
def record_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of a random schema, nested ones among them, now and then a slice of more rows."""
    columns = draw(st.lists(st.recursive(_LEAVES, _nested, max_leaves=4), min_size=1, max_size=4))
    rows = draw(st.integers(1, 8))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for kind, values in columns
    ]
    batch = pa.record_batch(arrays, names=[f"c{i}" for i in range(len(columns))])
    return batch.slice(draw(st.integers(0, rows - 1)))
