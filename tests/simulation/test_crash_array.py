"""The big array opens from whatever a power cut leaves of it, with all that it promised."""

import contextlib

import pytest

from memq.bigqueue import BigArray, BigQueue
from memq.errors import PublishUncertainError, QueueError
from tests.fakes.disk import PowerCut
from tests.simulation.crashes import PLANS, disks, explore

SMALL = {"page_bytes": 4096, "index_page_items": 8}


class ArrayUnderTest:
    """A model is (items, start, how many are durable, items of a flush that failed).

    An item is its number, written again and again to some length.
    """

    def __init__(self, sync):
        self.sync = sync
        self.made = 0

    def plan(self, rng):
        """Mostly appending; most kinds of action are in a plan more than once."""
        actions = []
        for _ in range(14):
            kind = rng.choices(
                ("append", "append_many", "sync", "truncate", "fails", "full", "end"),
                (3, 6, 2, 3, 2, 1, 2),
            )[0]
            if kind == "append":
                actions.append((kind, [self._item(rng)], 0))
            elif kind in ("append_many", "fails", "full"):
                count = rng.choice((1, 3, 9, 14))
                actions.append((kind, [self._item(rng) for _ in range(count)], rng.randrange(4)))
                if kind == "fails":
                    actions.append(("reopen",))
            elif kind == "truncate":
                actions.append((kind, [], rng.random()))
            elif kind == "sync":
                actions.append((kind, [], 0))
            else:
                actions.append((rng.choice(("reopen", "kill", "crash")),))
        return actions

    def _item(self, rng):
        self.made += 1
        return (self.made, rng.choice((0, 1, 100, 100, 700, 700, 4000)))

    def open(self, folder):
        return BigArray(folder / "array", sync=self.sync, **SMALL)

    def close(self, array):
        with contextlib.suppress(PublishUncertainError):
            array.close()

    def act(self, array, model, action, disk):
        items, start, durable, _ = model
        kind, new, number = action
        if kind == "truncate":
            index = int(number * (array.end + 1))
            array.truncate_front(index)
            return items, max(start, index), durable, []
        if kind == "sync":
            array.sync()
            return items, start, len(items), []
        if kind == "append":
            assert array.append(content(new[0])) == len(items)
        else:
            if kind == "fails":
                disk.fail("sync", skip=number)
            if kind == "full":
                disk.room_bytes = number * 1000
            try:
                assert array.append_many([content(item) for item in new]) == len(items)
                if kind == "fails" and self.sync == "none":
                    array.sync()
            except PublishUncertainError:
                return items, start, durable, new
            except QueueError:
                return model
            finally:
                disk.mend()
        flushed = self.sync == "each" or (self.sync == "batch" and kind != "append")
        items = [*items, *new]
        return items, start, len(items) if flushed else durable, []

    def check(self, array, model, action):
        items, least_start, durable, uncertain = model or ([], 0, 0, [])
        kind, new, number = action if action and len(action) == 3 else ("", [], 0)
        if kind == "truncate":
            least_start = max(least_start, int(number * (len(items) + 1)))
        known = items + (uncertain or new)
        start, end = array.start, array.end
        assert start <= least_start, f"starts at {start}, and {least_start} was asked for at most"
        assert durable <= end <= len(known), f"ends at {end}, not in {durable} to {len(known)}"
        assert not array.recovery.items_damaged, array.recovery
        assert array.get_many(start, 10_000) == [content(item) for item in known[start:end]]
        return known[:end], start, end, []

    def use(self, array, model):
        items, start, _, _ = model
        new = [(0, 900)] * 12
        assert array.append_many([content(item) for item in new]) == len(items)
        array.sync()
        index = max(start, len(items) - 1)
        array.truncate_front(index)
        return [*items, *new], index, len(items) + len(new), []


def content(item):
    """The bytes of an item."""
    number, size = item
    return (b"%d " % number * size)[:size]


@pytest.mark.parametrize("sync", ["batch", "none", "each"])
@pytest.mark.parametrize("seed", range(PLANS))
def test_an_array_keeps_its_promises_through_any_crash(memory_path, monkeypatch, sync, seed):
    """What was flushed is there unchanged, and of the rest a prefix, whatever a crash leaves."""
    # Opening looks at 8 unflushed pages at most, which these small ones soon are.
    monkeypatch.setattr("memq.bigqueue.recovery.MAX_SCAN_PAGES", 1000)
    assert explore(ArrayUnderTest(sync), seed, memory_path) > 20


def test_a_flush_that_failed_leaves_nothing_for_a_later_power_cut(memory_path):
    """What opening shows after a failed flush stays so, though the device may hold more."""
    for disk in disks(memory_path, 30):
        array = BigArray(disk.root / "array", sync="batch", **SMALL)
        array.append_many([b"kept"])
        disk.fail("sync", skip=1)  # the data page is flushed, the index page may be written
        with pytest.raises(PublishUncertainError):
            array.append_many([b"in doubt"])
        array.close()
        with BigArray(disk.root / "array") as again:
            shown = again.get_many(0, 9)
        disk.crash()
        with BigArray(disk.root / "array") as after:
            assert after.get_many(0, 9) == shown


def test_an_opening_that_failed_is_done_again_in_whole(memory_path):
    """An opening that cannot flush what it repaired leaves the next one to do so."""
    for seed, disk in enumerate(disks(memory_path, 60)):
        array = BigArray(disk.root / "array", sync="none", **SMALL)
        array.append_many([b"kept"])
        array.sync()
        array.append_many([b"x" * 900] * 12)
        disk.kill()
        disk.fail("sync", skip=seed % 4)
        with contextlib.suppress(QueueError):
            BigArray(disk.root / "array").close()
        disk.kill()
        with BigArray(disk.root / "array") as again:
            shown = again.get_many(0, 99)
            disk.crash()
        with BigArray(disk.root / "array") as after:
            assert after.get_many(0, 99) == shown


def test_a_position_that_was_flushed_is_not_lost(memory_path):
    """An item that was taken durably is not given again after a power cut."""
    for disk in disks(memory_path, 30):
        queue = BigQueue(disk.root / "queue", sync="each", **SMALL)
        queue.enqueue_many([b"%d" % number for number in range(20)])
        for number in range(5):
            assert queue.dequeue() == b"%d" % number
        disk.crash()
        with BigQueue(disk.root / "queue") as again:
            assert again.dequeue_many(99) == [b"%d" % number for number in range(5, 20)]


def test_pages_that_a_killed_process_made_are_durable_once_they_are_used(memory_path):
    """Items on a page file whose maker died before it synced the name survive a power cut."""
    for seed, disk in enumerate(disks(memory_path, 60)):
        array = BigArray(disk.root / "array", sync="batch", **SMALL)
        array.append_many([b"x" * 3000])
        disk.cut_after(seed % 12, power=False)
        with contextlib.suppress(PowerCut):
            array.append_many([b"y" * 3000] * 4)
        disk.kill()
        again = BigArray(disk.root / "array", sync="batch", **SMALL)
        again.append_many([b"z" * 3000])
        held = again.get_many(0, 99)
        disk.crash()
        with BigArray(disk.root / "array") as after:
            assert after.get_many(0, 99) == held


def test_a_queue_whose_maker_was_killed_is_durable_once_it_is_used(memory_path):
    """What a killed process made and did not sync, the next one makes durable before it uses it."""
    for seed, disk in enumerate(disks(memory_path, 150)):
        disk.cut_after(seed % 25, power=False)
        with contextlib.suppress(PowerCut):
            BigQueue(disk.root / "queue", sync="each", **SMALL)
        disk.kill()
        queue = BigQueue(disk.root / "queue", sync="each", **SMALL)
        queue.enqueue_many([b"0", b"1", b"2"])
        assert queue.dequeue() == b"0"
        disk.crash()
        with BigQueue(disk.root / "queue") as again:
            assert again.dequeue_many(9) == [b"1", b"2"]
