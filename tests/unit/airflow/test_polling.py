"""Looking again and again, through outages."""

from __future__ import annotations

import logging

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_memq.conditions import OffsetsReached
from airflow_provider_memq.polling import BACKOFF_CAP_S, Pace, backoff_s, interval_s, wait_until
from memq.errors import RequestTimeoutError, UnauthorizedError, UnavailableError
from tests.unit.airflow.fakes import FakeHook, FakeSession

log = logging.getLogger("test")


async def wait(hook, sleeps, poll_interval_s=5.0):
    async def sleep(seconds):
        assert hook.open == 0, "a connection is held while it waits"
        sleeps.append(seconds)

    return await wait_until(
        hook,
        OffsetsReached("t", {0: 5}),
        pace=Pace(poll_interval_s),
        log=log,
        sleep=sleep,
        randomness=lambda: 0.5,
    )


async def test_it_looks_until_it_holds():
    """Between looks it waits for the interval, and holds no connection."""
    sleeps = []

    outcome = await wait(FakeHook(*(FakeSession({0: end}) for end in (3, 4, 5))), sleeps)

    assert outcome.value["offsets"] == {"0": 5}
    assert sleeps == [5.0, 5.0]


async def test_an_outage_is_ridden_out(caplog):
    """Waits double while nobody answers; the log says when it began and when it ended."""
    sleeps = []
    down = [UnavailableError("down"), RequestTimeoutError("down"), UnavailableError("down")]
    looks = [FakeSession({0: 4}), *down, FakeSession({0: 4}), FakeSession({0: 5})]

    with caplog.at_level(logging.INFO):
        await wait(FakeHook(*looks), sleeps)

    assert sleeps == [5.0, 0.75, 1.5, 3.0, 5.0]
    assert "no answer (3 in a row)" in caplog.text
    assert caplog.text.count("brokers answer again after 3 failures") == 1


async def test_what_no_waiting_mends_is_raised():
    """A refused token is not tried again."""
    sleeps = []

    with pytest.raises(UnauthorizedError):
        await wait(FakeHook(UnauthorizedError("no")), sleeps)

    assert sleeps == []


@pytest.mark.parametrize("first", [FakeSession({0: 4}), UnavailableError("down")])
async def test_a_connection_that_was_read_once_is_waited_for(caplog, first):
    """Airflow says "not defined" of any look-up that failed, so a later one is an outage."""
    sleeps = []
    gone = [AirflowNotFoundException("The conn_id `c` isn't defined")] * 2

    await wait(FakeHook(first, *gone, FakeSession({0: 5})), sleeps)

    assert len(sleeps) == 3
    assert caplog.text.count("s: The conn_id `c` isn't defined") == 2


async def test_a_connection_that_was_never_read_is_none():
    """The first look tells a wrong connection at once."""
    sleeps = []

    with pytest.raises(AirflowNotFoundException):
        await wait(FakeHook(AirflowNotFoundException("c"), FakeSession({0: 5})), sleeps)

    assert sleeps == []


async def test_the_same_note_is_logged_once(caplog):
    """A task that waits for a day does not write a line for each look."""
    with caplog.at_level(logging.INFO):
        await wait(FakeHook(*(FakeSession({0: end}) for end in (3, 3, 3, 5))), [])

    assert caplog.text.count("partition 0 is at 3 of 5") == 1


@pytest.mark.parametrize("randomness", [0.0, 0.5, 0.999])
def test_waits_are_bounded(randomness):
    """However long an outage, a wait is at most a minute, and never nothing."""
    waits = [backoff_s(failures, lambda: randomness) for failures in range(1, 100)]

    assert min(waits) >= 0.5
    assert BACKOFF_CAP_S / 2 <= max(waits) <= BACKOFF_CAP_S
    assert 9.0 <= interval_s(10.0, lambda: randomness) <= 11.0
