"""What of all that asyncio cannot give to anybody stops a broker."""

import asyncio

import pytest

from memq.broker.fatal_errors import FatalErrors
from memq.errors import QueueError, StorageError
from tests.integration.broker.support import turns

OWN, FOREIGN = object(), object()
BUG, TYPED = ValueError("bug"), QueueError("typed")


@pytest.mark.parametrize(
    ("context", "stops"),
    [
        ({"exception": BUG}, True),
        ({"exception": TYPED}, True),
        ({"exception": BUG, "protocol": OWN}, True),
        ({"exception": BUG, "protocol": FOREIGN}, False),
        ({"exception": BUG, "future": 1}, True),
        ({"exception": TYPED, "future": 1}, False),
        ({"exception": TYPED, "handle": 1}, True),
        ({"exception": OSError("too many files"), "socket": 1}, False),
        ({"exception": None}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("watched", [True, False])
async def test_only_what_is_the_brokers_own_stops_it(context, stops, watched, caplog) -> None:
    """Not what others' protocols raise, what is told elsewhere, nor what asyncio tries again."""
    loop, errors, told = asyncio.get_running_loop(), FatalErrors(), []
    errors.watch(lambda protocol: protocol is FOREIGN)
    if not watched:
        errors.unwatch()
    errors._caught(loop, {"message": "in a callback"} | context)
    await turns()
    assert errors.failure.done() == (stops and watched)
    if errors.failure.done():
        assert errors.failure.result() is context["exception"]
    by_asyncio = [each for each in caplog.records if each.name == "asyncio"]
    assert len(by_asyncio) == (not (stops and watched)), "said once, here or there"
    loop.set_exception_handler(lambda _, context: told.append(context))
    errors.watch(lambda _: False)
    errors._caught(loop, {"message": "again"} | context)
    assert [each["message"] for each in told] == ["again"], "who was there before is told as well"
    errors.unwatch()
    loop.set_exception_handler(None)


@pytest.mark.parametrize(
    ("error", "expected", "stops"),
    [
        (BUG, (), True),
        (TYPED, (), True),
        (TYPED, QueueError, False),
        (TYPED, StorageError, True),
        (asyncio.CancelledError(), (), False),
        (None, (), False),
    ],
)
async def test_a_task_stops_the_broker_by_what_nobody_expects_of_it(error, expected, stops) -> None:
    """What whoever waits for it expects is theirs, as is the end of one that was cancelled."""
    errors = FatalErrors()

    async def work():
        if error is not None:
            raise error

    errors.watch(lambda _: False)
    task = errors.spawn("work", work(), expected=expected)
    await asyncio.gather(task, return_exceptions=True)
    await turns()
    errors.unwatch()
    assert errors.failure.done() == stops
