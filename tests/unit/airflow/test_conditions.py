"""What can be waited for."""

from __future__ import annotations

import pytest

from airflow_provider_memq.conditions import (
    LagBelow,
    NewData,
    OffsetsReached,
    WatermarkPassed,
)
from memq.errors import ConfigError, InvalidRequestError, TopicRecreatedError
from tests.unit.airflow.fakes import FakeSession


@pytest.mark.parametrize(("ends", "done"), [({0: 4, 1: 9}, False), ({0: 5, 1: 0}, True)])
async def test_offsets_reached(ends, done):
    """It holds when each partition named is at its offset; others do not matter."""
    outcome = await OffsetsReached("t", '{"0": 5}').look(FakeSession(ends, watermark_ms=7))

    assert outcome.done is done
    offsets = {str(partition): end for partition, end in ends.items()}
    value = {"topic": "t", "incarnation": "a" * 16, "offsets": offsets, "watermark_ms": 7}
    assert outcome.value == value


async def test_how_far_it_is():
    """The note names a partition that is behind."""
    outcome = await OffsetsReached("t", {0: 5, 1: 1}).look(FakeSession({0: 4, 1: 9}))

    assert outcome.note == "1 of 2 read partitions of t reached; partition 0 is at 4 of 5"


async def test_a_partition_that_is_not_there():
    """Nothing would ever be published to it, so it is refused."""
    with pytest.raises(InvalidRequestError, match="no read partition 3; it has 0 to 1"):
        await OffsetsReached("t", {3: 1}).look(FakeSession({0: 4, 1: 9}))


@pytest.mark.parametrize(("mark_ms", "done"), [(999, False), (1000, True), (1001, True)])
async def test_watermark_passed(mark_ms, done):
    """It holds from the watermark's equality on."""
    condition = WatermarkPassed("t", "1970-01-01T00:00:01Z")

    outcome = await condition.look(FakeSession({0: 1}, watermark_ms=mark_ms))

    assert outcome.done is done
    assert "awaited is 1970-01-01T00:00:01.000+00:00" in outcome.note


@pytest.mark.parametrize(
    ("least", "counted"),
    [
        ({"min_notifications": 7}, {"notifications": 7, "bytes": 700, "records": 7}),
        ({"min_bytes": "601"}, {"notifications": 7, "bytes": 700, "records": 7}),
        ({"min_records": 7}, {"notifications": 7, "bytes": 700, "records": 7}),
    ],
)
async def test_new_data(least, counted):
    """What was published since the offsets counts, and all of a partition that is not named."""
    condition = NewData("t", {"0": 2}, **least)
    session = FakeSession({0: 4, 1: 4})
    assert not (await condition.look(session)).done

    session.ends[0] = 5
    outcome = await condition.look(session)

    assert outcome.done
    assert outcome.value["new"] == counted
    assert session.read == 7  # none was read twice


async def test_new_data_after_retention():
    """Offsets that are no longer held do not count, and do not hinder."""
    session = FakeSession({0: 8}, starts={0: 6})

    outcome = await NewData("t", {0: 2}, min_notifications=3).look(session)

    assert outcome.value["new"]["notifications"] == 2


@pytest.mark.parametrize("least", [{}, {"min_bytes": 1, "min_records": 1}])
def test_new_data_of_one_unit(least):
    """Which of two minimums would decide is not guessed."""
    with pytest.raises(ConfigError, match="give one of"):
        NewData("t", {}, **least)


@pytest.mark.parametrize(("most", "done"), [(4, False), ("5", True)])
async def test_lag(most, done):
    """Lag is summed over partitions; one without a commit is behind by all it holds."""
    session = FakeSession({0: 10, 1: 4}, starts={0: 0, 1: 1}, committed={0: 8})

    outcome = await LagBelow("t", "g", most).look(session)

    assert outcome.done is done
    assert outcome.value["lag"] == {"0": 2, "1": 3}


async def test_lag_is_what_can_be_read():
    """A group that was idle until retention removed what came next is not behind by that."""
    session = FakeSession({0: 500, 1: 20}, starts={0: 500, 1: 12}, committed={0: 5, 1: 10})

    outcome = await LagBelow("t", "g", 8).look(session)

    assert outcome.done
    assert outcome.value["lag"] == {"0": 0, "1": 8}


def test_no_offsets_are_not_awaited():
    """A sensor that waits for nothing is a mistake."""
    with pytest.raises(ConfigError, match="names no read partition"):
        OffsetsReached("t", {})


CONDITIONS = (
    lambda **of: OffsetsReached("t", {0: 5}, **of),
    lambda **of: WatermarkPassed("t", "2026-01-01T00:00:00Z", **of),
    lambda **of: NewData("t", {0: 0}, min_records=100, **of),
    lambda **of: LagBelow("t", "g", **of),
)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_topic_that_is_made_again_is_another_one(condition):
    """What is waited for is of the topic of the first look, or of the one that was named."""
    waiting = condition()
    await waiting.look(FakeSession({0: 1}, incarnation="a" * 16))

    for each in (waiting, condition(incarnation="a" * 16)):
        with pytest.raises(TopicRecreatedError):
            await each.look(FakeSession({0: 9}, incarnation="b" * 16))
