"""Where a key belongs: the hash of Kafka's default partitioner, for one key and for columns.

A key goes to `(murmur2(key) & 0x7fffffff) % partitions`. So it is in the partition of the same
number as in a Kafka topic with as many partitions, if it was written there with the default
partitioner of Kafka's own client (`murmur2_random` of librdkafka, whose default is another one).

What is hashed is the key's bytes. In a typed topic these are what Kafka's own serializers make of
the value: a text's UTF-8, an integer's 4 or 8 bytes with the most significant one first.

Each key of a column is hashed once, however often it is there. That takes about 2 us for a key.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF

MAX_CACHED_BYTES = 128  # longer keys are hashed each time, or a few of them would fill the memory
CACHED_KEYS = 16_384  # with keys about 4 MiB
# -- one key --------------------------------------------------------------------------------


def murmur2(key: bytes) -> int:
    """The hash of a key: MurmurHash2 as Kafka has it, in 32 bits without a sign."""
    words = len(key) >> 2
    h = SEED ^ len(key)
    for k in struct.unpack_from(f"<{words}I", key):
        k = k * _M & _MASK  # noqa: PLW2901 - as the algorithm is written everywhere
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if len(key) & 3:
        h = (h ^ int.from_bytes(key[words << 2 :], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key, from 0 on."""
    return _place(_cached(key) if len(key) <= MAX_CACHED_BYTES else murmur2(key), partitions)


def _place(hashed: int, partitions: int) -> int:
    return (hashed & _POSITIVE) % partitions


_cached = lru_cache(CACHED_KEYS)(murmur2)

# -- a column -------------------------------------------------------------------------------


def is_key_type(kind: Any) -> bool:
    """Whether a column of this type can be keys: texts, bytes, 32 or 64 bit integers."""
    return any(
        check(kind)
        for check in (
            pat.is_string,
            pat.is_large_string,
            pat.is_binary,
            pat.is_large_binary,
            pat.is_int32,
            pat.is_int64,
        )
    )


def partitions_of(column: Any, partitions: int) -> Any:
    """Give the partition of each key of a column, as `uint32`; null where the key is null.

    Args:
        column: a pyarrow Array or ChunkedArray of a type that `is_key_type` accepts.
        partitions: how many there are.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [partitions_of(chunk, partitions) for chunk in column.chunks]
        return pa.chunked_array(chunks, pa.uint32())
    encoded = column.dictionary_encode()
    places = [_place(murmur2(key), partitions) for key in _as_bytes(encoded.dictionary)]
    return pa.array(places, pa.uint32()).take(encoded.indices)


def _as_bytes(keys: Any) -> list[bytes]:
    """List what Kafka's own serializers make of some keys."""
    if pat.is_integer(keys.type):
        size = keys.type.bit_width // 8
        return [key.to_bytes(size, "big", signed=True) for key in keys.to_pylist()]
    large = pat.is_large_string(keys.type)
    if large or pat.is_string(keys.type):
        keys = keys.cast(pa.large_binary() if large else pa.binary())
    return keys.to_pylist()  # type: ignore[no-any-return]
