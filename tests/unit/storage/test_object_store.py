"""Objects of an object store whose every answer is decided here."""

import itertools

import pytest
from obstore.exceptions import NotSupportedError

from memq.errors import ConfigError, ObjectNotFoundError, StorageError
from memq.runtime.hedging import MIN_KNOWN
from memq.runtime.system import Runtime
from memq.storage import object_store
from memq.storage.object_store import PART_ATTEMPTS, ObjectStorage
from tests.unit.storage.stores import BUSY, HANG, NO_BUCKET, NOT_IMPLEMENTED, REFUSED, Store

PART = 1 << 10


class Clock:
    """A monotonic clock that a test moves; waits between attempts are none."""

    now_s = 0.0

    def runtime(self):
        return Runtime(mono_s=lambda: self.now_s, random=lambda: 0.0)


@pytest.fixture
def clock():
    """The clock of the storage."""
    return Clock()


@pytest.fixture
def store(monkeypatch):
    """The store behind the storage."""
    found = Store()
    monkeypatch.setattr(object_store, "open_store", found.opened)
    monkeypatch.setattr(object_store, "PART_BYTES", PART)
    monkeypatch.setattr(object_store, "PARTS_AT_A_TIME", 3)
    return found


@pytest.fixture
def storage(store, clock):
    """A storage on the store."""
    return ObjectStorage("s3://bucket", "root", runtime=clock.runtime())


@pytest.fixture
def quick(monkeypatch):
    """What stalls is given up soon."""
    for name in ("STALL_S", "LIST_TIMEOUT_S"):
        monkeypatch.setattr(object_store, name, 0.02)
    monkeypatch.setattr(object_store, "SLOW_BYTES_S", 1 << 40)


def put(storage, key, content=b"abc", timeout_s=30.0):
    storage.put(key, [content], timeout_s=timeout_s)


# -- errors --------------------------------------------------------------------------------------

CALLS = {
    "put create": lambda storage: put(storage, "k"),
    "get": lambda storage: storage.get("k"),
    "bytes": lambda storage: storage.get_range("k", 1, 1),
    "head": lambda storage: storage.get_range("k", 0, 0),
    "list": lambda storage: list(storage.list("")),
    "delete": lambda storage: storage.delete("k"),
}
TRIED = {"put create": 1, "delete": 1}
SAID = {
    REFUSED: "403 AccessDenied: no",
    BUSY: "503 SlowDown: slow",
    NO_BUCKET: "there is no s3://bucket; make it",
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("error", [REFUSED, BUSY, NO_BUCKET])
def test_an_error_of_the_store_is_one_of_the_storage(store, storage, clock, kind, error):
    """Whatever is asked for: it may be tried again, and says what the store said and refused."""
    if kind != "put create":
        put(storage, "k")
    store.answers[kind] = [error] * 99
    storage._list_retry = lambda: object_store.Retry(0, clock.runtime())
    with pytest.raises(StorageError) as caught:
        CALLS[kind](storage)
    assert SAID[error] in str(caught.value)
    assert caught.value.retriable
    assert not isinstance(caught.value, ObjectNotFoundError)
    assert caught.value.refused is (error is REFUSED)
    if kind != "list":
        assert caught.value.__cause__ is error
        assert store.asked.count(kind) == TRIED.get(kind, PART_ATTEMPTS)
    store.answers[kind] = []
    CALLS[kind](storage)


@pytest.mark.parametrize("kind", CALLS)
def test_a_request_that_hangs_is_given_up(quick, store, storage, clock, kind):
    """It ends by the time that it may take, is cancelled, and leaves nothing behind."""
    if kind != "put create":
        put(storage, "k")
    storage._list_retry = lambda: object_store.Retry(0, clock.runtime())
    store.answers[kind] = [HANG] * 99
    with pytest.raises(StorageError, match="did not answer in time"):
        CALLS[kind](storage)
    assert set(store.cancelled) == {kind}
    assert store.cancelled.count(kind) == store.asked.count(kind)
    assert store.asked.count(kind) == ({"list": 1} | TRIED).get(kind, PART_ATTEMPTS)
    assert storage._bytes_under_way == 0
    store.answers[kind] = []
    CALLS[kind](storage)


# -- puts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [NOT_IMPLEMENTED, NotSupportedError("If-None-Match"), NotImplementedError("mode")]
)
def test_a_store_that_knows_no_condition_is_asked_without(store, storage, caplog, error):
    """Whatever it says so with; it is asked once, and a warning says it."""
    store.answers["put create"] = [error]
    put(storage, "k")
    put(storage, "k", b"other")
    assert store.asked == ["put create", "put overwrite", "put overwrite"]
    assert storage.requests["put"] == 3
    assert caplog.text.count("knows no conditional put") == 1


@pytest.mark.parametrize("error", [BUSY, REFUSED, None])
def test_an_object_that_cannot_be_compared_is_not_taken_for_ours(store, storage, error):
    """Where the key is taken and the object there cannot be read, the put has failed."""
    store.objects["root/k"] = b"abc"
    if error is None:  # it is gone again, or was never whole
        store.answers["get"] = [FileNotFoundError("k")]
    else:
        store.answers["get"] = [error] * PART_ATTEMPTS
    with pytest.raises(StorageError) as caught:
        put(storage, "k")
    assert caught.value.retriable
    assert not isinstance(caught.value, ObjectNotFoundError)
    put(storage, "k")


def test_what_is_asked_for_is_counted(store, storage):
    """Requests of each kind, hedged and repeated ones as well, and the bytes that they carried."""
    put(storage, "k", b"abcd")
    store.answers["get"] = [BUSY]
    storage.get_range("k", 1, 2)
    storage.get_range("k", 9, 2)
    storage.get_range("k", 0, 0)
    list(storage.list("", "a/"))
    storage.delete("k", "l")
    assert storage.requests == {
        "put": 1,
        "put_bytes": 4,
        "get": 4,
        "get_bytes": 2,
        "list": 2,  # the first pages: neither is full, so that nothing more is asked
        "delete": 1,
    }


# -- reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("kind", ["get", "bytes"])
def test_each_part_is_tried_for_itself(store, storage, kind, failing):
    """Whichever of several fails is asked for again, as often as it may fail, and no other."""
    content = bytes(itertools.islice(itertools.cycle(range(251)), 4 * PART))
    store.objects["root/k"] = content
    store.answers[kind] = [None] * failing + [BUSY] * (PART_ATTEMPTS - 1)
    assert bytes(storage.get_range("k", 0, 4 * PART)) == content
    assert store.asked.count(kind) == 4 + PART_ATTEMPTS - 1


@pytest.mark.parametrize("start", [0, 1, PART, 5 * PART - 1, 5 * PART, 5 * PART + 1])
@pytest.mark.parametrize("length", [0, 1, PART, 2 * PART, 3 * PART, 4 * PART, 9 * PART])
def test_any_range_has_its_bytes(store, storage, start, length):
    """In one request or many, and where the object ends before the range does."""
    content = bytes(itertools.islice(itertools.cycle(range(251)), 5 * PART))
    store.objects["root/k"] = content
    assert bytes(storage.get_range("k", start, length)) == content[start : start + length]


def test_the_read_that_came_second_is_given_up(store, clock):
    """Of a read and its hedge the first answer counts, and the other is cancelled."""
    storage = ObjectStorage("s3://bucket", "root")
    put(storage, "k")
    for _ in range(MIN_KNOWN):
        storage.get("k")
    store.answers["get"] = [HANG]
    assert bytes(storage.get("k")) == b"abc"
    assert store.cancelled == ["get"]
    assert storage._bytes_under_way == 0


# -- listings ------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def listed(request, store, storage):
    """Keys of several pages, in a store that lists in order or not."""
    storage._is_ordered = request.param
    keys = [f"{prefix}/{number}" for prefix in ("a", "b", "c") for number in range(5)]
    for key in (*keys, "bb", "d/0"):
        store.objects[f"root/{key}"] = b"x"
    store.objects["rootless/b/9"] = store.objects["b/9"] = b"x"
    return keys


@pytest.mark.parametrize("failing", range(10))
@pytest.mark.parametrize("error", [BUSY, REFUSED, NO_BUCKET, NotImplementedError()])
def test_a_page_that_fails_loses_and_repeats_no_key(store, storage, listed, failing, error):
    """Whichever page it is, of one listing or of several that were begun together."""
    store.answers["list"] = [None] * failing + [error]
    found = [info.key for info in storage.list("a/", "b/", "c/")]
    assert sorted(found) == listed
    assert [key[0] for key in found] == sorted(key[0] for key in found)


# -- deletions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_bucket_that_is_not_there_has_deleted_nothing(store, storage, at):
    """A store that calls that not found as well is not believed to have no such key."""
    no_bucket = FileNotFoundError("<Code>NoSuchBucket</Code>")
    store.answers["delete"] = [FileNotFoundError("a")] * at + [no_bucket] * 3
    with pytest.raises(StorageError, match="there is no s3://bucket"):
        storage.delete("a", "b", "c")


# -- the start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"), [(REFUSED, ConfigError), (NO_BUCKET, ConfigError), (BUSY, StorageError)]
)
def test_a_start_asks_once(store, storage, error, kind):
    """What does not pass by itself is an error of the configuration; all else may pass."""
    store.answers["list"] = [error]
    with pytest.raises(kind) as caught:
        storage.check()
    assert isinstance(caught.value, ConfigError) is (kind is ConfigError)
    storage.check()
    assert (store.asked, storage.requests["list"]) == (["list"] * 2, 2)
