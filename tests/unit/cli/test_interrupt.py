"""Ctrl-C, wherever it falls."""

from __future__ import annotations

from memq.cli.main import _is_interrupt


def test_interrupt_is_known_behind_the_error_of_a_lock():
    """A Ctrl-C in a wait for a lock counts as one; any other RuntimeError stays an error."""
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")
    except RuntimeError as exc:
        hidden = exc
    assert _is_interrupt(hidden)
    assert _is_interrupt(KeyboardInterrupt())
    assert not _is_interrupt(RuntimeError("a bug"))
