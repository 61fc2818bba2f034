import pytest

from memq.bigqueue import BigArray
from memq.errors import ClosedError, InvalidRequestError, OffsetOutOfRangeError


@pytest.fixture
def array(tmp_path, small):
    """An empty array with small pages and a clock that stands at 1000 ms."""
    with BigArray(tmp_path / "array", clock_ms=lambda: 1000, **small) as array:
        yield array


def pages(array, kind):
    """The numbers of the page files of one kind."""
    return [int(file.stem) for file in sorted((array.path / kind).iterdir())]


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


def test_idle_pages_are_unmapped(tmp_path, small):
    """Pages not asked for within their time to live go when another is asked for."""
    now_s = 0.0
    with BigArray(tmp_path, page_ttl_s=10, clock_s=lambda: now_s, **small) as array:
        array.append_many([b"x" * 1000] * 12)  # four in a data page
        old = array._pool.map("data", 0)
        now_s = 9.9
        young = array._pool.map("data", 1)
        now_s = 10.0
        array._pool.map("data", 2)
        assert (old.closed, young.closed) == (True, False)


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
