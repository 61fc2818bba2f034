"""The deduplication window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core import dedup
from memq.core.dedup import DedupWindow, Place
from memq.core.format.batch import ProducerRun
from memq.errors import ProducerFencedError, SequenceConflictError, UnavailableError

PLACE = Place(0, 7, "batch")


def run(first: int, last: int, producer: str = "p", epoch: int = 0) -> ProducerRun:
    return ProducerRun(producer, epoch, first, last, last - first + 1, 0)


def window_with(*runs: ProducerRun, now_ms: int = 0) -> DedupWindow:
    window = DedupWindow(1_000)
    for each in runs:
        window.publish([each], PLACE, now_ms)
    return window


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=40))
def test_window_knows_exactly_the_published_sequences(spans: list[tuple[int, int]]) -> None:
    """Whatever runs are published, in any order and overlapping, exactly their sequences are."""
    window = window_with(*(run(first, first + length) for first, length in spans))
    published = {s for first, length in spans for s in range(first, first + length + 1)}
    assert {s for s in range(80) if window.is_published("p", 0, s)} == published


@given(st.sets(st.integers(0, 300)))
def test_runs_are_merged_so_that_memory_is_bounded_by_gaps(sequences: set[int]) -> None:
    """Runs that touch become one: a producer costs one run for each gap, not for each Message."""
    window = window_with(*(run(s, s) for s in sequences))
    gaps = sum(1 for s in sequences if s - 1 not in sequences)
    producer = window._producers.get("p")
    assert (len(producer.firsts) if producer else 0) == gaps


def test_place_of_a_recent_repeat_is_known() -> None:
    """A repeat is answered with the place of the original while that is remembered."""
    window = window_with(run(0, 4))
    assert window.place("p", 0, 3) == PLACE
    assert window.place("p", 0, 5) is None
    assert window.place("other", 0, 3) is None


def test_lower_epoch_is_fenced_once_a_higher_one_is_admitted() -> None:
    """The first accepted Message of a new epoch shuts the old epoch out."""
    window = window_with(run(0, 4))
    window.admit("p", 1, 0, now_ms=0)
    with pytest.raises(ProducerFencedError, match=r"epoch 0 .* fenced by epoch 1"):
        window.is_published("p", 0, 5)
    assert not window.is_published("p", 1, 0)


def test_late_publish_of_a_fenced_epoch_is_not_mixed_in() -> None:
    """A Batch of the old epoch that is published late does not mark the new epoch's sequences."""
    window = DedupWindow(1_000)
    window.admit("p", 1, 0, now_ms=0)
    window.publish([run(0, 4, epoch=0)], PLACE, 0)
    assert not window.is_published("p", 1, 3)


def test_idle_producers_are_forgotten_after_the_window() -> None:
    """A producer that published nothing for longer than the window is forgotten, others stay."""
    window = window_with(run(0, 4, "old"), now_ms=0)
    window.publish([run(0, 4, "new")], PLACE, 900)
    assert window.expire(1_000) == 0
    assert window.expire(1_001) == 1
    assert not window.is_published("old", 0, 3)
    assert window.is_published("new", 0, 3)


def test_too_many_gaps_fold_the_oldest_run_and_refuse_what_is_below(monkeypatch) -> None:
    """With too many gaps old sequences are refused, and none of them is ever accepted again."""
    monkeypatch.setattr(dedup, "MAX_RUNS", 3)
    window = window_with(*(run(s, s) for s in (0, 10, 20, 30)))
    with pytest.raises(SequenceConflictError, match=r"sequence 0 .* not above 0"):
        window.is_published("p", 0, 0)
    assert window.is_published("p", 0, 10)
    assert not window.is_published("p", 0, 15)


def test_too_many_active_producers_turn_a_new_one_away(monkeypatch) -> None:
    """At the bound a new producer is refused, retriably, unless an old one is idle."""
    monkeypatch.setattr(dedup, "MAX_PRODUCERS", 2)
    window = window_with(run(0, 0, "a"), run(0, 0, "b"))
    with pytest.raises(UnavailableError, match="2 active producers"):
        window.is_published("c", 0, 0)
    window.publish([run(1, 1, "b")], PLACE, dedup.MIN_IDLE_MS)
    assert not window.is_published("c", 0, 0)
    assert repr(window).startswith("<DedupWindow [1 producers")


def test_ordered_topics_learn_which_sequence_comes_next() -> None:
    """The next sequence follows what was accepted, and falls back to the first that failed."""
    window = DedupWindow(1_000)
    assert window.next_sequence("p", 0) is None
    for sequence in range(5):
        window.admit("p", 0, sequence, now_ms=0)
    assert window.next_sequence("p", 0) == 5
    for sequence in (2, 3, 4):
        window.rewind("p", 0, sequence)
    assert window.next_sequence("p", 0) == 2
