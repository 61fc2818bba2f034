"""Retries: attempts until a deadline, with full jitter, and what is said meanwhile."""

import dataclasses
import logging

import pytest

from memq.errors import InvalidRequestError, RequestTimeoutError, UnavailableError
from memq.runtime.retry import BROKER_BACKOFF, TELL_AFTER_S, TELL_EVERY_S, Retry, RetryLog
from memq.runtime.system import SYSTEM

BASE_S, CAP_S = BROKER_BACKOFF


class Clock:
    """A clock that a test moves, with no randomness."""

    def __init__(self):
        self.now_s = 100.0
        self.runtime = dataclasses.replace(SYSTEM, mono_s=lambda: self.now_s, random=lambda: 1.0)


def test_waits_grow_and_end_with_the_deadline():
    """Each failure waits longer; when the next wait would pass the deadline, the error comes."""
    clock = Clock()
    retry = Retry(1.0, clock.runtime)
    error = UnavailableError("down")
    waits = []
    for _ in range(4):
        waits.append(retry.after(error))
        clock.now_s += waits[-1]
    with pytest.raises(UnavailableError, match="down"):
        retry.after(error)
    assert waits == [BASE_S, 2 * BASE_S, 4 * BASE_S, 8 * BASE_S]
    assert retry.failures == 5
    assert retry.left_s == pytest.approx(1.0 - sum(waits))


def test_what_will_not_pass_is_raised_at_once():
    """An error that is not retriable ends the call, unless the caller knows better."""
    retry = Retry(10.0, Clock().runtime)
    with pytest.raises(InvalidRequestError):
        retry.after(InvalidRequestError("no"))
    assert retry.after(InvalidRequestError("no"), retriable=True) > 0
    with pytest.raises(UnavailableError):
        retry.after(UnavailableError("down"), retriable=False)


def test_long_tries_are_told_now_and_then(caplog):
    """A call says that it is still being tried after a while, and not at every attempt."""
    clock, error = Clock(), UnavailableError("down")
    retry = Retry(1_000.0, clock.runtime, log=RetryLog(logging.getLogger("memq.test")))
    told = []
    for wait_s in (0, TELL_AFTER_S, 0, TELL_EVERY_S):
        clock.now_s += wait_s
        retry.after(error)
        told.append(len(caplog.records))
    assert told == [0, 1, 1, 2]
    assert caplog.records[0].getMessage() == "down; trying again for up to 997 s"


def test_no_attempt_begins_at_the_deadline():
    """One that could only begin as the time is up is none; it is told what went wrong at once."""
    error = UnavailableError("down")
    assert Retry(BASE_S * 1.01, Clock().runtime).after(error) == BASE_S
    clock = Clock()
    late = Retry(1.0, clock.runtime)
    clock.now_s += 1.0
    for retry, at_once in ((Retry(BASE_S, Clock().runtime), False), (late, True)):
        with pytest.raises(UnavailableError, match="down"):
            retry.after(error, at_once=at_once)


def test_the_last_reason_is_told_and_not_the_first():
    """Of several errors that say more than that the time was up, the newest is the news."""
    clock = Clock()
    retry = Retry(10.0, clock.runtime)
    retry.after(RequestTimeoutError("no answer"))
    retry.after(UnavailableError("first"))
    retry.after(UnavailableError("second"))
    clock.now_s += 20
    with pytest.raises(UnavailableError, match="second"):
        retry.after(RequestTimeoutError("no answer"))
