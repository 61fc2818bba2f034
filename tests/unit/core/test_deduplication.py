"""The deduplication window."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core import deduplication as dedup
from memq.core.deduplication import BatchRef, DeduplicationWindow
from memq.core.format.batch import ProducerRun
from memq.errors import ProducerFencedError, SequenceConflictError, UnavailableError

BATCH = BatchRef(0, 7, "batch")


def run(first: int, last: int, producer: str = "p", epoch: int = 0) -> ProducerRun:
    return ProducerRun(producer, epoch, first, last, last - first + 1, 0)


def window_with(*runs: ProducerRun, now_ms: int = 0) -> DeduplicationWindow:
    window = DeduplicationWindow(1_000)
    for each in runs:
        window.publish([each], BATCH, now_ms)
    return window


def test_what_is_settled_stays_settled(monkeypatch) -> None:
    """A run that is published late, below what was folded, makes nothing acceptable again."""
    monkeypatch.setattr(dedup, "MAX_INTERVALS", 3)
    window = window_with(*(run(s, s) for s in (10, 20, 30, 40, 50)), run(0, 0))
    for sequence in (1, 11, 20):
        with pytest.raises(SequenceConflictError, match="not above 20"):
            window.is_published("p", 0, sequence)


def state_of(window: DeduplicationWindow, now_ms: int) -> dict[str, object]:
    """All that a window remembers, in the order in which it would forget."""
    window.expire(now_ms)
    return {
        name: (
            producer.epoch,
            producer.published.starts,
            producer.published.ends,
            producer.floor,
            producer.next_sequence,
            list(producer.recent),
            producer.touched_ms,
        )
        for name, producer in window._producers.items()
    }


@st.composite
def histories(draw) -> list[tuple[list[ProducerRun], BatchRef, int]]:
    """Batches of one write partition in the order of sealing, in up to three read partitions."""
    batches = []
    now_ms, offsets, following = 0, [0, 0, 0], {}
    for number in range(draw(st.integers(1, 30))):
        now_ms += draw(st.integers(1, 400))
        partition = draw(st.integers(0, 2))
        runs = []
        for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
            epoch, first = following.get(name, (0, 0))
            if draw(st.booleans()) and draw(st.booleans()):
                epoch, first = epoch + 1, 0
            first += draw(st.sampled_from([0, 0, 0, 1, 2]))
            last = first + draw(st.integers(0, 3))
            following[name] = (epoch, last + 1)
            runs.append(run(first, last, name, epoch))
        place = BatchRef(partition, offsets[partition], f"{number:012x}")
        offsets[partition] += 1
        batches.append((runs, place, now_ms))
    return batches


@given(histories(), st.data())
def test_rebuilt_window_does_not_depend_on_the_order(batches, data) -> None:
    """In whatever order the same notifications come, the window is that of the live owner."""
    live, rebuilt = DeduplicationWindow(2_000), DeduplicationWindow(2_000)
    for runs, place, now_ms in batches:
        live.publish(runs, place, now_ms)
    for runs, place, now_ms in data.draw(st.permutations(batches)):
        rebuilt.publish(runs, place, now_ms)
    now_ms = batches[-1][2] + data.draw(st.integers(0, 2_500))
    assert state_of(rebuilt, now_ms) == state_of(live, now_ms)


def fill(window: DeduplicationWindow, count: int, now_ms: int = 0, *, every_ms: int = 0) -> None:
    """Publish a Message of each of so many producers, as a notification tells of it."""
    for number in range(count):
        batch = BatchRef(0, number, f"{number:032x}")
        window.publish([run(0, 0, f"fn-{number:033x}")], batch, now_ms + number * every_ms)


def known(window: DeduplicationWindow, count: int) -> int:
    return sum(window.is_published(f"fn-{number:033x}", 0, 0) for number in range(count))


def test_memory_of_a_producer_is_small(monkeypatch) -> None:
    """A producer takes a fifth of a KiB, as is really allocated; each is known all the while."""
    monkeypatch.setattr(dedup, "MAX_UNPACKED", 1_000)
    tracemalloc.start()
    window = DeduplicationWindow(86_400_000)
    fill(window, 20_000)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    unpacked = dedup.MAX_UNPACKED * 2_000
    assert taken - unpacked < window._packed_bytes < 20_000 * 256
    window.expire(86_400_000)
    assert known(window, 20_000) == 20_000


def test_full_window_turns_new_producers_away_until_others_are_older(monkeypatch) -> None:
    """At the bound a new producer is refused, retriably; those that are known go on."""
    monkeypatch.setattr(dedup, "MAX_UNPACKED", 1)
    monkeypatch.setattr(dedup, "MAX_BYTES", 800)
    window = DeduplicationWindow(1_000)
    fill(window, 5, every_ms=100)
    with pytest.raises(UnavailableError, match=r"5 producers of the last 1s .* 800 is its limit"):
        window.is_published("new", 0, 0)
    assert known(window, 5) == 5
    assert not window.is_published("fn-" + "0" * 33, 0, 1)
    assert window.expire(1_201) == 3
    assert not window.is_published("new", 0, 0)
    assert repr(window) == "<DeduplicationWindow [2 producers | 1000 ms]>"


def test_gaps_of_known_producers_are_bounded_too(monkeypatch) -> None:
    """At twice the bound known producers are refused as well, but for what is published."""
    monkeypatch.setattr(dedup, "MAX_UNPACKED", 1)
    window = window_with(*(run(s, s, "a") for s in range(0, 200, 2)), run(0, 0, "b"))
    monkeypatch.setattr(dedup, "MAX_BYTES", window._packed_bytes // 2)
    with pytest.raises(UnavailableError, match="dedup_window"):
        window.is_published("b", 0, 1)
    assert window.is_published("b", 0, 0)


def test_rebuild_that_is_too_large_accepts_nothing_that_it_left_out(monkeypatch) -> None:
    """A window made longer names more producers than fit: unknown ones wait until it has passed."""
    monkeypatch.setattr(dedup, "MAX_UNPACKED", 1)
    monkeypatch.setattr(dedup, "MAX_BYTES", 800)
    window = DeduplicationWindow(1_000)
    fill(window, 50, every_ms=10)
    assert len(window) < 10
    with pytest.raises(UnavailableError):
        window.is_published(f"fn-{49:033x}", 0, 0)
    window.expire(1_300)  # all that were kept are older now, and one that was left out is not
    assert len(window) == 0
    with pytest.raises(UnavailableError):
        window.is_published(f"fn-{49:033x}", 0, 0)
    window.expire(1_490)  # the last of those is as old as the window now
    with pytest.raises(UnavailableError):
        window.is_published(f"fn-{49:033x}", 0, 0)
    window.expire(1_491)
    assert not window.is_published(f"fn-{49:033x}", 0, 0)


def test_a_run_that_changes_nothing_leaves_those_behind_it(monkeypatch) -> None:
    """A fenced producer in a notification, or one without room, does not hide the others in it."""
    monkeypatch.setattr(dedup, "MAX_UNPACKED", 1)
    window = window_with(run(0, 0, "known"))
    window.admit("fenced", 1, 0, now_ms=0)
    window.publish([run(0, 9, "fenced"), run(1, 4, "known")], BATCH, 0)
    assert window.is_published("known", 0, 4)
    window.publish([run(0, 0, "other")], BATCH, 0)  # it packs another one
    monkeypatch.setattr(dedup, "MAX_BYTES", window._packed_bytes)
    window.publish([run(0, 9, "no room"), run(5, 7, "known"), run(1, 1, "other")], BATCH, 500)
    assert window.is_published("known", 0, 7)
    assert window.is_published("other", 0, 1)
    assert len(window) == 3


class Known:
    """All that is to be known of a producer, in the plainest way."""

    def __init__(self, epoch: int, now_ms: int) -> None:
        self.epoch, self.touched_ms = epoch, now_ms
        self.published: set[int] = set()
        self.next: int | None = None
        self.places: dict[int, BatchRef] = {}


EVENTS = st.tuples(
    st.sampled_from(["admit", "admit", "publish", "publish", "rewind", "expire"]),
    st.integers(0, 2),  # epoch
    st.integers(0, 20),  # sequence
    st.integers(0, 3),  # how many follow it
    st.integers(0, 400),  # milliseconds since the event before
)


@given(st.lists(st.tuples(st.sampled_from("ab"), EVENTS), max_size=40), st.integers(1, 2))
def test_window_is_what_happened_to_each_producer(events, unpacked) -> None:
    """Every answer follows from the plain history of that producer's current epoch alone."""
    window, told = DeduplicationWindow(1_000), {}
    now_ms = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "MAX_UNPACKED", unpacked)
        patch.setattr(dedup, "MAX_PACKED_RECENT", dedup.MAX_RECENT)
        for number, (name, (event, epoch, sequence, more, after_ms)) in enumerate(events):
            now_ms += after_ms
            it = told.get(name)
            if event == "admit" and (it is None or epoch >= it.epoch):
                window.admit(name, epoch, sequence, now_ms)
                if it is None or it.epoch < epoch:
                    it = told[name] = Known(epoch, now_ms)
                it.next = sequence + 1
            elif event == "publish":
                batch, last = BatchRef(0, number, f"{number:04}"), sequence + more
                window.publish([run(sequence, last, name, epoch)], batch, now_ms)
                if it is None or it.epoch < epoch:
                    it = told[name] = Known(epoch, now_ms)
                if it.epoch == epoch:
                    it.touched_ms = now_ms
                    it.published |= {*range(sequence, last + 1)}
                    it.next = max(it.next or 0, last + 1)
                    it.places = dict.fromkeys(range(sequence, last + 1), batch) | it.places
            elif event == "rewind":
                window.rewind(name, epoch, sequence)
                if it is not None and it.epoch == epoch:
                    it.next = sequence if it.next is None else min(it.next, sequence)
            elif event == "expire":
                old = {each for each, had in told.items() if had.touched_ms < now_ms - 1_000}
                assert window.expire(now_ms) == len(old)
                told = {each: had for each, had in told.items() if each not in old}
            check_against(window, told)


def check_against(window: DeduplicationWindow, told: dict[str, Known]) -> None:
    """Compare all answers of a window with what is to be known."""
    assert len(window) == len(told)
    for name, epoch in itertools.product("ab", range(3)):
        it = told.get(name)
        current = it is not None and it.epoch == epoch
        assert window.next_sequence(name, epoch) == (it.next if current else None)
        for sequence in range(25):
            if it is not None and epoch < it.epoch:
                with pytest.raises(ProducerFencedError):
                    window.is_published(name, epoch, sequence)
            else:
                published = current and sequence in it.published
                assert window.is_published(name, epoch, sequence) == published
            place = it.places.get(sequence) if current else None
            assert window.batch_of(name, epoch, sequence) == place
