"""How much is written to each write partition, from counters."""

import pytest

from memq.broker.membership import KNOWN_S, TrafficMeter

ONE, TWO = ("t", 0), ("t", 1)


def test_a_steady_rate_is_found():
    """Traffic that does not change is measured as what it is, after a few minutes."""
    meter = TrafficMeter()
    for second in range(0, 600, 10):
        found = meter.measure({ONE: 1_000 * second, TWO: 0}, float(second))
    assert found == {ONE: pytest.approx(1_000, rel=0.001), TWO: 0}


def test_unknown_is_not_zero():
    """Nothing is told of what began just now; and then what it is, not what it grows to."""
    meter = TrafficMeter()
    for second in range(0, 100, 5):
        found = meter.measure({ONE: 1_000 * second}, float(second))[ONE]
        assert found == (None if second < KNOWN_S else pytest.approx(1_000))


def test_what_comes_in_unequal_steps_is_weighed_by_time():
    """A look at a moment of much traffic says no more than that moment."""
    meter = TrafficMeter()
    meter.measure({ONE: 0}, 0.0)
    meter.measure({ONE: 10_000}, 0.1)
    assert meter.measure({ONE: 10_000}, KNOWN_S)[ONE] == pytest.approx(10_000 / KNOWN_S, rel=0.3)
