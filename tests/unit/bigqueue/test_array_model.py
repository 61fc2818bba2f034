import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memq.bigqueue import BigArray, FanOutQueue, Recovery
from memq.errors import CorruptDataError, MemqError, OffsetOutOfRangeError

ITEM = st.one_of(st.binary(max_size=30), st.integers(0, 4096).map(lambda n: b"\xa5" * n))
BATCH = st.lists(ITEM, max_size=25)
FRACTION = st.floats(0, 1)


class QueueModel(RuleBasedStateMachine):
    """A fan-out queue with small pages against a list of items and a dict of positions."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="bigqueue-"))
        self.generation = 0
        self.items: list[bytes] = []
        self.stamps: list[int] = []
        self.start = 0
        self.positions: dict[str, int] = {}
        self.now = 0

    @initialize(mapped=st.integers(4, 6), index_items=st.sampled_from([1, 3, 8]))
    def make(self, mapped, index_items):
        """Start with an empty queue."""
        self.options = {
            "page_bytes": 4096,
            "index_page_items": index_items,
            "max_mapped_pages": mapped,
            "clock_ms": lambda: self.now,
        }
        self.queue = FanOutQueue(self.path, **self.options)

    @property
    def path(self) -> Path:
        return self.folder / str(self.generation)

    def stamp(self, count, timestamp_ms):
        given_ms = self.now if timestamp_ms is None else timestamp_ms
        last = self.stamps[-1] if self.stamps else 0
        self.stamps += [max(last, given_ms)] * count

    @rule(item=ITEM, timestamp_ms=st.none() | st.integers(0, 50))
    def enqueue(self, item, timestamp_ms):
        assert self.queue.enqueue(item, timestamp_ms) == len(self.items)
        self.items.append(item)
        self.stamp(1, timestamp_ms)

    @rule(batch=BATCH, timestamp_ms=st.none() | st.integers(0, 50))
    def enqueue_many(self, batch, timestamp_ms):
        assert self.queue.enqueue_many(batch, timestamp_ms) == len(self.items)
        self.items += batch
        self.stamp(len(batch), timestamp_ms)

    @rule(step=st.integers(-3, 10))
    def move_clock(self, step):
        self.now += step

    @rule(at=FRACTION)
    def get(self, at):
        index = int(at * len(self.items))
        if self.start <= index < len(self.items):
            assert self.queue.get(index) == self.items[index]
            assert self.queue.timestamp_ms(index) == self.stamps[index]
        else:
            with pytest.raises(OffsetOutOfRangeError):
                self.queue.get(index)

    @rule(at=FRACTION, count=st.integers(0, 40), max_bytes=st.none() | st.integers(0, 9000))
    def get_many(self, at, count, max_bytes):
        first = self.start + int(at * (len(self.items) - self.start))
        expected = self.items[first : first + count]
        if max_bytes is not None:
            expected = fitting(expected, max_bytes)
        assert self.queue.get_many(first, count, max_bytes) == expected

    @rule(timestamp_ms=st.integers(-1, 60))
    def find(self, timestamp_ms):
        later = [i for i in range(self.start, len(self.items)) if self.stamps[i] >= timestamp_ms]
        assert self.queue.find_timestamp(timestamp_ms) == (later or [len(self.items)])[0]

    @rule(name=st.sampled_from("abc"))
    def create_or_delete(self, name):
        if name in self.positions:
            self.queue.delete_front(name)
            del self.positions[name]
        else:
            self.queue.create_front(name)
            self.positions[name] = self.start

    @precondition(lambda self: self.positions)
    @rule(data=st.data(), count=st.none() | st.integers(0, 20))
    def dequeue(self, data, count):
        name = data.draw(st.sampled_from(sorted(self.positions)))
        position = self.positions[name]
        if count is None:
            expected = (self.items[position : position + 1] or [None])[0]
            assert self.queue.peek(name) == expected
            assert self.queue.dequeue(name) == expected
            self.positions[name] += expected is not None
        else:
            expected = self.items[position : position + count]
            assert self.queue.dequeue_many(name, count) == expected
            self.positions[name] += len(expected)

    @precondition(lambda self: self.positions)
    @rule(data=st.data(), at=FRACTION)
    def seek(self, data, at):
        name = data.draw(st.sampled_from(sorted(self.positions)))
        self.positions[name] = self.start + int(at * (len(self.items) - self.start))
        self.queue.set_position(name, self.positions[name])

    @rule()
    def gc(self):
        self.queue.gc()
        if self.positions:
            self.start = max(self.start, min(self.positions.values()))

    @rule(at=FRACTION)
    def truncate(self, at):
        index = int(at * len(self.items))
        self.queue.truncate_front(index)
        self.start = max(self.start, index)
        self.positions = {n: max(p, self.start) for n, p in self.positions.items()}

    @rule()
    def reopen(self):
        self.queue.close()
        self.queue = FanOutQueue(self.path, **self.options)
        assert self.queue.recovery == Recovery()

    @rule()
    def kill(self):
        before = self.path
        self.generation += 1
        shutil.copytree(before, self.path)
        self.queue.close()
        shutil.rmtree(before)
        self.queue = FanOutQueue(self.path, **self.options)
        assert self.queue.recovery == Recovery()

    @rule()
    def sync(self):
        self.queue.sync()

    @invariant()
    def same(self):
        if not hasattr(self, "queue"):
            return
        assert (self.queue.start, self.queue.end) == (self.start, len(self.items))
        assert self.queue.fronts() == sorted(self.positions)
        assert {n: self.queue.position(n) for n in self.positions} == self.positions
        assert len(self.queue._pool) <= self.options["max_mapped_pages"]

    def teardown(self):
        if hasattr(self, "queue"):
            self.queue.close()
        shutil.rmtree(self.folder)


def fitting(items: list[bytes], max_bytes: int) -> list[bytes]:
    """The first of the items that fit together, but at least one."""
    fit: list[bytes] = []
    for item in items:
        if fit and sum(map(len, fit)) + len(item) > max_bytes:
            break
        fit.append(item)
        if sum(map(len, fit)) > max_bytes:
            break
    return fit


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(stateful_step_count=30)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A killed array of 30 items, the first 12 of them flushed, and the items."""
    path = tmp_path_factory.mktemp("template")
    items = [bytes([n]) * (n * 53 % 1900) for n in range(30)]
    with BigArray(path / "live", page_bytes=4096, index_page_items=8) as array:
        array.append_many(items[:12], timestamp_ms=3)
        array.sync()
        for item in items[12:]:
            array.append(item)
        array.truncate_front(5)
        shutil.copytree(array.path, path / "killed")
    return path / "killed", items


@given(
    which=FRACTION,
    at=FRACTION,
    size=st.integers(0, 5000),
    how=st.sampled_from(["cut", "zero", "ones", "flip", "unlink"]),
)
def test_no_damage_makes_a_wrong_item(template, which, at, size, how):
    """After any damage to any file, every item is right or an error, and the array goes on."""
    killed, items = template
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(killed, copy)
        files = sorted(file for file in copy.rglob("*") if file.is_file())
        file = files[int(which * (len(files) - 1))]
        damage(file, at, size, how)
        try:
            array = BigArray(copy)
        except MemqError:
            assert file.name == "meta.json"
            return
        with array:
            for index in range(array.start, array.end):
                try:
                    assert array.get(index) == items[index]
                except CorruptDataError as exc:
                    assert f"{index}" in str(exc) or "page" in str(exc)
            end = array.append(b"new")
            assert array.get(end) == b"new"


def damage(file: Path, at: float, size: int, how: str) -> None:
    """Do something to a file that disks, crashes and people do."""
    content = bytearray(file.read_bytes())
    place = int(at * len(content))
    span = range(place, min(place + size, len(content)))
    if how == "unlink":
        file.unlink()
        return
    if how == "cut":
        del content[place:]
    elif how == "flip" and content:
        content[min(place, len(content) - 1)] ^= 1 << size % 8
    else:
        content[span.start : span.stop] = (b"\0" if how == "zero" else b"\xff") * len(span)
    file.write_bytes(content)
