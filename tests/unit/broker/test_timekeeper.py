"""What a broker saves of its time covers every watermark that it told, and little more."""

import asyncio

import pytest

from memq.broker.timekeeper import Timekeeper
from memq.core.clock import AHEAD_MS, BrokerClock, ClockReading, SavedTimes
from memq.errors import QueueError

START = SavedTimes(running_ms=5_000, wall_ms=1_000_000)
TOLD_MS = 1_009_000  # by another broker


class Disk:
    """Keeps what is saved, or refuses."""

    def __init__(self):
        self.saved, self.full = [], False

    async def save(self, times):
        if self.full:
            raise QueueError("cannot save the time: No space left on device")
        self.saved.append(times)


def kept(disk):
    """A Timekeeper of a broker that goes on from `START`."""
    return Timekeeper(BrokerClock(lambda: 5.0, lambda: START.wall_ms, START), START, disk.save)


async def test_the_time_is_saved_before_a_watermark_is_told_and_once_a_second():
    """Any number of watermarks within the second that was saved ahead cost one save."""
    disk = Disk()
    times = kept(disk)
    await asyncio.gather(
        *(times.promise(ClockReading(6_000, 1_000_000 + ms)) for ms in range(0, 999, 9))
    )
    assert disk.saved == [SavedTimes(6_000, 1_000_009 + AHEAD_MS)]
    await times.promise(ClockReading(7_100, 1_001_010))
    assert disk.saved[1:] == [SavedTimes(7_100, 1_001_010 + AHEAD_MS)]


async def test_a_close_saves_no_less_and_no_more_than_was_told():
    """The next life begins behind the last watermark, though the clock went back; no later."""
    disk = Disk()
    times = kept(disk)
    await times.promise(ClockReading(6_000, 1_000_500))
    times.told(1_000_500)
    times.told(1_000_400)
    await times.close(ClockReading(6_200, 1_000_300))
    assert disk.saved[-1] == SavedTimes(6_200, 1_000_500)
    await times.close(ClockReading(6_400, 1_000_700))
    assert disk.saved[-1] == SavedTimes(6_400, 1_000_700)


async def test_what_another_broker_told_is_saved_here_before_it_is_told_again():
    """A watermark that came with a write partition, later than the clock, is saved here as well."""
    disk = Disk()
    times = kept(disk)
    times.told(TOLD_MS)
    await times.promise(ClockReading(6_000, 1_000_500))
    assert disk.saved == [SavedTimes(6_000, TOLD_MS)]
    times = kept(disk)
    times.told(TOLD_MS)
    await times.keep(ClockReading(6_000, 1_000_500))
    assert disk.saved[1:] == [SavedTimes(6_000, TOLD_MS)]


@pytest.mark.parametrize("how", ["promise", "keep", "close"])
async def test_a_time_that_was_not_saved_is_not_taken_for_saved(how):
    """Whoever failed to save it holds nobody else up."""
    disk = Disk()
    times = kept(disk)
    disk.full = True
    with pytest.raises(QueueError):
        await getattr(times, how)(ClockReading(6_000, 1_000_500))
    assert times.saved == START
    disk.full = False
    await asyncio.wait_for(times.keep(ClockReading(6_100, 1_000_600)), 10)
    assert disk.saved == [SavedTimes(6_100, 1_000_600)]


# -- of a topic whose write partitions came from another broker -------------------------------
