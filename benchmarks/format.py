"""How fast Messages and Batches are made, checked and read: `python -m benchmarks.format`.

Each figure is the best of some repetitions, so that what else the machine does shows least.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder
from memq.core.format.message import decode_message, encode_message, encode_records, open_message
from memq.core.format.reader import BatchReader
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.format.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = 10_000  # of 100 bytes: a Message of about 1 MiB
VALUE_BYTES = 100
MESSAGES = 16  # a Batch of about 20 MiB
SECONDS_PER_FIGURE = 0.5
MAX_DECODED_BYTES = 64 << 20

Figures = list[tuple[str, str, str]]


def best_s(work: Callable[[], object]) -> float:
    """Shortest time that `work` took, over about half a second."""
    best, until = float("inf"), time.perf_counter() + SECONDS_PER_FIGURE
    while time.perf_counter() < until:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def sealed_bytes(body, count: int, records: int) -> bytes:
    """A Batch object with the same Message over and over."""
    builder = BatchBuilder(
        serialize_schema(DEFAULT_SCHEMA), batch_id="b", topic="t", write_partition=0
    )
    for sequence in range(count):
        builder.add(
            body,
            producer_id="producer",
            epoch=0,
            sequence=sequence,
            records=records,
            min_timestamp_us=0,
            max_timestamp_us=2**62,
            crc32c=crc32c(body),
        )
    return b"".join(map(bytes, builder.seal().buffers))


def run() -> Figures:
    """Name, figure and note of each measurement."""
    rng = random.Random(1)
    values = [rng.randbytes(VALUE_BYTES) for _ in range(RECORDS)]
    times = list(range(RECORDS))
    batch = encode_records(None, values, None, times)
    body = encode_message(batch)
    data = sealed_bytes(body, MESSAGES, RECORDS)
    many = sealed_bytes(encode_message(encode_records(None, [b"x"], None, [0])), 10_000, 1)
    million = RECORDS / 1e6
    gigabytes = len(data) / 1e9

    def encode() -> None:
        encode_message(encode_records(None, values, None, times))

    def check() -> None:
        open_message(body, DEFAULT_SCHEMA, max_decoded_bytes=MAX_DECODED_BYTES)

    note = f"{RECORDS:,} records of {VALUE_BYTES} B, no keys or headers"
    figures = [
        ("encode_records + encode_message", f"{million / best_s(encode):.1f} M records/s", note)
    ]
    for compression in ("lz4", "zstd"):
        seconds = best_s(lambda compression=compression: encode_message(batch, compression))
        figures.append(
            (
                f"encode_message {compression}",
                f"{million / seconds:.1f} M records/s",
                "random bytes",
            )
        )
    figures += [
        ("open_message", f"{best_s(check) * 1e6:.1f} us", f"a Message of {body.size:,} B"),
        ("open_message, smallest", f"{smallest_us():.1f} us", "a Message of one record"),
        (
            "decode_message",
            f"{best_s(lambda: decode_message(body, DEFAULT_SCHEMA)) * 1e6:.1f} us",
            "zero copy, unchecked",
        ),
        (
            "BatchReader.read_all",
            f"{gigabytes / best_s(lambda: BatchReader(data).read_all()):.1f} GB/s",
            f"{MESSAGES} Messages, {len(data):,} B, CRC32C and validation",
        ),
        (
            "verify",
            f"{gigabytes / best_s(lambda: verify(data)):.1f} GB/s",
            "the same object, every byte",
        ),
        (
            "BatchReader, index only",
            f"{best_s(lambda: BatchReader(many)) * 1e3:.1f} ms",
            "10,000 Messages",
        ),
    ]
    return figures


def smallest_us() -> float:
    """Microseconds that the check of a Message of one record takes: its fixed cost."""
    body = encode_message(encode_records(None, [b"x"], None, [0]))
    return 1e6 * best_s(
        lambda: open_message(body, DEFAULT_SCHEMA, max_decoded_bytes=MAX_DECODED_BYTES)
    )


if __name__ == "__main__":
    for name, figure, remark in run():
        print(f"{name:32} {figure:>20}  {remark}")
