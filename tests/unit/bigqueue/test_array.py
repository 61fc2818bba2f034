from __future__ import annotations

import pytest

from memq.core.bigqueue import BigArray, Recovery
from memq.errors import (
    ClosedError,
    InvalidRequestError,
    LockedError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
)


@pytest.fixture
def array(tmp_path, small):
    """An empty array with small pages and a clock that stands at 1000 ms."""
    with BigArray(tmp_path / "array", clock_ms=lambda: 1000, **small) as array:
        yield array


def pages(array, kind):
    """The numbers of the page files of one kind."""
    return [int(file.stem) for file in sorted((array.path / kind).iterdir())]


def test_indexes_count_from_zero(array):
    """Appends return consecutive indexes, and each gives its item back."""
    items = [b"", b"a", b"bb" * 1000, b"c" * 4096, b""]

    assert [array.append(item) for item in items] == [0, 1, 2, 3, 4]
    assert [array.get(index) for index in range(5)] == items
    assert (array.start, array.end, len(array)) == (0, 5, 5)


def test_a_batch_gets_neighbouring_indexes(array):
    """A batch crosses pages of both kinds and mixes with single appends."""
    array.append(b"first")
    batch = [bytes([n]) * (n * 97 % 1500) for n in range(40)]

    assert array.append_many(batch) == 1
    assert array.append(b"last") == 41
    assert array.get_many(0, 100) == [b"first", *batch, b"last"]
    assert len(pages(array, "data")) > 3
    assert pages(array, "index") == [0, 1, 2, 3, 4, 5]


def test_an_empty_batch_appends_nothing(array):
    """An empty batch returns the index that the next item gets."""
    array.append(b"x")
    assert array.append_many([]) == 1
    assert array.end == 1


@pytest.mark.parametrize("append", ["append", "append_many"])
def test_an_item_longer_than_a_page_is_refused(array, append):
    """The error names size and limit, and nothing is appended; a page full is fine."""
    fits, too_long = b"x" * 4096, b"x" * 4097
    with pytest.raises(MessageTooLargeError, match=r"4097 bytes.*4096"):
        array.append(too_long) if append == "append" else array.append_many([b"a", too_long])

    assert array.end == 0
    assert array.get(array.append(fits)) == fits


def test_any_contiguous_buffer_is_an_item(array):
    """Bytearray and memoryview of any item size are stored as their bytes."""
    array.append(bytearray(b"abc"))
    array.append(memoryview(b"12345678").cast("I"))
    array.append_many([memoryview(b"xyz")[1:], bytearray(b"q")])

    assert array.get_many(0, 4) == [b"abc", b"12345678", b"yz", b"q"]


@pytest.mark.parametrize("item", ["text", None, 7, memoryview(b"abcdef")[::2]])
def test_what_is_not_contiguous_bytes_is_refused(array, item):
    """Anything else is an InvalidRequestError, in a batch as well, and nothing is appended."""
    with pytest.raises(InvalidRequestError, match="contiguous"):
        array.append(item)
    with pytest.raises(InvalidRequestError, match="contiguous"):
        array.append_many([b"fine", item])
    assert array.end == 0


@pytest.mark.parametrize("index", [-1, 3, 10**12])
def test_an_index_outside_is_named(array, index):
    """Reading outside `[start, end)` names the index and the range."""
    array.append_many([b"a", b"b", b"c"])

    for read in (array.get, array.timestamp_ms):
        said = f"no item {index}; it has 0 up to, not including, 3"
        with pytest.raises(OffsetOutOfRangeError, match=said):
            read(index)


def test_get_many_stops_at_the_end_and_at_the_byte_limit(array):
    """`count` and `max_bytes` both bound a read, which always makes progress."""
    array.append_many([b"a" * 10] * 20)

    assert array.get_many(18, 100) == [b"a" * 10] * 2
    assert array.get_many(20, 5) == []
    assert array.get_many(0, 0) == []
    assert len(array.get_many(0, 100, max_bytes=35)) == 3
    assert len(array.get_many(5, 100, max_bytes=100)) == 10  # crosses an index page
    assert len(array.get_many(0, 100, max_bytes=1)) == 1
    with pytest.raises(OffsetOutOfRangeError):
        array.get_many(21, 1)


def test_timestamps_never_decrease(array):
    """The stored timestamp is the larger of the given one and the one before."""
    array.append(b"a", timestamp_ms=50)
    array.append(b"b", timestamp_ms=40)
    array.append_many([b"c", b"d"], timestamp_ms=60)
    array.append(b"e")

    assert [array.timestamp_ms(index) for index in range(5)] == [50, 50, 60, 60, 1000]


def test_find_timestamp_gives_the_first_at_or_after(array):
    """The search finds the first item at or after a time, across index pages."""
    for index in range(30):
        array.append(b"x", timestamp_ms=index // 3 * 10)

    assert array.find_timestamp(-5) == 0
    assert array.find_timestamp(0) == 0
    assert array.find_timestamp(1) == 3
    assert array.find_timestamp(50) == 15
    assert array.find_timestamp(91) == 30
    array.truncate_front(16)
    assert array.find_timestamp(0) == 16
    array.truncate_front(30)
    assert array.find_timestamp(0) == 30


def test_a_timestamp_beyond_63_bits_is_refused(array):
    """A timestamp that the entry cannot hold is an error, not a wrapped number."""
    with pytest.raises(InvalidRequestError, match="63 bits"):
        array.append(b"x", timestamp_ms=1 << 63)
    assert array.append(b"x", timestamp_ms=(1 << 63) - 1) == 0
    assert array.timestamp_ms(0) == (1 << 63) - 1


def test_truncation_deletes_whole_pages_only(array):
    """Pages below the new start go, of both kinds; the rest stays readable."""
    array.append_many([b"x" * 1000] * 40)  # four in a data page, eight in an index page
    array.truncate_front(21)

    assert (array.start, array.end) == (21, 40)
    assert pages(array, "data") == [5, 6, 7, 8, 9]
    assert pages(array, "index") == [2, 3, 4]
    assert array.get_many(21, 100) == [b"x" * 1000] * 19
    with pytest.raises(OffsetOutOfRangeError):
        array.get(20)
    array.truncate_front(3)
    assert array.start == 21


def test_truncation_past_the_end_is_refused(array):
    """Only what exists can be forgotten."""
    array.append(b"x")
    with pytest.raises(OffsetOutOfRangeError, match="its end is 1"):
        array.truncate_front(2)
    assert array.start == 0


@pytest.mark.parametrize("count", [1, 4, 7, 8, 9, 16])
def test_indexes_go_on_after_everything_was_truncated(tmp_path, small, count):
    """An index is never used twice, even when a reopened array holds no items."""
    with BigArray(tmp_path, **small) as array:
        array.append_many([b"x" * 1000] * count, timestamp_ms=77)
        array.truncate_front(count)
        assert len(array) == 0
    with BigArray(tmp_path, **small) as array:
        assert array.recovery == Recovery()
        assert array.append(b"next", timestamp_ms=1) == count
        assert array.get(count) == b"next"
        assert array.timestamp_ms(count) == 77


def test_a_closed_array_can_be_opened_again(tmp_path, small):
    """Items, start, timestamps and the write position survive a close."""
    items = [bytes([n]) * (n * 31) for n in range(50)]
    with BigArray(tmp_path, **small) as array:
        array.append_many(items, timestamp_ms=5)
        array.truncate_front(9)
    with BigArray(tmp_path, **small) as array:
        assert array.recovery == Recovery()
        assert array.start == 9
        assert array.get_many(9, 50) == items[9:]
        assert array.append(b"more", timestamp_ms=0) == 50
        assert array.timestamp_ms(50) == 5


def test_a_closed_array_refuses_everything(tmp_path, small):
    """After close each call is a ClosedError; closing again is fine."""
    array = BigArray(tmp_path, **small)
    array.append(b"x")
    array.close()
    array.close()

    calls = [
        lambda: array.append(b"x"),
        lambda: array.append_many([b"x"]),
        lambda: array.get(0),
        lambda: array.get_many(0, 1),
        lambda: array.find_timestamp(0),
        lambda: array.truncate_front(1),
        lambda: array.end,
        lambda: len(array),
        array.sync,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="closed"):
            call()


def test_there_is_one_writer(tmp_path, small):
    """A second writer is refused while the first is open, and let in afterwards."""
    with BigArray(tmp_path, **small), pytest.raises(LockedError, match="has a writer already"):
        BigArray(tmp_path, **small)
    BigArray(tmp_path, **small).close()


def test_a_reader_follows_the_writer(array, small):
    """A read-only array sees each item as soon as it is appended, and truncation too."""
    with BigArray(array.path, read_only=True, **small) as reader:
        assert reader.end == 0
        for index in range(40):
            array.append(b"%d" % index)
            assert reader.end == index + 1
            assert reader.get(index) == b"%d" % index
        array.truncate_front(33)
        assert reader.start == 33
        with pytest.raises(OffsetOutOfRangeError):
            reader.get(32)


def test_a_reader_may_not_write(array):
    """Writing through a read-only array says how to open it instead."""
    with BigArray(array.path, read_only=True) as reader:
        calls = [
            lambda: reader.append(b"x"),
            lambda: reader.append_many([b"x"]),
            lambda: reader.truncate_front(0),
            reader.sync,
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="read_only"):
                call()


def test_no_more_pages_are_mapped_than_allowed(tmp_path, small):
    """The bound on mapped pages holds while far more pages are written and read at random."""
    with BigArray(tmp_path, max_mapped_pages=4, **small) as array:
        expected = [b"%05d" % n * 200 for n in range(400)]
        for item in expected:
            array.append(item)
            assert len(array._pool) <= 4
        for n in range(400):
            index = n * 37 % 400
            assert array.get(index) == expected[index]
            assert len(array._pool) <= 4
        assert array.get_many(0, 400) == expected
        assert len(pages(array, "data")) == 100


def test_repr_shows_range_and_pages(array):
    """The array says what it holds."""
    array.append(b"x")
    assert "[0, 1) sync=none 2 pages mapped" in repr(array)
    array.close()
    assert "closed" in repr(array)
