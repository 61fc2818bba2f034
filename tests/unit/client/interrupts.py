"""Calls that a Ctrl-C falls into."""

from __future__ import annotations

import gc
import sys
import time

from memq.errors import MemqError


def interrupted(function, at, error=KeyboardInterrupt):
    """Call a function, interrupted at one of its steps; whether it had so many."""

    def handler():
        time.sleep(0.002)  # the loop gets as far as it can, which only makes this harder
        raise error

    try:
        left = interrupted_by(handler, function, at)
    except error:
        return True
    except MemqError as exc:
        # What is no interrupt to Python may come as the cause of another error.
        assert isinstance(exc.__context__, error)
        return True
    assert left > 0, f"the interrupt at step {at} was swallowed"
    return False


def interrupted_by(handler, function, at):
    """Call a function, and a signal's handler at one of its steps; return the steps that it lacked.

    Python looks for signals where a function of its own begins, and after each call of one in C
    (and where a loop turns back, and after a call of a class, which a profiler is not told of).
    """
    left = at

    def step(_frame, event, _arg):
        nonlocal left
        if event not in {"call", "c_return"}:
            return
        left -= 1
        if left == 0:
            sys.setprofile(None)
            handler()

    gc.disable()  # what it calls would swallow the interrupt, as Python has it
    sys.setprofile(step)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return left
