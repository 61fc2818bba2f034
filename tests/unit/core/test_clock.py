"""The broker's clock, when the machine's wall clock steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.clock import AHEAD_MS, CONFIRM_MS, DRIFT_MS, MOST_DOWN_MS, BrokerClock, SavedTimes

DAY_MS = 86_400_000
NOON_MS = 1_800_000_000_000


class Machine:
    """Its clocks: time passes on both, and the wall clock can be set."""

    def __init__(self) -> None:
        self.mono_ms, self.wall_ms = 5_000, NOON_MS
        self.clock = self.start(SavedTimes(0, 0))

    def start(self, saved: SavedTimes) -> BrokerClock:
        self.clock = BrokerClock(lambda: (self.mono_ms + 0.5) / 1000, lambda: self.wall_ms, saved)
        return self.clock

    def wait(self, ms: int) -> None:
        self.mono_ms += ms
        self.wall_ms += ms
        self.clock.look()

    def step(self, ms: int) -> None:
        self.wall_ms += ms
        self.clock.look()


@pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS, 600, -40 * 365 * DAY_MS])
def test_step_that_is_taken_back_within_a_minute_leaves_no_trace(step_ms) -> None:
    """Until a step has stood for a minute, time runs on as if it were not there."""
    machine = Machine()
    machine.step(step_ms)
    for _ in range(59):
        machine.wait(1_000)
    assert machine.clock() == (59_000, NOON_MS + 59_000)
    machine.step(-step_ms)
    machine.wait(CONFIRM_MS)
    assert machine.clock() == (119_000, NOON_MS + 119_000)


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(-(10**12), 10**12)), max_size=40))
def test_running_time_is_the_monotonic_clock_whatever_the_wall_clock_does(steps) -> None:
    """No step is ever seen in running time."""
    machine = Machine()
    for wait_ms, step_ms in steps:
        machine.wait(wait_ms)
        machine.step(step_ms)
    assert machine.clock().mono_ms == sum(wait_ms for wait_ms, _ in steps)


@pytest.mark.parametrize("behind_ms", [-5_000, 0, 1, 90_000])
@pytest.mark.parametrize("step_ms", [0, 3_600_000, -3_600_000])
def test_running_time_catches_up_and_wall_time_does_not_notice(behind_ms, step_ms) -> None:
    """A broker that joins has the furthest running time; its wall clock is judged as before."""
    machine, beside = Machine(), Machine()
    for each in (machine, beside):
        each.step(step_ms)
        each.wait(CONFIRM_MS // 2)
    machine.clock.catch_up(machine.clock().mono_ms + behind_ms)
    for wait_ms in (0, 1_000, CONFIRM_MS // 2 - 1_001, 1, 1):
        for each in (machine, beside):
            each.wait(wait_ms)
        assert machine.clock().wall_ms == beside.clock().wall_ms
        assert machine.clock().mono_ms == beside.clock().mono_ms + max(0, behind_ms)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_drift_and_what_a_step(sign) -> None:
    """The difference that NTP may leave is taken over at once, a millisecond more only later."""
    machine = Machine()
    machine.step(sign * DRIFT_MS)
    assert machine.clock().wall_ms == machine.wall_ms
    assert "in step" in repr(machine.clock)
    machine.step(sign * (DRIFT_MS + 1))
    assert machine.clock().wall_ms == machine.wall_ms - sign * (DRIFT_MS + 1)
    assert f"doubts {sign * (DRIFT_MS + 1)} ms" in repr(machine.clock)
    machine.wait(CONFIRM_MS - 1)
    assert machine.clock().wall_ms == machine.wall_ms - sign * (DRIFT_MS + 1)
    machine.wait(1)
    assert machine.clock().wall_ms == machine.wall_ms


@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_that_drifts_after_its_step_is_believed(sign) -> None:
    """It has stood by the step though not to the millisecond; a further step begins anew."""
    for further_ms, believed in ((DRIFT_MS, True), (DRIFT_MS + 1, False)):
        machine = Machine()
        machine.step(DAY_MS)
        machine.wait(CONFIRM_MS // 2)
        machine.step(sign * further_ms)
        machine.wait(CONFIRM_MS // 2)
        assert (machine.clock().wall_ms == machine.wall_ms) == believed
        machine.wait(CONFIRM_MS // 2)
        assert machine.clock().wall_ms == machine.wall_ms


@pytest.mark.parametrize(
    ("ahead_ms", "trusted"),
    [
        (-AHEAD_MS - DRIFT_MS - 1, False),
        (-AHEAD_MS - DRIFT_MS, True),
        (0, True),
        (MOST_DOWN_MS - 1, True),
        (MOST_DOWN_MS, False),
    ],
)
def test_what_a_clock_may_show_at_the_start(ahead_ms, trusted) -> None:
    """From a little before what was saved, which was ahead, to a day after it.

    Running time goes on from what was saved, without the time between.
    """
    machine = Machine()
    machine.wait(3)  # which is not counted: it starts anew
    machine.mono_ms, machine.wall_ms = 3, NOON_MS + ahead_ms
    clock = machine.start(SavedTimes(1_000, NOON_MS))
    assert clock() == (1_000, NOON_MS + (ahead_ms if trusted else 0))
    machine.wall_ms = 5  # of a broker that never ran any clock is right
    assert machine.start(SavedTimes(0, 0))() == (0, 5)
