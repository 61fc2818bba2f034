"""Ctrl-C, wherever it falls."""

from __future__ import annotations

from memq.cli.main import _interrupt_behind


def test_interrupt_is_known_behind_the_error_of_a_lock():
    """A Ctrl-C in a wait for a lock counts as one; any other RuntimeError stays an error."""
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")
    except RuntimeError as exc:
        hidden = exc
    assert _interrupt_behind(hidden) is hidden.__context__
    alone = KeyboardInterrupt()
    assert _interrupt_behind(alone) is alone
    assert _interrupt_behind(RuntimeError("a bug")) is None
