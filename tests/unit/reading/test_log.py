"""Where reading begins."""

from __future__ import annotations

from datetime import UTC, datetime

from memq.reading.start import time_ms


def test_times_round_down():
    """A time between two milliseconds counts as the earlier, so that nothing is skipped."""
    assert time_ms(datetime(1970, 1, 1, 0, 0, 1, 1_999, tzinfo=UTC)) == 1_001
    assert time_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)) == -1
