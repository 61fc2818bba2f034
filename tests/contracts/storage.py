"""What every `StorageHandler` must do.

A test module runs the suite for an implementation by importing everything here and defining a
fixture `storage` that yields an empty one.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from memq.errors import InvalidRequestError, ObjectNotFoundError, StorageError
from memq.storage.keys import BatchKey, object_key, topic_objects

BAD_KEYS = [
    "", "/", "/a", "a/", "a//b", "..", "../a", "a/..", "a/../b", ".", "./a", "a/.", "a\0b", "a\nb",
    ".tmp", ".tmp/a", "a" * 256, "a/" * 600 + "a", "\udcff",
]  # fmt: skip


def put(storage, key, *buffers):
    """Put with a deadline that does not matter."""
    storage.put(key, buffers, timeout_s=30)


def keys(storage, prefix=""):
    """The keys of a listing, sorted."""
    return sorted(info.key for info in storage.list(prefix))


def test_get_returns_the_buffers_of_put_in_order(storage):
    """An object is the concatenation of the buffers it was put from."""
    put(
        storage, "a/b/c.arrows", b"one", memoryview(b"two"), bytearray(b"three"), pa.py_buffer(b"4")
    )
    assert bytes(storage.get("a/b/c.arrows")) == b"onetwothree4"


@pytest.mark.parametrize("buffers", [[], [b""], [b"", memoryview(b"")]])
def test_an_object_may_be_empty(storage, buffers):
    """No bytes at all are an object of size 0."""
    put(storage, "empty", *buffers)
    assert bytes(storage.get("empty")) == b""
    assert [info.size_bytes for info in storage.list("")] == [0]


def test_a_large_object(storage):
    """An object of several MiB comes back byte for byte."""
    buffers = [random.Random(n).randbytes(1 << 20) for n in range(5)]
    put(storage, "large", *buffers)
    assert bytes(storage.get("large")) == b"".join(buffers)
    assert (
        bytes(storage.get_range("large", 1_000_000, 2_000_000))
        == b"".join(buffers)[1_000_000:][:2_000_000]
    )


def test_put_again_with_the_same_bytes_succeeds(storage):
    """A repeat of a put whose answer was lost is a success, however its buffers are cut."""
    put(storage, "k", b"abc", b"def")
    put(storage, "k", b"a", b"bcdef")
    assert bytes(storage.get("k")) == b"abcdef"


@pytest.mark.parametrize("other", [b"abcdeX", b"abc", b"abcdefg", b""])
def test_put_of_other_bytes_fails_and_changes_nothing(storage, other):
    """A key is never rewritten: other bytes are an error that names the key."""
    put(storage, "k", b"abcdef")
    with pytest.raises(StorageError, match="'k'"):
        put(storage, "k", other)
    assert bytes(storage.get("k")) == b"abcdef"
    assert keys(storage) == ["k"]


def test_of_many_writers_with_different_bytes_one_wins(storage):
    """Writers that race for one key leave the whole object of one of them; the others fail."""
    contents = [bytes([n]) * 100_000 for n in range(6)]
    barrier = threading.Barrier(len(contents))

    def write(content):
        barrier.wait()
        try:
            put(storage, "k", content)
        except StorageError:
            return None
        return content

    with ThreadPoolExecutor(len(contents)) as pool:
        won = [content for content in pool.map(write, contents) if content is not None]
    assert won == [bytes(storage.get("k"))]


def test_many_writers_of_the_same_bytes_all_succeed(storage):
    """A hedged put, made twice at once, succeeds twice."""
    barrier = threading.Barrier(4)

    def write(_):
        barrier.wait()
        put(storage, "k", b"same" * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert bytes(storage.get("k")) == b"same" * 1000


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 4, b"0123"), (3, 4, b"3456"), (8, 5, b"89"), (10, 1, b""), (99, 5, b""), (4, 0, b"")],
)
def test_get_range(storage, start, length, expected):
    """A range holds the bytes asked for, and fewer where the object ends sooner."""
    put(storage, "k", b"0123456789")
    assert bytes(storage.get_range("k", start, length)) == expected


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
def test_a_negative_range_is_refused(storage, start, length):
    """A negative start or length is an error of the caller."""
    put(storage, "k", b"abc")
    with pytest.raises(InvalidRequestError):
        storage.get_range("k", start, length)


def test_a_missing_object_is_not_found(storage):
    """Reading a key that was never written, or a part of one, names the key."""
    put(storage, "a/b", b"x")
    for key in ("nothing", "a", "a/c", "c/d"):
        with pytest.raises(ObjectNotFoundError, match=f"'{key}'"):
            storage.get(key)
        with pytest.raises(ObjectNotFoundError, match=f"'{key}'"):
            storage.get_range(key, 0, 1)


def test_deleting_what_is_not_there_is_fine(storage):
    """A delete may be repeated."""
    put(storage, "a", b"x")
    storage.delete("a")
    storage.delete("a")
    storage.delete("never/was/there")
    for name in ("a", "b"):
        put(storage, name, b"x")
    storage.delete("none", "a", "never/was/there", "b", "a")
    assert keys(storage) == []


def test_a_deletion_with_a_bad_key_deletes_nothing(storage):
    """Neither what is before it nor what is behind."""
    for name in ("a", "b"):
        put(storage, name, b"x")
    for names in (("a", "/", "b"), ("/", "a"), ("a", "b", "..")):
        with pytest.raises(InvalidRequestError):
            storage.delete(*names)
    assert keys(storage) == ["a", "b"]


def test_list_takes_a_prefix_that_ends_anywhere(storage):
    """A prefix is a string of its own: it may end inside a part, at a '/', or be empty."""
    names = ["a/1", "a/12", "a/2/x", "ab/1", "b"]
    for name in names:
        put(storage, name, b"x")
    for prefix in ("", "a", "a/", "a/1", "a/12", "a/2", "a/2/", "ab", "b", "c", "a/3/", "b/"):
        assert keys(storage, prefix) == [name for name in names if name.startswith(prefix)]


def test_list_tells_size_and_time(storage):
    """A listing has the size of each object, and a time that is about now."""
    put(storage, "a", b"12345")
    put(storage, "b", b"")
    found = {info.key: info for info in storage.list("")}
    assert (found["a"].size_bytes, found["b"].size_bytes) == (5, 0)
    assert 0 <= found["b"].modified_ms - found["a"].modified_ms < 60_000


def test_objects_may_be_deleted_while_they_are_listed(storage):
    """Deleting each object as it is listed removes them all."""
    for number in range(60):
        put(storage, f"a/{number % 3}/{number}", b"x")
    for info in storage.list("a/"):
        storage.delete(info.key)
    assert keys(storage) == []


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: ascii(key[:8]))
def test_bad_keys_are_refused_everywhere(storage, key):
    """A key that could leave the root, or that some storage could not hold, is refused."""
    for call in (
        lambda: put(storage, key, b"x"),
        lambda: storage.get(key),
        lambda: storage.get_range(key, 0, 1),
        lambda: storage.delete(key),
        lambda: storage.uri(key),
    ):
        with pytest.raises(InvalidRequestError, match="key"):
            call()


def test_several_prefixes_are_listed_one_after_the_other(storage):
    """A listing of many prefixes has the objects of each, in the order in which they were given."""
    names = [f"{number:02}/{name}" for number in range(20) for name in "ab"]
    for name in names:
        put(storage, name, b"x")
    prefixes = [f"{number:02}/" for number in reversed(range(20))]
    listed = [info.key for info in storage.list(*prefixes, "none/")]
    assert sorted(listed) == names
    assert [key[:3] for key in listed] == [prefix for prefix in prefixes for _ in "ab"]
    assert list(storage.list()) == []
    with pytest.raises(InvalidRequestError):
        storage.list("a/", "/")


@pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//", "\0", ".tmp/", "./"])
def test_bad_prefixes_are_refused(storage, prefix):
    """A prefix that no key can have is refused when the listing is asked for."""
    with pytest.raises(InvalidRequestError):
        storage.list(prefix)


@pytest.mark.parametrize("key", ["a b", "ü/ß", "a%20b", "a#b?c", "...", "a.tmp", "-", "x" * 200])
def test_unusual_keys_work(storage, key):
    """Spaces, non-ASCII, and characters that mean something in a URI are part of the name."""
    put(storage, key, b"x")
    assert bytes(storage.get(key)) == b"x"
    assert keys(storage) == [key]
    storage.delete(key)
    assert keys(storage) == []


def test_topic_objects_finds_all_of_a_topic_and_no_more(storage):
    """A topic's objects are found over all prefixes; those of other names and lives are not."""
    life, later = "0" * 16, "1" * 16
    mine = [
        object_key(BatchKey("c", "clicks", life, n % 3, 1_700_000_000_000 + n, f"b{n}"))
        for n in range(20)
    ]
    others = [
        object_key(BatchKey(cluster, topic, topic_id, 0, 1, "x"))
        for cluster, topic, topic_id in (
            ("c", "clicks2", life),
            ("c", "click", life),
            ("c2", "clicks", life),
            ("c", "clicks", later),
        )
    ]
    for key in (*mine, *others):
        put(storage, key, b"x")
    assert sorted(info.key for info in topic_objects(storage, "c", "clicks", life)) == sorted(mine)


def test_readers_see_all_or_nothing(storage):
    """While objects are being written a reader finds each of them whole or not at all."""
    content = b"z" * 200_000
    names = [f"o/{number}" for number in range(20)]
    stop = threading.Event()
    sizes = set()

    def read():
        while not stop.is_set():
            # Some stores list what is not whole yet, under names that are not ours.
            sizes.update(info.size_bytes for info in storage.list("o/") if info.key in names)
            for name in names:
                try:
                    sizes.add(len(storage.get(name)))
                except ObjectNotFoundError:
                    continue

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            for name in names:
                put(storage, name, content)
        finally:
            stop.set()
        reader.result()
    assert sizes <= {len(content)}
