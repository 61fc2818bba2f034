"""What can be waited for, and looking again and again, through outages."""

from __future__ import annotations

import logging

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_memq.range_due import RangeDue
from airflow_provider_memq.waiting import (
    OUTAGE_BACKOFF,
    LagBelow,
    NewData,
    OffsetsReached,
    Pace,
    WatermarkPassed,
    interval_s,
    wait_until,
)
from memq.errors import (
    ConfigError,
    InvalidRequestError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnauthorizedError,
    UnavailableError,
)
from tests.unit.airflow.fakes import FakeHook, FakeTopic

log = logging.getLogger("test")
LATER_MS = 4 * 10**12  # in a hundred years


@pytest.mark.parametrize(("ends", "done"), [({0: 4, 1: 9}, False), ({0: 5, 1: 0}, True)])
async def test_offsets_reached(ends, done):
    """It holds when each partition named is at its offset; others do not matter."""
    outcome = await OffsetsReached("t", '{"0": 5}').look(FakeTopic(ends, watermark_ms=7))

    assert outcome.done is done
    offsets = {str(partition): end for partition, end in ends.items()}
    value = {"topic": "t", "incarnation": "a" * 16, "offsets": offsets, "watermark_ms": 7}
    assert outcome.value == value


async def test_how_far_it_is():
    """The note names a partition that is behind."""
    outcome = await OffsetsReached("t", {0: 5, 1: 1}).look(FakeTopic({0: 4, 1: 9}))

    assert outcome.note == "1 of 2 read partitions of t reached; partition 0 is at 4 of 5"


async def test_a_partition_that_is_not_there():
    """Nothing would ever be published to it, so it is refused."""
    with pytest.raises(InvalidRequestError, match="no read partition 3; it has 0 to 1"):
        await OffsetsReached("t", {3: 1}).look(FakeTopic({0: 4, 1: 9}))


@pytest.mark.parametrize(("mark_ms", "done"), [(999, False), (1000, True), (1001, True)])
async def test_watermark_passed(mark_ms, done):
    """It holds from the watermark's equality on."""
    condition = WatermarkPassed("t", "1970-01-01T00:00:01Z")

    outcome = await condition.look(FakeTopic({0: 1}, watermark_ms=mark_ms))

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
    topic = FakeTopic({0: 4, 1: 4})
    assert not (await condition.look(topic)).done

    topic.ends[0] = 5
    outcome = await condition.look(topic)

    assert outcome.done
    assert outcome.value["new"] == counted
    assert topic.read == 7  # none was read twice


@pytest.mark.parametrize("given", range(6))
async def test_new_data_is_counted_once_though_a_look_fails(given):
    """However far a look came before the brokers failed: the next one counts what is left."""
    failing = FakeTopic({0: 3, 1: 3}, fails_after=given)
    hook = FakeHook(failing, FakeTopic({0: 3, 1: 3}))

    outcome = await wait(hook, [], NewData("t", {}, min_notifications=1))

    assert outcome.value["new"] == {"notifications": 6, "bytes": 600, "records": 6}


async def test_new_data_after_retention():
    """Offsets that are no longer held do not count, and do not hinder."""
    topic = FakeTopic({0: 8}, starts={0: 6})

    outcome = await NewData("t", {0: 2}, min_notifications=3).look(topic)

    assert outcome.value["new"]["notifications"] == 2


@pytest.mark.parametrize("least", [{}, {"min_bytes": 1, "min_records": 1}])
def test_new_data_of_one_unit(least):
    """Which of two minimums would decide is not guessed."""
    with pytest.raises(ConfigError, match="give one of"):
        NewData("t", {}, **least)


@pytest.mark.parametrize(("most", "done"), [(4, False), ("5", True)])
async def test_lag(most, done):
    """Lag is summed over partitions; one without a commit lags by all it holds."""
    topic = FakeTopic({0: 10, 1: 4}, starts={0: 0, 1: 1}, committed={0: 8})

    outcome = await LagBelow("t", "g", most).look(topic)

    assert outcome.done is done
    assert outcome.value["lag"] == outcome.value["lag_records"] == {"0": 2, "1": 3}
    assert outcome.value["lag_bytes"] == {"0": 200, "1": 300}
    assert outcome.value["lag_seconds"] == {"0": 1.0, "1": 1.5}
    assert outcome.note == "group g has a lag of 5 Batches in t: 5 records, 500 bytes"


@pytest.mark.parametrize(
    ("least", "until_ms", "done"),
    [(301, 4 * 10**12, False), (300, 4 * 10**12, True), (301, 0, True)],
)
async def test_a_range_is_due_by_the_bytes_of_one_partition_or_by_time(least, until_ms, done):
    """Bytes of several partitions do not add up: each makes a range of its own."""
    topic = FakeTopic({0: 10, 1: 3})

    assert (await RangeDue("t", {"0": 8}, least, until_ms).look(topic)).done is done


async def test_lag_is_what_can_be_read():
    """A group that was idle until retention removed what came next is not behind by that."""
    topic = FakeTopic({0: 500, 1: 20}, starts={0: 500, 1: 12}, committed={0: 5, 1: 10})

    outcome = await LagBelow("t", "g", 8).look(topic)

    assert outcome.done
    assert outcome.value["lag"] == {"0": 0, "1": 8}


def test_no_offsets_are_not_awaited():
    """A sensor that waits for nothing is a mistake."""
    with pytest.raises(ConfigError, match="names no read partition"):
        OffsetsReached("t", {})


CONDITIONS = (
    lambda **of: OffsetsReached("t", {0: 5}, **of),
    lambda **of: WatermarkPassed("t", "2026-01-01T00:00:00Z", **of),
    lambda **of: NewData("t", {0: 0}, min_records=5, **of),
    lambda **of: LagBelow("t", "g", **of),
)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_topic_that_is_made_again_is_another_one(condition):
    """What is waited for is of the topic of the first look, or of the one that was named."""
    old, new = FakeTopic({0: 1}, incarnation="a" * 16), FakeTopic({0: 9}, incarnation="b" * 16)

    with pytest.raises(TopicRecreatedError):
        await wait(FakeHook(old, new), [], condition())
    with pytest.raises(TopicRecreatedError):
        await wait(FakeHook(new), [], condition(incarnation="a" * 16))


# -- the loop -------------------------------------------------------------------------------


async def wait(hook, sleeps, condition=None, poll_interval_s=5.0):
    async def sleep(seconds):
        assert hook.open == 0, "a connection is held while it waits"
        sleeps.append(seconds)

    return await wait_until(
        hook,
        condition or OffsetsReached("t", {0: 5}),
        pace=Pace(poll_interval_s),
        log=log,
        sleep=sleep,
        randomness=lambda: 0.5,
    )


async def test_it_looks_until_it_holds():
    """Between looks it waits for the interval, and holds no connection."""
    sleeps = []

    outcome = await wait(FakeHook(*(FakeTopic({0: end}) for end in (3, 4, 5))), sleeps)

    assert outcome.value["offsets"] == {"0": 5}
    assert sleeps == [5.0, 5.0]


async def test_an_outage_is_ridden_out(caplog):
    """Waits double while nobody answers; the log says when it began and when it ended."""
    sleeps = []
    down = [UnavailableError("down"), RequestTimeoutError("down"), UnavailableError("down")]
    looks = [FakeTopic({0: 4}), *down, FakeTopic({0: 4}), FakeTopic({0: 5})]

    with caplog.at_level(logging.INFO):
        await wait(FakeHook(*looks), sleeps)

    assert sleeps == [5.0, 0.75, 1.5, 3.0, 5.0]
    assert "no answer (3 in a row)" in caplog.text
    assert caplog.text.count("brokers answer again after 3 failures") == 1


async def test_each_outage_begins_anew(caplog):
    """After one that has ended the waits of the next one are short again."""
    sleeps = []
    down = [UnavailableError("down"), UnavailableError("down")]
    up = FakeTopic({0: 4})

    with caplog.at_level(logging.INFO):
        await wait(FakeHook(*down, up, *down[:1], up, FakeTopic({0: 5})), sleeps)

    assert sleeps == [0.75, 1.5, 5.0, 0.75, 5.0]
    assert caplog.text.count("brokers answer again after 1 failure") == 1


async def test_what_no_waiting_mends_is_raised():
    """A refused token is not tried again."""
    sleeps = []

    with pytest.raises(UnauthorizedError):
        await wait(FakeHook(UnauthorizedError("no")), sleeps)

    assert sleeps == []


@pytest.mark.parametrize("first", [FakeTopic({0: 4}), UnavailableError("down")])
async def test_a_connection_that_was_read_once_is_waited_for(caplog, first):
    """Airflow says "not defined" of any look-up that failed, so a later one is an outage."""
    sleeps = []
    gone = [AirflowNotFoundException("The conn_id `c` isn't defined")] * 2

    await wait(FakeHook(first, *gone, FakeTopic({0: 5})), sleeps)

    assert len(sleeps) == 3
    assert caplog.text.count("s: The conn_id `c` isn't defined") == 2


async def test_a_connection_that_was_never_read_is_none():
    """The first look tells a wrong connection at once."""
    sleeps = []

    with pytest.raises(AirflowNotFoundException):
        await wait(FakeHook(AirflowNotFoundException("c"), FakeTopic({0: 5})), sleeps)

    assert sleeps == []


async def test_the_same_note_is_logged_once(caplog):
    """A task that waits for a day does not write a line for each look."""
    with caplog.at_level(logging.INFO):
        await wait(FakeHook(*(FakeTopic({0: end}) for end in (3, 3, 3, 5))), [])

    assert caplog.text.count("partition 0 is at 3 of 5") == 1


@pytest.mark.parametrize("randomness", [0.0, 0.5, 0.999])
def test_waits_are_bounded(randomness):
    """However long an outage, a wait is at most a minute, and never nothing."""
    waits = [OUTAGE_BACKOFF.equal_jitter_s(failures, lambda: randomness) for failures in range(99)]

    assert min(waits) >= 0.5
    assert 30.0 <= max(waits) == waits[-1] <= 60.0
    assert 9.0 <= interval_s(10.0, lambda: randomness) <= 11.0
