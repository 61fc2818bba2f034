"""What a watcher announces, and what it stores of that when."""

from __future__ import annotations

import pytest

from airflow_provider_memq.triggers.watch import CONFIRM_S, REFRESH_S, TopicEnds, _from_json, _Watch

A, B = "a" * 16, "b" * 16


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def loaded(clock, announced=None):
    watch = _Watch(clock)
    watch.load(TopicEnds(A if announced else "", announced or {}))
    return watch


def store(watch, now="now"):
    """Write to the state store what should be written; returns it."""
    written = watch.to_store(now)
    watch.stored()
    return written


@pytest.mark.parametrize(
    ("announced", "ends", "new"),
    [
        ({}, {0: 0}, 0),
        ({}, {0: 3, 1: 2}, 5),
        ({0: 3}, {0: 3}, 0),
        ({0: 3}, {0: 5, 1: 1}, 3),
    ],
)
def test_news(clock, announced, ends, new):
    """News is what was not announced, in a new partition too."""
    assert loaded(clock, announced).news(TopicEnds(A, ends)) == new


@pytest.mark.parametrize(("end", "new"), [(9, 9), (12, 12), (2, 2), (0, 1)])
def test_a_topic_made_again_is_news(clock, end, new):
    """All of it is, whatever its ends are beside those of the one before."""
    watch = loaded(clock, {0: 9})

    assert watch.announce(TopicEnds(B, {0: end})) == new
    assert watch.news(TopicEnds(B, {0: end})) == 0


def test_what_was_announced_is_no_news(clock):
    """One event tells of all that is there; the next one only of what came after it."""
    watch = loaded(clock)

    assert watch.announce(TopicEnds(A, {0: 3})) == 3
    assert watch.news(TopicEnds(A, {0: 3})) == 0
    assert watch.announce(TopicEnds(A, {0: 5})) == 2


def test_the_position_is_stored_late(clock):
    """A triggerer that dies right after an event announces again: Airflow may not have it yet."""
    watch = loaded(clock)
    clock.now_s = CONFIRM_S
    watch.saw(TopicEnds(A, {0: 3}))
    watch.announce(TopicEnds(A, {0: 3}))

    assert store(watch) == {"head": {"0": 3}, "last_error": "", "last_poll": "now"}
    clock.now_s += CONFIRM_S
    assert store(watch) == {"position": {"0": 3}, "incarnation": A, "last_poll": "now"}


def test_the_last_event_of_some_is_stored_too(clock):
    """After a quiet minute the position is that of the last event, so that none comes again."""
    watch = loaded(clock)
    for end in (1, 2, 3):
        watch.announce(TopicEnds(A, {0: end}))
    stored = []
    for _ in range(2):
        clock.now_s += CONFIRM_S
        stored.append(store(watch).get("position"))

    assert stored == [{"0": 1}, {"0": 3}]


def test_a_busy_watcher_stores_its_position(clock):
    """However soon events follow each other: what is stored is half a minute old at most, and what
    was announced a moment ago never is.
    """
    watch = loaded(clock)
    announced, kept = {}, []
    for second in range(0, 200, 2):
        clock.now_s = 100.0 + second
        announced[second] = TopicEnds(A, {0: second + 1})
        watch.saw(announced[second])
        watch.announce(announced[second])
        position = store(watch).get("position")
        if position is not None:
            kept.append((second, position["0"] - 1))

    assert all(CONFIRM_S <= now - at <= 2 * CONFIRM_S + 2 for now, at in kept)
    assert len(kept) > 200 / (CONFIRM_S + 4)


def test_nothing_is_written_while_nothing_happens(clock):
    """The state store is written when something changed, and once a minute to show it is alive."""
    watch = loaded(clock, {0: 3})
    watch.saw(TopicEnds(A, {0: 3}))
    assert store(watch)

    clock.now_s = REFRESH_S - 1
    assert store(watch) == {}
    clock.now_s = REFRESH_S
    assert store(watch, "later") == {"last_poll": "later"}


def test_an_error_is_cleared(clock):
    """After a failure the next look that goes well says so."""
    watch = loaded(clock, {0: 3})
    watch.saw(TopicEnds(A, {0: 3}))
    store(watch)

    watch.complained()

    assert store(watch) == {"last_error": "", "last_poll": "now"}


@pytest.mark.parametrize(
    ("stored", "ends"),
    [(None, {}), ("x", {}), ({"0": 3, "1": 4}, {0: 3, 1: 4}), ({"a": 1, "0": "b", "1": 2}, {1: 2})],
)
def test_what_a_person_stored(stored, ends):
    """A state store that was edited by hand cannot stop the watcher."""
    assert _from_json(stored) == ends
