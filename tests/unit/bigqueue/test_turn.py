from __future__ import annotations

import threading

import pytest

from memq.core.bigqueue.turn import Turn


def test_one_thread_at_a_time():
    """Unprotected read-modify-write inside the section never loses an update."""
    turn = Turn()
    total = [0]

    def add():
        for _ in range(20_000):
            with turn:
                seen = total[0]
                total[0] = seen + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert total[0] == 80_000


def test_a_waiting_thread_gets_in_after_a_long_section():
    """A thread that finds the lock taken for long sleeps on it, and wakes when it is released."""
    turn = Turn()
    entered = threading.Event()

    def enter():
        with turn:
            entered.set()

    turn.try_acquire()
    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.05)
    turn.release()
    thread.join(10)

    assert entered.is_set()


def test_an_error_inside_releases():
    """Leaving the section by an exception releases the lock."""
    turn = Turn()
    with pytest.raises(KeyError), turn:
        {}["missing"]

    assert turn.try_acquire(False)


def test_the_wish_is_cleared_when_the_turn_is_passed():
    """Passing on clears the note, so the owner yields once for each wish."""
    turn = Turn()
    turn.wanted = True
    with turn:
        pass

    assert turn.wanted is False
