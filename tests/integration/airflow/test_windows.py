"""Windows of time that retention has reached."""

import pytest

from airflow_provider_memq.operators.memq import MemqWindowRangesOperator
from memq.errors import ConfigError, OffsetOutOfRangeError
from tests.integration.airflow.here import RETENTION_S, TOPIC, spans


def window(start, end, **options):
    return MemqWindowRangesOperator(task_id="window", topic=TOPIC, start=start, end=end, **options)


async def half_removed(here):
    """Publish two Batches that retention removes and, much later, one that it does not.

    Returns:
        Times before the first Batch, before the last one, and after it.
    """
    begin = here.at(-1)
    await here.publish(2)
    here.later(RETENTION_S + 1)
    middle = here.at()
    await here.publish(1)
    assert await here.expire() == 2
    return begin, middle, here.at()


async def test_windows_that_meet_hold_each_batch_once(here):
    """The data intervals of three runs name all offsets of their time, none twice, at any time."""
    times = [here.at()]
    for _ in range(3):
        await here.publish(3)
        times.append(here.at())
    await here.publish(1)

    async def run(start, end):
        interval = {"data_interval_start": start, "data_interval_end": end}
        return spans(await here.run(window(None, None), **interval))

    for _ in range(2):
        found = [await run(*times[at : at + 2]) for at in range(3)]
        assert found == [[(0, 3)], [(3, 6)], [(6, 9)]]
    assert await run(times[0], times[3]) == [(0, 9)]
    with pytest.raises(ConfigError, match="CronDataIntervalTimetable"):
        await run(times[0], times[0])


async def test_a_window_that_retention_removed_is_refused(here):
    """All of it, or its beginning: the error says since when Batches are retained.

    Who asks for what retention has left gets it.
    """
    begin, middle, end = await half_removed(here)

    for until, left in ((middle, []), (end, [(2, 3)])):
        with pytest.raises(
            OffsetOutOfRangeError,
            match=r"'t' from .* to .*: of partition 0 .* since .*the window begin later: ",
        ):
            await here.run(window(begin, until))
        assert spans(await here.run(window(begin, until, on_removed="skip"))) == left
    assert spans(await here.run(window(middle, end))) == [(2, 3)]
    with pytest.raises(ConfigError, match="on_removed = 'guess'"):
        await here.run(window(begin, end, on_removed="guess"))


async def test_a_window_from_before_the_topic(here):
    """Nothing was published before a topic was made, so nothing of it was removed."""
    before = here.at(-7200), here.at(-3600)
    await here.publish(1)
    assert await here.run(window(*before)) == []
    assert spans(await here.run(window(before[0], here.at()))) == [(0, 1)]
    here.later(2 * RETENTION_S)
    assert await here.expire() == 1

    assert await here.run(window(*before)) == []
