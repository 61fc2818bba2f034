"""Plans of faults, and what they do to a storage and to a queue."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction, signature
from pathlib import Path

import pytest

from memq.core.notification.queue import NotificationQueue, Publication
from memq.errors import (
    ConfigError,
    FencedError,
    ObjectNotFoundError,
    PublishUncertainError,
    QueueError,
    StorageError,
)
from memq.testing import InMemoryStorage
from tests.fakes.faults import Fault
from tests.fakes.faulty_queue import FaultyQueue
from tests.fakes.faulty_storage import FaultyStorage
from tests.fakes.queue import InMemoryQueue

ROOT = Path(__file__).parents[3]


def put(storage, key="k", content=b"abc"):
    """Put with a deadline that does not matter."""
    storage.put(key, [content], timeout_s=30)


def outcomes(storage, calls, operation="put"):
    """For each of so many calls, whether it succeeded."""
    found = []
    for number in range(calls):
        try:
            put(storage, f"{operation}{number}")
        except StorageError:
            found.append(False)
        else:
            found.append(True)
    return found


# -- plans ----------------------------------------------------------------------------------


def test_a_fault_strikes_the_calls_it_names():
    """`first` and `times` choose the calls, counted for each operation by itself."""
    storage = FaultyStorage(InMemoryStorage(), [Fault("put", "fail", first=2, times=2)])
    storage.delete("other calls do not count")
    assert outcomes(storage, 5) == [True, False, False, True, True]
    assert storage.faults.calls == {"put": 5, "delete": 1}
    assert storage.faults.struck == {("put", "fail"): 2}


def test_a_fault_without_end_strikes_for_ever():
    """`times=None` is every call from the first on."""
    storage = FaultyStorage(InMemoryStorage(), [Fault("put", "fail", first=3, times=None)])
    assert outcomes(storage, 6) == [True, True, False, False, False, False]


def test_chance_follows_the_seed():
    """The same seed gives the same faults, another one gives others, at about the asked rate."""
    plan = [Fault("put", "fail", times=None, probability=0.3)]
    first, again, other = (
        outcomes(FaultyStorage(InMemoryStorage(), plan, seed=seed), 400) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert 0.2 < first.count(False) / 400 < 0.4


def test_chance_does_not_depend_on_threads():
    """However the calls are spread over threads, as many fail."""
    plan = [Fault("put", "fail", times=None, probability=0.5)]
    alone = outcomes(FaultyStorage(InMemoryStorage(), plan), 200).count(False)
    storage = FaultyStorage(InMemoryStorage(), plan)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: outcomes(storage, 50, f"thread{n}/"), range(4)))
    assert storage.faults.struck["put", "fail"] == alone


def test_a_star_strikes_every_operation_that_the_kind_fits():
    """A fault of "*" strikes each method, but only where it can."""
    plan = [Fault("*", "lose_answer", times=None)]
    storage = FaultyStorage(InMemoryStorage(), plan)
    for call in (lambda: put(storage), lambda: storage.delete("k")):
        with pytest.raises(StorageError, match="the answer is lost"):
            call()
    assert list(storage.list("")) == []


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (Fault("puts", "fail"), "no such operation; known are .*put"),
        (Fault("put", "explode"), "no such kind; known are fail"),
        (Fault("put", "corrupt"), "'corrupt' strikes only get, get_range"),
        (Fault("*", "uncertain"), "'uncertain' strikes only elsewhere"),
        (Fault("put", "fail", first=0), "first is 1 or more"),
        (Fault("put", "fail", times=-1), "times 0 or more"),
        (Fault("put", "fail", probability=1.1), "probability 0 to 1"),
        (Fault("put", "delay"), "delays_ms"),
        (Fault("put", "delay", delays_ms=(-1,)), "delays_ms"),
        (Fault("put", "fail", delays_ms=(1,)), "delays_ms"),
    ],
    ids=str,
)
def test_a_plan_that_makes_no_sense_is_refused(fault, complaint):
    """A fault that could never strike is an error that says what is allowed."""
    with pytest.raises(ConfigError, match=complaint):
        FaultyStorage(InMemoryStorage(), [fault])


def test_repr_shows_what_was_struck():
    """The representation counts calls and faults and shows what is inside."""
    storage = FaultyStorage(InMemoryStorage(), [Fault("put", "fail")])
    outcomes(storage, 3)
    assert repr(storage) == (
        "<FaultyStorage <Faults [3 calls, 1 faults]> around <InMemoryStorage [2 objects]>>"
    )


# -- storage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [
        ("fail", "injected fault in call 1 of put: 'k'", False),
        ("disk_full", "No space left on device", False),
        ("lose_answer", "the answer is lost", True),
    ],
)
def test_a_put_fails_with_and_without_effect(kind, text, stored):
    """A failed put leaves nothing; one whose answer is lost leaves the object, to be repeated."""
    inner = InMemoryStorage()
    storage = FaultyStorage(inner, [Fault("put", kind)])
    with pytest.raises(StorageError, match=text):
        put(storage)
    assert [info.key for info in inner.list("")] == (["k"] if stored else [])
    put(storage)
    assert inner.get("k") == b"abc"


@pytest.mark.parametrize("read", ["get", "get_range"])
def test_corrupt_flips_one_bit(read):
    """What is read differs from what is stored in one bit, and only in the call that is struck."""
    content = bytes(1000)
    storage = FaultyStorage(InMemoryStorage(), [Fault(read, "corrupt")])
    put(storage, content=content)
    call = (lambda: storage.get("k")) if read == "get" else lambda: storage.get_range("k", 0, 1000)
    damaged = int.from_bytes(call(), "big") ^ int.from_bytes(content, "big")
    assert damaged.bit_count() == 1
    assert call() == content


@pytest.mark.parametrize("read", ["get", "get_range"])
def test_truncate_cuts_the_end_off(read):
    """What is read is a part of what is stored, and shorter."""
    content = bytes(range(256))
    storage = FaultyStorage(InMemoryStorage(), [Fault(read, "truncate")])
    put(storage, content=content)
    call = (lambda: storage.get("k")) if read == "get" else lambda: storage.get_range("k", 0, 256)
    damaged = call()
    assert len(damaged) < 256
    assert content.startswith(damaged)
    assert call() == content


def test_damage_to_nothing_is_nothing():
    """An empty object can be neither cut nor flipped."""
    plan = [Fault("get", "corrupt"), Fault("get", "truncate")]
    storage = FaultyStorage(InMemoryStorage(), plan)
    put(storage, content=b"")
    assert storage.get("k") == b""


def test_a_listing_breaks_off():
    """Half of a listing comes, and then the error."""
    storage = FaultyStorage(InMemoryStorage(), [Fault("list", "partial")])
    outcomes(storage, 10)
    found = []
    with pytest.raises(StorageError, match="broke off"):
        found.extend(storage.list(""))
    assert len(list(storage.list(""))) == 10


def test_a_delete_whose_answer_is_lost():
    """The object is gone although the delete raised."""
    storage = FaultyStorage(InMemoryStorage(), [Fault("delete", "lose_answer")])
    put(storage)
    with pytest.raises(StorageError):
        storage.delete("k")
    with pytest.raises(ObjectNotFoundError):
        storage.get("k")


def test_delays_come_from_the_list():
    """Each call that is struck sleeps for one of the delays, before anything else."""
    slept_s = []
    plan = [Fault("put", "delay", times=None, delays_ms=(10, 20)), Fault("put", "fail", first=3)]
    storage = FaultyStorage(InMemoryStorage(), plan, sleep=slept_s.append)
    assert outcomes(storage, 30).count(False) == 1
    assert len(slept_s) == 30
    assert set(slept_s) == {0.01, 0.02}


def test_a_call_hangs_until_released():
    """A call that hangs has no effect until `release`, and then it has."""
    inner = InMemoryStorage()
    storage = FaultyStorage(inner, [Fault("put", "hang", times=None)])
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(put, storage)
        assert storage.hung.wait(30)
        assert list(inner.list("")) == []
        storage.end_hangs()
        call.result()
    put(storage, "later")
    assert len(list(inner.list(""))) == 2


@pytest.mark.parametrize(("kind", "stored"), [("crash_before", 1), ("crash_after", 2)])
def test_the_crash_hook_is_called_before_or_after_the_effect(kind, stored):
    """The hook sees the state of the storage as the crash would leave it."""
    inner = InMemoryStorage()
    seen = []
    storage = FaultyStorage(
        inner, [Fault("put", kind, first=2)], crash=lambda: seen.append(len(list(inner.list(""))))
    )
    outcomes(storage, 3)
    assert seen == [stored]


def test_a_crash_kills_the_process():
    """Without a hook the process ends like `kill -9`, at just that call."""
    script = """
from memq.testing import InMemoryStorage
from tests.fakes.faults import Fault
from tests.fakes.faulty_storage import FaultyStorage
storage = FaultyStorage(InMemoryStorage(), [Fault("put", "crash_after", first=2)])
for number in range(5):
    print(number, flush=True)
    storage.put(str(number), [b""], timeout_s=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n1\n")


# -- queue ----------------------------------------------------------------------------------


async def faulty_queue(*plan, **options):
    """A queue with a topic to publish to, and the queue inside it."""
    inner = InMemoryQueue()
    queue = FaultyQueue(inner, plan, **options)
    await inner.create_topic("t", 1)
    await queue.fence("t", 0)
    return queue, inner


async def publish(queue, *payloads):
    """Publish payloads."""
    return await queue.publish("t", 0, [Publication(0, payload, 1) for payload in payloads])


async def held(queue):
    """The payloads that are published."""
    entries = await queue.fetch("t", 0, 0, max_entries=100, max_bytes=1 << 20)
    return [entry.payload for entry in entries]


@pytest.mark.parametrize("kind", ["fail", "disk_full"])
async def test_a_publish_that_fails_publishes_nothing(kind):
    """A certain failure has no effect and leaves the owner in place."""
    queue, inner = await faulty_queue(Fault("publish", kind))
    with pytest.raises(QueueError) as caught:
        await publish(queue, b"a")
    assert type(caught.value) is QueueError
    assert await held(inner) == []
    assert await publish(queue, b"a") == [0]


@pytest.mark.parametrize(
    ("kind", "published"),
    [("uncertain", []), ("lose_answer", [b"a", b"b", b"c"]), ("partial", [b"a"])],
)
async def test_an_uncertain_publish_refuses_more_until_fenced(kind, published):
    """None, all or some took effect; the next publication has to wait for a fence."""
    queue, inner = await faulty_queue(Fault("publish", kind))
    with pytest.raises(PublishUncertainError, match="call 1 of publish"):
        await publish(queue, b"a", b"b", b"c")
    assert await held(inner) == published
    with pytest.raises(FencedError, match="fence it first"):
        await publish(queue, b"d")
    await queue.fence("t", 0)
    assert await publish(queue, b"d") == [len(published)]


async def test_a_commit_whose_answer_is_lost():
    """The offsets are stored although the commit raised."""
    queue, inner = await faulty_queue(Fault("commit", "lose_answer"))
    with pytest.raises(QueueError):
        await queue.commit("g", "t", {0: 3})
    assert await inner.committed("g", "t") == {0: 3}


@pytest.mark.parametrize(
    "name",
    [name for name, each in vars(NotificationQueue).items() if iscoroutinefunction(each)],
)
async def test_every_call_of_a_queue_can_fail(name):
    """A plan for all operations leaves none out."""
    queue = FaultyQueue(InMemoryQueue(), [Fault("*", "fail")])
    if name != "close":
        arguments = list(signature(getattr(queue, name)).parameters.values())
        needed = [None for each in arguments if each.default is each.empty and each.kind < 2]
        named = {each.name: 1 for each in arguments if each.kind == each.KEYWORD_ONLY}
        with pytest.raises(QueueError, match=f"injected fault in call 1 of {name}"):
            await getattr(queue, name)(*needed, **named)
    await queue.close()


async def test_a_failed_fence_does_not_make_an_owner():
    """When the fence fails, an uncertain write partition stays refused."""
    queue, _ = await faulty_queue(Fault("publish", "uncertain"), Fault("fence", "fail", first=2))
    with pytest.raises(PublishUncertainError):
        await publish(queue, b"a")
    with pytest.raises(QueueError):
        await queue.fence("t", 0)
    with pytest.raises(FencedError):
        await publish(queue, b"a")


async def test_a_queue_call_is_late():
    """A delay goes through the sleeper that was given."""
    slept_s = []

    async def sleep(seconds):
        slept_s.append(seconds)

    queue, _ = await faulty_queue(Fault("publish", "delay", delays_ms=(250,)), sleep=sleep)
    await publish(queue, b"a")
    await publish(queue, b"b")
    assert slept_s == [0.25]


async def test_a_queue_call_hangs_until_released():
    """A publication that hangs is not published until `release`; others are not held up."""
    queue, inner = await faulty_queue(Fault("publish", "hang"))
    first = asyncio.ensure_future(publish(queue, b"a"))
    await queue.hung.wait()
    assert await publish(queue, b"b") == [0]
    queue.end_hangs()
    assert await first == [1]
    assert await held(inner) == [b"b", b"a"]


@pytest.mark.parametrize(("kind", "published"), [("crash_before", 0), ("crash_after", 1)])
@pytest.mark.parametrize("operation", ["publish", "commit"])
async def test_the_crash_hook_of_a_queue(operation, kind, published):
    """The hook is called before or after the effect of any operation."""
    seen = []
    queue, inner = await faulty_queue(Fault(operation, kind), crash=lambda: seen.append(True))
    if operation == "publish":
        await publish(queue, b"a")
    else:
        await queue.commit("g", "t", {0: 1})
    assert seen == [True]
    assert repr(queue).startswith("<FaultyQueue <Faults [2 calls, 1 faults]> around <InMemory")
    await inner.close()
