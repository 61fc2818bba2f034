"""The bound on memory that writers share, and waiting for room in it."""

import threading
from functools import partial

import pytest

from memq.client.producer.memory import ByteBudget, MemoryWait
from memq.errors import BufferFullError
from memq.runtime.system import SYSTEM
from tests.unit.client.interrupts import before_each_line


def test_bytes_are_given_back_while_a_thread_is_stopped_in_a_take():
    """The event loop gives, and wakes, though a thread holds the lock and does not go on."""
    budget = ByteBudget(10)
    budget.take(10)
    woken = threading.Event()
    budget.when_free(1, woken.set)
    with budget._lock:
        giver = threading.Thread(target=budget.give, args=(4,), daemon=True)
        giver.start()
        assert woken.wait(10)
    giver.join(10)
    assert budget.used_bytes == 6


@pytest.mark.parametrize("end", [lambda budget: budget.give(10), ByteBudget.close])
@pytest.mark.parametrize("amid", ["wait", "end"])
def test_who_begins_to_wait_as_the_wait_ends_is_woken(end, amid):
    """At whatever moment the last bytes come back, or the budget is closed, nobody waits on."""

    def make():
        budget, woken = ByteBudget(10), []
        budget.take(10)
        calls = [partial(budget.when_free, 3, lambda: woken.append("woken")), partial(end, budget)]
        return *(calls if amid == "wait" else calls[::-1]), woken

    found = list(before_each_line(make))
    assert len(found) > 2
    assert found == [["woken"]] * len(found)


def test_everybody_who_waits_is_woken_by_each_gift():
    """What is given may be enough for several, or for any of them."""
    budget = ByteBudget(10)
    assert budget.take(10)
    woken = []
    for name in "abc":
        budget.when_free(3, partial(woken.append, name))
    budget.give(9)
    assert woken == ["a", "b", "c"]


def test_forgotten_waiter_is_not_woken():
    """Who gave up is not woken; bound methods are told apart by what they are bound to."""
    budget = ByteBudget(10)
    budget.take(10)
    first, second = threading.Event(), threading.Event()
    budget.when_free(1, first.set)
    budget.when_free(1, second.set)
    budget.forget(first.set)
    assert repr(budget) == "<ByteBudget 10 of 10 bytes used | 1 waiting>"
    budget.give(10)
    assert (first.is_set(), second.is_set()) == (False, True)


def full_budget():
    """Ten bytes, all taken; and a write of three that says whether it found room."""
    budget = ByteBudget(10)
    budget.take(10)
    return budget, lambda: "written" if budget.take(3) else None


async def wait_for(wait, write, *, task):
    """Let a task or this thread wait."""
    return await wait.until(write) if task else wait.block(write)


@pytest.mark.parametrize("task", [False, True])
async def test_a_wait_ends_when_its_write_finds_room(task):
    """A thread or a task that waits goes on, however often it is too little at first."""
    budget, write = full_budget()
    assert write() is None
    for _ in range(3):
        threading.Timer(0.01, budget.give, [1]).start()
    assert await wait_for(MemoryWait(budget, 60, SYSTEM.mono_s), write, task=task) == "written"


@pytest.mark.parametrize("task", [False, True])
async def test_room_that_others_take_each_time_is_not_waited_for_again_and_again(task):
    """A write that finds room gone whenever it tries ends after max_block in all."""
    tries = 0

    def write():
        nonlocal tries
        tries += 1

    with pytest.raises(BufferFullError, match="max_block = 60 s"):
        await wait_for(MemoryWait(ByteBudget(10), 60, lambda: tries * 25), write, task=task)
    assert tries == 3


@pytest.mark.parametrize("task", [False, True])
async def test_too_little_room_wakes_nobody(task):
    """A write does not try in vain, again and again, while less is free than it needs."""
    budget, tries = ByteBudget(10), 0
    budget.take(8)

    def write():
        nonlocal tries
        tries += 1
        budget.take(3)

    write()
    with pytest.raises(BufferFullError):
        await wait_for(MemoryWait(budget, 0.05, SYSTEM.mono_s), write, task=task)
    assert tries == 1


async def test_wait_without_room_is_an_error():
    """Who finds no room in time is told the limits, and does not wait any more."""
    budget, write = full_budget()
    assert write() is None
    wait = MemoryWait(budget, 0.01, SYSTEM.mono_s)
    with pytest.raises(BufferFullError, match=r"10 of buffer_bytes = 10 .* max_block = 0\.01 s"):
        wait.block(write)
    with pytest.raises(BufferFullError):
        await wait.until(write)
    assert "0 waiting" in repr(budget)
