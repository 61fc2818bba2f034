"""The window of an audit."""

from __future__ import annotations

import pytest

from memq.client.audit.audit import Window


@pytest.mark.parametrize(
    ("window", "held"),
    [
        (Window(None, None), [0, 5, 9]),
        (Window(5, None), [5, 9]),
        (Window(None, 5), [0]),
        (Window(5, 9), [5]),
    ],
)
def test_window_holds_its_start_and_not_its_end(window, held):
    """Windows that meet hold each time once."""
    assert [time_ms for time_ms in (0, 5, 9) if window.holds(time_ms)] == held


def test_window_widens_around_times():
    """A widened window has room on both sides of all that was asked for; no bound stays none."""
    assert Window(100, 200).widened(10, [50, 150, 300]) == Window(40, 310)
    assert Window(5, 6).widened(10) == Window(0, 16)
    assert Window(None, None).widened(10, [50]) == Window(None, None)
