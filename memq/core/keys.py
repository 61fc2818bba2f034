"""Where a key belongs: the hash of Kafka's default partitioner, for one key and for columns.

A key goes to `(murmur2(key) & 0x7fffffff) % partitions`. So it is in the partition of the same
number as in a Kafka topic with as many partitions, if it was written there with the default
partitioner of Kafka's own client (`murmur2_random` of librdkafka, whose default is another one).

What is hashed is the key's bytes. In a typed topic these are what Kafka's own serializers make of
the value: a text's UTF-8, an integer's 4 or 8 bytes with the most significant one first.

A column is hashed in Arrow, all keys of one length at a time and word by word: 32 bit integers wrap
around there, as the hash wants it. That takes 40 to 200 ns for a key, and a loop in Python 2,000.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF

MAX_CACHED_BYTES = 128  # longer keys are hashed each time, or a few of them would fill the memory
CACHED_KEYS = 16_384  # with keys about 4 MiB
FEW_KEYS = 64  # of one length: below it a loop in Python is as quick as Arrow's calls

_U32 = pa.uint32()
_FACTOR, _SHIFT_13, _SHIFT_15, _SHIFT_16, _SHIFT_24 = (
    pa.scalar(each, _U32) for each in (_M, 13, 15, 16, 24)
)

# -- one key --------------------------------------------------------------------------------


def murmur2(key: bytes) -> int:
    """Hash a key: MurmurHash2 as Kafka has it, in 32 bits without a sign."""
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
    """Return the partition of a key, from 0 on."""
    hashed = _cached(key) if len(key) <= MAX_CACHED_BYTES else murmur2(key)
    return (hashed & _POSITIVE) % partitions


_cached = lru_cache(CACHED_KEYS)(murmur2)

# -- a column -------------------------------------------------------------------------------


def is_key_type(kind: Any) -> bool:
    """Return whether a column of this type can be keys: texts, bytes, 32 or 64 bit integers."""
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
    """Return the partition of each key of a column, as `uint32`; null where the key is null.

    Args:
        column: a pyarrow Array or ChunkedArray of a type that `is_key_type` accepts.
        partitions: how many there are.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [partitions_of(chunk, partitions) for chunk in column.chunks]
        return pa.chunked_array(chunks, _U32)
    count = pa.scalar(partitions, _U32)
    positive = pc.bit_wise_and(_hashes(column), pa.scalar(_POSITIVE, _U32))
    rest = pc.subtract(positive, pc.multiply(pc.divide(positive, count), count))
    return pc.if_else(column.is_valid(), rest, pa.scalar(None, _U32))


def _hashes(keys: Any) -> Any:
    """Hash each key; any number where the key is null."""
    if pat.is_integer(keys.type):
        return _hash_integers(keys)
    keys = pc.fill_null(_as_binary(keys), b"")
    lengths = pc.binary_length(keys)
    found = pc.value_counts(lengths)
    if len(found) <= 1:
        return _hash_equally_long(keys)
    order = pc.array_sort_indices(lengths)
    by_length = sorted((each["values"].as_py(), each["counts"].as_py()) for each in found)
    sorted_keys = keys.take(order)
    hashed, start = [], 0
    for _, count in by_length:
        hashed.append(_hash_equally_long(sorted_keys.slice(start, count)))
        start += count
    back = pc.inverse_permutation(order.cast(pa.int64()))
    return pa.concat_arrays(hashed).take(back)


def _as_binary(keys: Any) -> Any:
    large = pat.is_large_string(keys.type) or pat.is_large_binary(keys.type)
    return keys.cast(pa.large_binary() if large else pa.binary())


def _hash_equally_long(keys: Any) -> Any:
    if len(keys) < FEW_KEYS:
        return pa.array(map(murmur2, keys.to_pylist()), _U32)
    length = len(keys[0].as_py())
    if not length:
        return pa.repeat(pa.scalar(murmur2(b""), _U32), len(keys))
    fixed = keys.cast(pa.binary(length))
    words = [pc.binary_slice(fixed, at, at + 4).view(_U32) for at in range(0, length - 3, 4)]
    h = _mix(length, words)
    if length & 3:
        h = pc.multiply(pc.bit_wise_xor(h, _tail(fixed, length)), _FACTOR)
    return _finish(h)


def _hash_integers(numbers: Any) -> Any:
    """Hash integers by their bytes, the most significant one first."""
    plain = pc.fill_null(numbers, 0)
    swapped = array("i" if pat.is_int32(plain.type) else "q")
    start, width = plain.offset, swapped.itemsize
    swapped.frombytes(memoryview(plain.buffers()[1])[start * width : (start + len(plain)) * width])
    swapped.byteswap()
    buffers = [None, pa.py_buffer(swapped)]
    return _hash_equally_long(pa.Array.from_buffers(pa.binary(width), len(plain), buffers))


def _mix(length: int, words: list[Any]) -> Any:
    h: Any = pa.scalar(SEED ^ length, _U32)
    for word in words:
        k = pc.multiply(_shifted(pc.multiply(word, _FACTOR), _SHIFT_24), _FACTOR)
        h = pc.bit_wise_xor(pc.multiply(h, _FACTOR), k)
    return h


def _finish(h: Any) -> Any:
    return _shifted(pc.multiply(_shifted(h, _SHIFT_13), _FACTOR), _SHIFT_15)


def _shifted(h: Any, by: Any) -> Any:
    return pc.bit_wise_xor(h, pc.shift_right(h, by))


def _tail(keys: Any, length: int) -> Any:
    """Return the 1 to 3 bytes after the last whole word, as a number with the first byte least."""
    at, odd = length & ~3, length & 1
    if length & 3 == 1:
        return pc.binary_slice(keys, at, at + 1).view(pa.uint8()).cast(_U32)
    pair = pc.binary_slice(keys, at, at + 2).view(pa.uint16()).cast(_U32)
    if not odd:
        return pair
    third = pc.binary_slice(keys, at + 2, at + 3).view(pa.uint8()).cast(_U32)
    return pc.bit_wise_xor(pair, pc.shift_left(third, _SHIFT_16))
