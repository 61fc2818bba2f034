"""Keys go where Kafka's default partitioner puts them, one by one and by the column."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core import keys
from memq.core.keys import is_key_type, murmur2, partition_of, partitions_of

KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""The values in Kafka's own tests, with a sign as in Java."""


@pytest.mark.parametrize(("key", "hashed"), KAFKA.items())
def test_hash_is_that_of_kafka(key, hashed):
    """The hash has the values that Kafka's own tests state."""
    assert struct.unpack("i", struct.pack("I", murmur2(key))) == (hashed,)
    assert partition_of(key, 1_000) == (hashed & 0x7FFFFFFF) % 1_000


@given(
    st.lists(st.none() | st.binary(max_size=20)),
    st.integers(1, 256),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.integers(1, 3),
)
def test_a_column_is_hashed_as_its_keys_are(values, partitions, kind, few):
    """However long keys are, and whichever are null, a column gives what each key gives."""
    expected = [None if each is None else partition_of(each, partitions) for each in values]
    column = pa.array([b"sliced off", *values], kind).slice(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "FEW_KEYS", few)
        assert partitions_of(column, partitions).to_pylist() == expected
        chunked = pa.chunked_array([column, column.slice(0, 1)])
        assert partitions_of(chunked, partitions).to_pylist() == expected + expected[:1]


@given(st.lists(st.none() | st.text(max_size=20)), st.sampled_from([pa.utf8(), pa.large_utf8()]))
def test_texts_are_hashed_as_utf8(values, kind):
    """A text is its UTF-8, as Kafka's serializer of strings writes it."""
    expected = [None if each is None else partition_of(each.encode(), 7) for each in values]

    assert partitions_of(pa.array(values, kind), 7).to_pylist() == expected


@pytest.mark.parametrize(("kind", "code", "bits"), [(pa.int32(), ">i", 31), (pa.int64(), ">q", 63)])
@pytest.mark.parametrize("few", [1, keys.FEW_KEYS])
def test_integers_are_hashed_with_the_most_significant_byte_first(
    kind, code, bits, few, monkeypatch
):
    """An integer is its bytes as Kafka's serializers of numbers write it."""
    monkeypatch.setattr(keys, "FEW_KEYS", few)
    values = [0, 1, -1, 255, 256, 0x01020304, 2**bits - 1, -(2**bits)]
    expected = [partition_of(struct.pack(code, v), 9) for v in values]

    assert partitions_of(pa.array(values, kind), 9).to_pylist() == expected
    column = pa.array([5, *values, None], kind).slice(1)
    assert partitions_of(column, 9).to_pylist() == [*expected, None]


@pytest.mark.parametrize("kind", [pa.float64(), pa.int16(), pa.bool_(), pa.list_(pa.int64())])
def test_other_types_are_no_keys(kind):
    """Types that Kafka has no one serializer for, or that equal values differ in, are no keys."""
    assert not is_key_type(kind)


def test_long_keys_are_not_kept():
    """Only short keys are remembered, so that what is remembered stays small."""
    before = keys._cached.cache_info()

    partition_of(b"x" * (keys.MAX_CACHED_BYTES + 1), 3)

    assert keys._cached.cache_info() == before
