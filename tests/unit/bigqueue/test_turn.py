from __future__ import annotations

import threading

from memq.bigqueue.turn import Turn


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


def test_the_wish_is_cleared_when_the_turn_is_passed():
    """Passing on clears the note, so the owner yields once for each wish."""
    turn = Turn()
    turn.wanted = True
    with turn:
        pass

    assert turn.wanted is False
