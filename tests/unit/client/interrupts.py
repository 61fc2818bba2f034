"""Calls that a Ctrl-C, or another thread, falls into."""

import gc
import itertools
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


def before_each_line(make):
    """Run a call, and another one before one of its lines, for each line; give what came of each.

    `make` gives the two calls, and where it will stand what comes of them; all new for each line.
    """
    for line in itertools.count(1):
        call, other, found = make()
        if not _before_line(line, call, other):
            return
        yield found


def _before_line(number, call, other):
    left = number

    def trace(_frame, event, _arg):
        nonlocal left
        left -= event == "line"
        if event == "line" and left == 0:
            other()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return left <= 0
