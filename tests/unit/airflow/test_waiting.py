"""What can be waited for, and looking again and again, through outages."""

import logging

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_memq.waiting import (
    LagBelow,
    NewData,
    OffsetsReached,
    RangeDue,
    WatermarkPassed,
    wait_until,
)
from memq.errors import (
    ConfigError,
    InvalidRequestError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
)
from tests.unit.airflow.fakes import FakeHook, FakeTopic

log = logging.getLogger("test")
LATER_MS = 4 * 10**12  # in a hundred years


LAGGING = {"starts": {0: 0, 1: 1}, "committed": {0: 8}}
RETAINED = {"starts": {0: 500, 1: 12}, "committed": {0: 5, 1: 10}}


@pytest.mark.parametrize(
    ("condition", "topic", "done"),
    [
        (OffsetsReached("t", '{"0": 5}'), FakeTopic({0: 4, 1: 9}), False),
        (OffsetsReached("t", '{"0": 5}'), FakeTopic({0: 5, 1: 0}), True),
        (WatermarkPassed("t", "1970-01-01T00:00:01Z"), FakeTopic({0: 1}, watermark_ms=999), False),
        (WatermarkPassed("t", "1970-01-01T00:00:01Z"), FakeTopic({0: 1}, watermark_ms=1000), True),
        (LagBelow("t", "g", 4), FakeTopic({0: 10, 1: 4}, **LAGGING), False),
        (LagBelow("t", "g", "5"), FakeTopic({0: 10, 1: 4}, **LAGGING), True),
        (LagBelow("t", "g", 8), FakeTopic({0: 500, 1: 20}, **RETAINED), True),
        (RangeDue("t", {"0": 8}, 301, LATER_MS), FakeTopic({0: 10, 1: 3}), False),
        (RangeDue("t", {"0": 8}, 300, LATER_MS), FakeTopic({0: 10, 1: 3}), True),
        (RangeDue("t", {"0": 8}, 301, 0), FakeTopic({0: 10, 1: 3}), True),
        (NewData("t", {0: 2}, min_notifications=3), FakeTopic({0: 8}, starts={0: 6}), False),
        (NewData("t", {0: 2}, min_bytes="601"), FakeTopic({0: 5, 1: 3}), False),
        (NewData("t", {0: 2}, min_bytes="600"), FakeTopic({0: 5, 1: 3}), True),
        (NewData("t", {0: 2}, min_records=6), FakeTopic({0: 5, 1: 3}), True),
    ],
)
async def test_a_condition_holds_from_equality_on(condition, topic, done):
    """Of the partitions that it names, in what is retained; the bytes of one make a range due."""
    assert (await condition.look(topic)).done is done


async def test_a_look_says_where_the_topic_stands():
    """Its ends and watermark, and what the condition counts, by read partition."""
    topic = FakeTopic({0: 10, 1: 4}, watermark_ms=7, **LAGGING)
    stands = {"topic": "t", "topic_id": "a" * 16, "offsets": {"0": 10, "1": 4}}

    outcome = await OffsetsReached("t", {0: 11, 1: 1}).look(topic)
    assert outcome.value == stands | {"watermark_ms": 7}
    assert outcome.note == "1 of 2 read partitions of t reached; partition 0 is at 10 of 11"
    lag = (await LagBelow("t", "g").look(topic)).value
    assert lag["lag"] == lag["lag_records"] == {"0": 2, "1": 3}
    assert (lag["lag_bytes"], lag["lag_seconds"]) == (
        {"0": 200, "1": 300}, {"0": 1.0, "1": 1.5},
    )  # fmt: skip


async def test_what_can_never_hold_is_refused():
    """A partition that is not there, no partition at all, and two minimums of which one decides."""
    with pytest.raises(InvalidRequestError, match="no read partition 3; it has 0 to 1"):
        await OffsetsReached("t", {3: 1}).look(FakeTopic({0: 4, 1: 9}))
    with pytest.raises(ConfigError, match="names no read partition"):
        OffsetsReached("t", {})
    for least in ({}, {"min_bytes": 1, "min_records": 1}):
        with pytest.raises(ConfigError, match="give one of"):
            NewData("t", {}, **least)


@pytest.mark.parametrize("given", range(6))
async def test_new_data_is_counted_once_though_a_look_fails(given):
    """However far a look came before the brokers failed: the next one reads what is left."""
    failing = FakeTopic({0: 3, 1: 3}, fails_after=given)
    hook = FakeHook(failing, FakeTopic({0: 3, 1: 3}))

    outcome = await wait(hook, [], NewData("t", {}, min_notifications=1))

    assert outcome.value["new"] == {"notifications": 6, "bytes": 600, "records": 6}


CONDITIONS = (
    lambda **of: OffsetsReached("t", {0: 5}, **of),
    lambda **of: WatermarkPassed("t", "2026-01-01T00:00:00Z", **of),
    lambda **of: NewData("t", {0: 0}, min_records=5, **of),
    lambda **of: LagBelow("t", "g", **of),
)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_topic_that_is_made_again_is_another_one(condition):
    """What is waited for is of the topic of the first look, or of the one that was named."""
    old, new = FakeTopic({0: 1}, topic_id="a" * 16), FakeTopic({0: 9}, topic_id="b" * 16)

    with pytest.raises(TopicRecreatedError):
        await wait(FakeHook(old, new), [], condition())
    with pytest.raises(TopicRecreatedError):
        await wait(FakeHook(new), [], condition(topic_id="a" * 16))


# -- the loop -------------------------------------------------------------------------------


async def wait(hook, sleeps, condition=None, poll_interval_s=5.0):
    async def sleep(seconds):
        assert hook.open == 0, "a connection is held while it waits"
        sleeps.append(seconds)

    return await wait_until(
        hook,
        condition or OffsetsReached("t", {0: 5}),
        poll_interval_s=poll_interval_s,
        log=log,
        sleep=sleep,
        randomness=lambda: 0.5,
    )


async def test_an_outage_is_ridden_out(caplog):
    """Waits double while nobody answers, and begin anew with the next outage; the log tells."""
    sleeps = []
    down = [UnavailableError("down"), RequestTimeoutError("down"), UnavailableError("down")]
    looks = [FakeTopic({0: 4}), *down, FakeTopic({0: 4}), *down[:1], FakeTopic({0: 5})]

    with caplog.at_level(logging.INFO):
        await wait(FakeHook(*looks), sleeps)

    assert sleeps == [5.0, 0.75, 1.5, 3.0, 5.0, 0.75]
    assert "no answer (3 in a row)" in caplog.text
    assert caplog.text.count("brokers answer again after 3 failures") == 1
    assert caplog.text.count("partition 0 is at 4 of 5") == 1  # the same note is logged once


@pytest.mark.parametrize("first", [FakeTopic({0: 4}), UnavailableError("down")])
async def test_a_connection_that_was_read_once_is_waited_for(caplog, first):
    """Airflow says "not defined" of any look-up that failed, so a later one is an outage."""
    sleeps = []
    gone = [AirflowNotFoundException("The conn_id `c` isn't defined")] * 2

    await wait(FakeHook(first, *gone, FakeTopic({0: 5})), sleeps)

    assert len(sleeps) == 3
    assert caplog.text.count("s: The conn_id `c` isn't defined") == 2
