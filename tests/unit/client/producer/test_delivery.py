"""The future of a Message, from threads, from asyncio and through callbacks."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial

import pytest

from memq.client.producer.delivery import Delivery, StoredAt
from memq.errors import DeliveryTimeoutError, MemqError, RequestTimeoutError
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


def test_error_is_raised_to_everybody_who_asks():
    """A failure is what `result` raises and what `exception` returns, again and again."""
    delivery = Delivery()
    error = DeliveryTimeoutError("late")
    delivery.settle(error)
    for _ in range(2):
        with pytest.raises(DeliveryTimeoutError):
            delivery.result()
    assert delivery.exception() is error


def test_first_outcome_counts():
    """What is settled stays settled."""
    delivery = Delivery()
    delivery.settle(DeliveryTimeoutError("late"))
    delivery.settle(STORED)
    assert isinstance(delivery.exception(), DeliveryTimeoutError)
    delivery = Delivery()
    delivery.settle(STORED)
    delivery.settle(DeliveryTimeoutError("late"))
    assert delivery.result() == STORED


def test_timeout_is_typed_and_leaves_nothing_behind():
    """Waiting in vain raises `RequestTimeoutError`, and the waiter is forgotten."""
    delivery = Delivery()
    for wait in (delivery.result, delivery.exception):
        with pytest.raises(RequestTimeoutError, match=r"0\.001 s"):
            wait(0.001)
    assert not delivery._callbacks
    assert not delivery.seen


def test_seen_only_when_somebody_was_told():
    """An outcome counts as seen by result, exception, callback or await; not by `done`."""
    for look in (Delivery.result, Delivery.exception):
        delivery = Delivery()
        delivery.settle(STORED)
        assert delivery.done()
        assert not delivery.seen
        look(delivery)
        assert delivery.seen
    delivery = Delivery()
    delivery.add_done_callback(print)
    assert delivery.seen


def test_callbacks_are_called_once_whenever_they_were_added():
    """A callback runs at the settling, or at once when that is over."""
    delivery = Delivery()
    calls = []
    delivery.add_done_callback(calls.append)
    assert calls == []
    delivery.settle(STORED)
    delivery.add_done_callback(calls.append)
    assert calls == [delivery, delivery]


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


async def test_cancelled_await_leaves_the_delivery_alone():
    """Giving up waiting does not touch the Message, and others still get its outcome."""
    delivery = Delivery()
    task = asyncio.ensure_future(_awaited(delivery))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not delivery._callbacks
    delivery.settle(MemqError("no"))
    with pytest.raises(MemqError):
        await delivery


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


def test_repr_shows_the_outcome():
    """The repr tells pending, stored and failed apart."""
    delivery = Delivery()
    assert repr(delivery) == "<Delivery pending>"
    delivery.settle(MemqError("no luck"))
    assert repr(delivery) == "<Delivery failed: no luck>"


async def _awaited(delivery):
    return await delivery


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_no_time_left_is_a_timeout(timeout):
    """What is left of a caller's time may be less than nothing."""
    delivery = Delivery()
    with pytest.raises(RequestTimeoutError, match="is not settled"):
        delivery.result(timeout)
    with pytest.raises(RequestTimeoutError, match="is not settled"):
        delivery.exception(timeout)
