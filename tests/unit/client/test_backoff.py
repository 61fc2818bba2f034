"""Back-off with full jitter."""

from __future__ import annotations

from memq.client.backoff import BACKOFF_BASE_S, BACKOFF_CAP_S, full_jitter_s


def test_bound_doubles_up_to_the_cap():
    """The longest wait doubles with each attempt until the cap."""
    bounds = [full_jitter_s(attempt, lambda: 1.0) for attempt in range(8)]
    assert bounds[:3] == [BACKOFF_BASE_S, 2 * BACKOFF_BASE_S, 4 * BACKOFF_BASE_S]
    assert bounds[-1] == full_jitter_s(10_000, lambda: 1.0) == BACKOFF_CAP_S


def test_any_wait_below_the_bound_can_come():
    """The jitter is full: down to no wait at all."""
    assert full_jitter_s(5, lambda: 0.0) == 0.0
    assert full_jitter_s(0, lambda: 0.5) == BACKOFF_BASE_S / 2
