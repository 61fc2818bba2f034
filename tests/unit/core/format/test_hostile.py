"""A hostile sender, run as a process of its own so that a crash is seen as one.

    python -m tests.unit.core.format.test_hostile SEED CASES

Sound Messages, schemas and Batch tails are damaged with intent, as someone would who can compute
the right checksum afterwards. Each must be refused with a `MemqError`, or be sound: then all of it
is read in every way a client would. Prints how many were refused and how many were sound.
"""

import contextlib
import random
import resource
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from memq.core.format.index import (
    BatchMetadata,
    IndexEntry,
    decode_tail,
    encode_footer,
    encode_index,
)
from memq.core.format.message import (
    decode_message,
    encode_message,
    encode_records,
    open_message,
    timestamp_range_us,
)
from memq.core.format.schema import DEFAULT_SCHEMA, deserialize_schema, serialize_schema
from memq.errors import MemqError

MAX_DECODED_BYTES = 1 << 20
MEMORY_BYTES = 3 << 30  # an allocation of what a Message merely claims would exceed it

NESTED = pa.schema(
    [
        pa.field("flag", pa.bool_()),
        pa.field("nothing", pa.null()),
        pa.field("text", pa.utf8()),
        pa.field("large", pa.large_list(pa.null())),
        pa.field("fixed", pa.list_(pa.binary(3), 2)),
        pa.field("tree", pa.struct([("a", pa.list_(pa.large_utf8())), ("b", pa.decimal128(9, 2))])),
        pa.field("pairs", pa.map_(pa.utf8(), pa.list_(pa.struct([("x", pa.time32("s"))])))),
        pa.field("timestamp", pa.timestamp("ns"), nullable=False),
    ]
)

EXTREMES = [0, 1, 7, 8, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1]


def sound_messages() -> list[tuple[bytes, pa.Schema]]:
    """Messages of two schemas, plain and compressed."""
    count = 20
    records = encode_records(
        [None if i % 3 else b"key" for i in range(count)],
        [b"v" * (i * 7 % 50) for i in range(count)],
        [None if i % 4 else {"a": b"x" * i, "b": None} for i in range(count)],
        [1_700_000_000_000_000 + i for i in range(count)],
    )
    rows = [
        {
            "flag": i % 2 == 0,
            "text": "é" * i,
            "large": [None] * (i % 3),
            "fixed": [b"abc", None] if i % 2 else None,
            "tree": {"a": ["x", "yy"][: i % 3], "b": None},
            "pairs": [("k", [{"x": i}])],
            "timestamp": i,
        }
        for i in range(count)
    ]
    nested = pa.RecordBatch.from_pylist(rows, schema=NESTED)
    return [
        (bytes(encode_message(batch, compression)), batch.schema)
        for batch in (records, nested)
        for compression in (None, "zstd", "lz4")
    ]


def damaged(rng: random.Random, sound: bytes) -> bytes:
    """The bytes with a few of them changed, mostly in the envelope, and sometimes cut short."""
    data = bytearray(sound)
    envelope = 8 + struct.unpack_from("<i", data, 4)[0]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        damage(rng, data, rng.choice((envelope, envelope, len(data))))
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


def damage(rng: random.Random, data: bytearray, region: int) -> None:
    """Change something in the first `region` bytes."""
    match rng.randrange(5):
        case 0:
            data[rng.randrange(region)] ^= 1 << rng.randrange(8)
        case 1:
            data[rng.randrange(region)] = rng.randrange(256)
        case 2:
            width, code = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
            value = rng.choice((*EXTREMES, rng.randrange(len(data))))
            position = rng.randrange(0, region - width, width)
            struct.pack_into(f"<{code}", data, position, value % (1 << 8 * width))
        case 3:
            position = rng.randrange(0, len(data) - 4, 4)  # offsets of a binary column, perhaps
            nudge = rng.choice((-(2**31), -1000, -1, 1, 1000, 2**31 - 1))
            number = struct.unpack_from("<I", data, position)[0]
            struct.pack_into("<I", data, position, (number + nudge) % 2**32)
        case 4:
            source, target = rng.randrange(region - 16), rng.randrange(region - 16)
            data[target : target + 16] = data[source : source + 16]


def read_fully(batch: pa.RecordBatch) -> None:
    """Touch every value, and copy, slice, gather and write the rows."""
    batch.to_pylist()
    timestamp_range_us(batch)
    batch.slice(batch.num_rows // 2).serialize()
    table = pa.Table.from_batches([batch, batch]).combine_chunks()
    table.take([0, table.num_rows - 1]).to_pylist()
    table.to_string()


def attack_message(rng: random.Random, sound: bytes, schema: pa.Schema) -> None:
    data = damaged(rng, sound)
    records = open_message(data, schema, max_decoded_bytes=MAX_DECODED_BYTES).num_rows
    batch = decode_message(data, schema)
    assert batch.num_rows == records > 0
    # Some values Arrow can hold and Python cannot, such as a time in the year 290000.
    with contextlib.suppress(ValueError, OverflowError, pa.ArrowNotImplementedError):
        read_fully(batch)


def attack_schema(rng: random.Random, sound: bytes) -> None:
    schema = deserialize_schema(damaged(rng, sound))
    schema.empty_table().to_string()


def attack_tail(rng: random.Random, sound: bytes) -> None:
    index = damaged(rng, sound)
    tail = index + encode_footer(index)
    decode_tail(tail, len(tail))


def main(seed: int, cases: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    rng = random.Random(seed)
    messages = sound_messages()
    schemas = [serialize_schema(DEFAULT_SCHEMA), serialize_schema(NESTED)]
    entry = IndexEntry("producer", 1, 2, 424, 800, 20, 5, 6, 7)
    index = encode_index([entry] * 3, BatchMetadata("batch", "topic", 0, 1))
    outcomes: Counter[str] = Counter()
    for _ in range(cases):
        try:
            match rng.randrange(10):
                case 0:
                    attack_schema(rng, rng.choice(schemas))
                case 1:
                    attack_tail(rng, index)
                case _:
                    attack_message(rng, *rng.choice(messages))
            outcomes["sound"] += 1
        except MemqError as exc:
            outcomes[exc.code] += 1
    sys.stdout.write(" ".join(f"{name}={count}" for name, count in sorted(outcomes.items())))


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_hostile_sender_crashes_nothing(seed) -> None:
    """Thousands of damaged Messages, schemas and indexes, all with the right checksum."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.core.format.test_hostile", seed, "8000"],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = dict(part.split("=") for part in done.stdout.split())
    assert sum(map(int, outcomes.values())) == 8000
    assert {"corrupt_data", "message_too_large", "schema_mismatch", "sound"} == outcomes.keys()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
