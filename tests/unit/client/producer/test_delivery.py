"""The future of a Message, from threads, from asyncio and through callbacks."""

import asyncio
import logging
import threading
from functools import partial

import pytest

from memq.client.producer.delivery import MAX_FAILED, Delivery, Outcomes, StoredAt
from memq.errors import DeliveryTimeoutError, RequestTimeoutError
from tests.unit.client.interrupts import before_each_line

STORED = StoredAt("events", 0, 5, "batch", 1, 2, duplicate=False)


def test_result_waits_for_the_outcome():
    """`result` in one thread returns what another settles."""
    delivery = Delivery()
    results = []
    thread = threading.Thread(target=lambda: results.append(delivery.result(10)))
    thread.start()
    delivery.settle(STORED)
    thread.join()
    assert results == [STORED]
    assert delivery.done()
    assert delivery.exception() is None


def test_first_outcome_counts():
    """What is settled stays settled."""
    delivery = Delivery()
    delivery.settle(DeliveryTimeoutError("late"))
    delivery.settle(STORED)
    assert isinstance(delivery.exception(), DeliveryTimeoutError)


@pytest.mark.parametrize("amid", ["addition", "outcome"])
def test_a_callback_that_is_added_as_the_outcome_comes_is_called_once(amid):
    """At whatever moment they meet, the callback is not forgotten, and not called twice."""

    def make():
        delivery, told = Delivery(), []
        calls = [
            partial(delivery.add_done_callback, told.append),
            partial(delivery.settle, STORED),
        ]
        return *(calls if amid == "addition" else calls[::-1]), told

    found = list(before_each_line(make))
    assert len(found) > 2
    assert [len(told) for told in found] == [1] * len(found)


def test_callback_that_raises_is_logged_and_stops_no_other(caplog):
    """An error in a callback is the caller's; it is logged, and the next callback runs."""
    delivery = Delivery()
    calls = []
    delivery.add_done_callback(lambda _: 1 / 0)
    delivery.add_done_callback(calls.append)
    with caplog.at_level(logging.ERROR):
        delivery.settle(STORED)
    assert calls == [delivery]
    assert "ZeroDivisionError" in caplog.text


async def test_await_from_a_settling_thread():
    """A task that awaits is woken by another thread."""
    delivery = Delivery()
    thread = threading.Thread(target=delivery.settle, args=(STORED,))
    task = asyncio.ensure_future(_awaited(delivery))
    await asyncio.sleep(0)
    thread.start()
    assert await task == STORED
    thread.join()
    assert await delivery == STORED


def test_await_on_a_loop_that_is_gone_is_no_error():
    """A loop that was closed while it waited is not told, and nothing breaks."""
    delivery = Delivery()
    loop = asyncio.new_event_loop()
    task = loop.create_task(_awaited(delivery))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    delivery.settle(STORED)
    assert delivery.result() == STORED
    task._log_destroy_pending = False


def test_waiting_calls_on_wait_until_sealed():
    """Who waits seals the open Message; once it is sealed there is nothing to do."""
    calls = []
    delivery = Delivery(lambda: calls.append("seal"))
    with pytest.raises(RequestTimeoutError):
        delivery.result(0)
    delivery.sealed()
    with pytest.raises(RequestTimeoutError):
        delivery.result(0)
    assert calls == ["seal"]


async def _awaited(delivery):
    return await delivery


@pytest.mark.parametrize("timeout", [0.001, 0, -1])
def test_no_time_left_is_a_timeout(timeout):
    """What is left of a caller's time may be less than nothing."""
    delivery = Delivery()
    with pytest.raises(RequestTimeoutError, match="is not acknowledged"):
        delivery.result(timeout)
    with pytest.raises(RequestTimeoutError, match="is not acknowledged"):
        delivery.exception(timeout)
    assert not delivery._callbacks
    assert not delivery.seen


# -- counting, and not losing the failures ---------------------------------------------------


def settle(outcomes, error=None):
    """Settle a Message of 3 records and 5 bytes; returns its delivery."""
    delivery = Delivery()
    if error is None:
        outcomes.acked(3, 5)
    else:
        outcomes.failed(3, delivery)
    delivery.settle(error or StoredAt("t", 0, 0, "b", 0, 0, duplicate=False))
    return delivery


def test_unseen_failure_is_raised_once():
    """The first failure that nobody saw is raised with a note, and then counts as seen."""
    outcomes = Outcomes()
    settle(outcomes)
    settle(outcomes, DeliveryTimeoutError("seen")).exception()
    settle(outcomes, DeliveryTimeoutError("first"))
    settle(outcomes, DeliveryTimeoutError("second"))
    with pytest.raises(DeliveryTimeoutError, match="first") as caught:
        outcomes.raise_unseen()
    assert caught.value.__notes__ == ["2 Messages failed and nobody had looked"]
    outcomes.raise_unseen()
    assert outcomes.counts == (1, 3, 5, 3, 9, 0, 0, 0, 0)


def test_failures_kept_are_bounded():
    """A long outage does not gather failures for ever."""
    outcomes = Outcomes()
    for _ in range(MAX_FAILED + 1):
        settle(outcomes, DeliveryTimeoutError("late"))
    with pytest.raises(DeliveryTimeoutError) as caught:
        outcomes.raise_unseen()
    assert caught.value.__notes__[0].startswith(f"{MAX_FAILED} Messages")
