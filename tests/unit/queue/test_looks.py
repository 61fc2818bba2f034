"""Questions for bounds that are asked together."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from memq.errors import UnknownTopicError
from memq.queue.kafka.client import Bounds, Place
from memq.queue.kafka.looks import Looks

A, B, C = (Place("t", number) for number in range(3))


class Kafka:
    """Answers with the number of the look; each begins, and waits until it may end."""

    def __init__(self):
        self.looks = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.away = False

    def look(self, places):
        self.looks.append(places)
        number = len(self.looks)
        self.begun.release()
        assert self.may_end.acquire(timeout=30)
        if self.away:
            raise OSError("Kafka is away")
        return {
            place: UnknownTopicError(f"no {place}") if place == C else Bounds(0, 0, number)
            for place in places
        }


@pytest.fixture
def kafka():
    """A Kafka that answers when it is told to."""
    return Kafka()


@pytest.fixture
def looks(kafka):
    """What gathers questions to it."""
    with ThreadPoolExecutor(1) as thread:
        yield Looks(thread, kafka.look)


async def asked(looks, *places):
    """A question that is on its way."""
    question = asyncio.ensure_future(looks.bounds(places))
    await asyncio.sleep(0)
    return question


async def begun(kafka):
    """Wait until the next look has begun."""
    assert await asyncio.to_thread(kafka.begun.acquire, timeout=30)


async def test_those_who_wait_at_a_time_share_a_look(kafka, looks):
    """Whatever comes while one look is under way is asked in the next, each partition once."""
    first = await asked(looks, A)
    await begun(kafka)
    others = [await asked(looks, *places) for places in ([B], [A, B], [B, A])]
    kafka.may_end.release(2)
    assert await first == [Bounds(0, 0, 1)]
    assert [each.written for found in await asyncio.gather(*others) for each in found] == [2] * 5
    assert kafka.looks == [[A], [B, A]]


async def test_no_answer_is_older_than_its_question(kafka, looks):
    """Who asks while a look is under way has the answer of a later one."""
    first = await asked(looks, A)
    await begun(kafka)
    second = await asked(looks, A)
    kafka.may_end.release()
    await first
    await begun(kafka)
    third = await asked(looks, A)
    kafka.may_end.release(2)
    assert [(await each)[0].written for each in (first, second, third)] == [1, 2, 3]


async def test_a_look_that_fails_when_nobody_waits_any_more_is_nobodys_error(kafka, looks):
    """The event loop hears of no error, for which a broker would stop."""
    unheard = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    kafka.away = True
    question = await asked(looks, A)
    await begun(kafka)
    question.cancel()
    del question
    kafka.may_end.release(2)
    with pytest.raises(OSError, match="away"):  # a later one, which ends after it
        await looks.bounds([A])
    gc.collect()  # whoever was not asked for its error would complain now
    assert not unheard
