"""When a service behind a broker refuses, since when, and what is said of it."""

import asyncio

import pytest

from memq.broker import services as module
from memq.broker.services import GRACE_MS, SLOW_MS, Service, Services
from memq.core.clock import ClockReading
from memq.errors import (
    FencedError,
    InvalidRequestError,
    QueueError,
    QueueFailedError,
    StorageError,
    UnavailableError,
)

WALL_MS = 1_795_000_000_000


class Time:
    """A clock that is set."""

    mono_ms = 10_000

    def __call__(self) -> ClockReading:
        return ClockReading(self.mono_ms, WALL_MS + self.mono_ms)


@pytest.fixture
def now():
    """The clock."""
    return Time()


@pytest.fixture
def store(now):
    """A service that has worked."""
    found = Service("storage", "s3://b/", now)
    found.worked()
    return found


def fail(service, error, **options):
    """A call that fails."""
    with pytest.raises(type(error)), service.call(**options):
        raise error


def test_one_failure_is_none_of_the_service_and_many_are(store, now):
    """It refuses once calls have failed for a while and none has worked, since the first."""
    fail(store, StorageError("503 SlowDown"))
    now.mono_ms += GRACE_MS - 1
    assert store.state().words() == ""
    now.mono_ms += 1
    assert store.state().since_ms == WALL_MS + 10_000
    assert store.state().words().startswith("storage (s3://b/) refuses since 2026-11-18T")
    assert store.state().words().endswith(": 503 SlowDown")
    with store.call():
        pass
    assert store.state().words() == ""


def test_a_call_without_an_answer_refuses(store, now):
    """A call that hangs counts after a while, since it began, unless a later one has worked."""
    call = store.call()
    call.__enter__()
    now.mono_ms += SLOW_MS + 1
    assert store.state().since_ms == WALL_MS + 10_000
    assert store.state().words().endswith(": no answer")
    with store.call():
        pass
    assert store.state().words() == ""
    call.__exit__(None, None, None)
    assert store.state().words() == ""


def test_what_a_service_tells_this_broker_is_no_failure_of_it(store, now):
    """A fence, and an error of the request, are answers."""
    for error in (FencedError("x"), QueueFailedError("x"), InvalidRequestError("x")):
        fail(store, error)
    now.mono_ms += GRACE_MS
    assert store.state().words() == ""


async def test_it_is_asked_when_nothing_is_heard_of_it(store, now, monkeypatch):
    """An idle service that hangs is found out by a question, which is given up and asked again."""
    monkeypatch.setattr(module, "PROBE_S", 0.001)
    monkeypatch.setattr(module, "PROBE_LIMIT_S", 0.01)
    asked = asyncio.Queue()

    async def ask() -> None:
        asked.put_nowait(None)
        now.mono_ms += SLOW_MS + GRACE_MS
        await asyncio.Event().wait()

    now.mono_ms += 2
    watching = asyncio.ensure_future(store.watch(ask))
    for _ in range(2):
        await asyncio.wait_for(asked.get(), 10)
    assert store.state().words().endswith("no answer in time")
    watching.cancel()


def test_what_clients_are_told_names_the_service(now):
    """An error that may pass is told with the service; any other one is as it was."""
    services = Services(now, storage="s3://b/", queue="kafka://k:9092", zookeeper="")
    services.queue.failed("frozen", certain=True)
    told = services.explained(UnavailableError("no room came"))
    assert type(told) is UnavailableError
    assert str(told).startswith("no room came; kafka (kafka://k:9092) refuses since")
    for error in (QueueError("x"), StorageError("x")):
        assert type(services.explained(error)) is type(error)
        assert str(services.explained(error)).startswith("x; kafka (kafka://k:9092) refuses since")
    refused = InvalidRequestError("bad")
    assert services.explained(refused) is refused
    assert [state.name for state in services.states()] == ["storage", "kafka", "disk"]
