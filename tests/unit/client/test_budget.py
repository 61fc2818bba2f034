"""The bound on memory that writers share."""

from __future__ import annotations

import threading

from memq.client.producer.memory import ByteBudget


def test_never_more_than_the_limit():
    """Bytes are taken while they last."""
    budget = ByteBudget(10)
    assert budget.take(6)
    assert not budget.take(5)
    assert budget.take(4)
    assert budget.used_bytes == 10


def test_waiters_are_woken_when_their_size_is_free():
    """Only those for whom there is room are woken, once."""
    budget = ByteBudget(10)
    budget.take(10)
    woken = []
    budget.when_free(3, lambda: woken.append(3))
    budget.when_free(8, lambda: woken.append(8))
    budget.give(5)
    assert woken == [3]
    budget.give(5)
    budget.give(0)
    assert woken == [3, 8]


def test_waiter_that_need_not_wait_is_woken_at_once():
    """With room, or after the close, there is nothing to wait for."""
    budget = ByteBudget(10)
    woken = []
    budget.when_free(10, lambda: woken.append("room"))
    budget.close()
    budget.when_free(11, lambda: woken.append("closed"))
    assert woken == ["room", "closed"]


def test_close_wakes_everybody():
    """Nobody waits for a budget that is closed."""
    budget = ByteBudget(10)
    budget.take(10)
    event = threading.Event()
    budget.when_free(1, event.set)
    budget.close()
    assert event.is_set()


def test_forgotten_waiter_is_not_woken():
    """Who gave up is not woken; bound methods are told apart by what they are bound to."""
    budget = ByteBudget(10)
    budget.take(10)
    first, second = threading.Event(), threading.Event()
    budget.when_free(1, first.set)
    budget.when_free(1, second.set)
    budget.forget(first.set)
    assert repr(budget) == "<ByteBudget 10 of 10 bytes used | 1 waiting>"
    budget.give(10)
    assert (first.is_set(), second.is_set()) == (False, True)
