"""How a broker starts, stops, gives up, and what it does in the background meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import aiohttp
import pytest

from memq.broker import server
from memq.broker.config import BrokerConfig
from memq.broker.object_root import MissingObject, Presence
from memq.broker.retention import OrphanReport
from memq.broker.server import Broker, serve
from memq.core.clock import CLOCKS_DIFFER_MS, SavedTimes
from memq.core.governor.options import ZooKeeperOptions
from memq.core.notification.embedded import EmbeddedQueue
from memq.core.runtime import Runtime
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire import messages as m
from memq.errors import (
    ClosedError,
    ConfigError,
    CorruptDataError,
    LockedError,
    MemqError,
    QueueError,
    StorageError,
    UnavailableError,
)
from memq.testing.storage import InMemoryStorage
from tests.fakes.queue import InMemoryQueue
from tests.integration.broker.support import GatedStorage, broker, client, until


class PlantedError(Exception):
    """A bug."""


class AloneBroker(Broker):
    """A broker that lets its port go when it gives up; with its process else."""

    async def abandon(self) -> None:
        await super().abandon()
        if self._server is not None:
            self._server.close()


def made(tmp_path, **seams) -> Broker:
    """A broker that was not started."""
    options = {"data_dir": str(tmp_path / "data"), "port": 0, "admin_port": 0}
    options |= seams.pop("options", {})
    return AloneBroker(BrokerConfig.create(options), **seams)


def refuses(address: str) -> bool:
    """Whether nobody listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as asking:
        return asking.connect_ex((host, int(port))) != 0


async def get(b: Broker, path: str) -> tuple[int, str]:
    """Status and text of a page of the admin HTTP."""
    url = f"http://127.0.0.1:{b.admin_port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


class ClosedStorage(InMemoryStorage):
    """Says whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


# -- start ----------------------------------------------------------------------------------


def stray(monkeypatch, where, name: str, error: BaseException) -> None:
    """Let a step of the start fail."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, name, fail)


STEPS = [
    (EmbeddedQueue, "times"),
    (server, "BrokerContext"),
    (server.Handlers, "__init__"),
    (Broker, "_listen"),
    (server.OwnTopics, "start"),
    (server, "restore_groups"),
    (server, "look_for_objects"),
    (server.AdminServer, "start"),
    (server.FatalErrors, "watch"),
    (Broker, "_work"),
]


@pytest.mark.parametrize("error", [StorageError("503"), PlantedError("a bug")], ids=type)
@pytest.mark.parametrize(("where", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_start_that_fails_anywhere_leaves_nothing_open(
    tmp_path, monkeypatch, where, name, error
) -> None:
    """The error comes out as it was, storage and queue are closed, and the next start serves."""
    storage = ClosedStorage()
    first = made(tmp_path, storage=storage)
    with monkeypatch.context() as patch:
        stray(patch, where, name, error)
        with pytest.raises(type(error), match=str(error)) as raised:
            asyncio.run(serve(first, None))
        assert raised.value is error
        assert storage.closed
    again = made(tmp_path, storage=InMemoryStorage())
    assert asyncio.run(serve(again, lambda _: os.kill(os.getpid(), signal.SIGTERM))) == 0


def test_a_storage_that_cannot_be_opened_frees_the_queue(tmp_path, monkeypatch) -> None:
    """The queue, which is opened before, is not locked any more after such a start."""
    with monkeypatch.context() as patch:
        stray(patch, server, "open_storage", StorageError("no such bucket"))
        with pytest.raises(StorageError, match="no such bucket"):
            asyncio.run(serve(made(tmp_path), None))
    asyncio.run(EmbeddedQueue(tmp_path / "data/queue").close())


async def test_a_second_broker_is_refused_before_it_touches_the_storage(
    tmp_path, monkeypatch
) -> None:
    """Whose data directory is in use opens no storage, which would tidy up below the other."""
    async with broker(tmp_path / "data", queue=EmbeddedQueue(tmp_path / "data/queue")):
        monkeypatch.setattr(server, "open_storage", None)
        second = made(tmp_path)
        with pytest.raises(LockedError):
            await second.start()
        await second.abandon()


@pytest.mark.parametrize("first", [True, False])
async def test_a_storage_that_opens_after_the_start_was_given_up_is_closed(
    tmp_path, monkeypatch, first
) -> None:
    """Whether it is made before or after that moment, nothing waits for what it is asked."""
    storage, gates, begun = ClosedStorage(), [threading.Event() for _ in range(2)], []
    gates[0 if first else 1].set()

    def slow(*_, opened, **__):
        begun.append(threading.current_thread())
        assert gates[0].wait(60)
        opened(storage)
        begun.append(storage)
        assert gates[1].wait(60)
        return storage

    monkeypatch.setattr(server, "open_storage", slow)
    given_up = made(tmp_path, queue=InMemoryQueue())
    starting = asyncio.ensure_future(given_up.start())
    await until(lambda: len(begun) == 1 + first)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert not storage.closed
    await given_up.abandon()
    assert storage.closed == first
    for gate in gates:
        gate.set()
    await until(lambda: storage.closed)


async def test_nobody_is_served_before_the_topics_are_taken_over(tmp_path, monkeypatch) -> None:
    """The port is claimed first and answers last; /ready is not there before the topics are."""
    going, reached = asyncio.Event(), asyncio.Event()
    look = server.look_for_objects

    async def slow(*arguments):
        reached.set()
        await going.wait()
        return await look(*arguments)

    monkeypatch.setattr(server, "look_for_objects", slow)
    running = made(tmp_path, storage=InMemoryStorage(), queue=InMemoryQueue())
    starting = asyncio.ensure_future(running.start())
    await reached.wait()
    assert not running.context.ready
    assert running.context.not_ready() == ["it starts or stops"]
    assert refuses(running.address)
    assert running.admin_port == 0
    going.set()
    await starting
    assert running.context.not_ready() == []
    async with client(running) as c:
        assert (await c.ask(m.Metadata(topics=None))).topics
    assert (await get(running, "/ready"))[0] == 200
    assert await running.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "a" * 70}, "cannot listen on a"),
        ({"host": "nobody.invalid"}, "cannot listen on nobody.invalid:0: .*; set another port"),
    ],
)
async def test_a_host_that_is_none_is_named(tmp_path, options, said) -> None:
    """A name that no host has, or can have, is refused with what to change."""
    failing = made(tmp_path, options=options, storage=InMemoryStorage(), queue=InMemoryQueue())
    with pytest.raises(UnavailableError, match=said):
        await failing.start()
    await failing.abandon()


@pytest.mark.parametrize("host", ["127.0.0.1", "a" * 70])
async def test_an_admin_port_that_is_taken_is_named(tmp_path, monkeypatch, host) -> None:
    """The error says which of the two ports is to be changed."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        options = {"admin_port": port, "host": host}
        failing = made(tmp_path, options=options, storage=InMemoryStorage(), queue=InMemoryQueue())
        if host != "127.0.0.1":  # only the admin HTTP is told of it
            listen = partial(asyncio.start_server, lambda *_: None, "127.0.0.1", 0)
            monkeypatch.setattr(failing, "_listen", listen)
        with pytest.raises(UnavailableError, match=f"{host}:{port}: .*; set another admin_port"):
            await failing.start()
        await failing.abandon()


async def test_an_address_of_ipv6_is_told_in_brackets(tmp_path) -> None:
    """A client reaches the broker under the address that it tells, also of IPv6."""
    async with broker(tmp_path, host="::1") as b, client(b) as c:
        assert b.address.startswith("[::1]:")
        answer = await c.ask(m.Metadata(topics=None))
        assert [each.address for each in answer.brokers] == [b.address]
    async with broker(tmp_path, advertised="front:1") as b:
        assert b.address == "front:1"


async def test_a_data_directory_that_cannot_be_made_is_named(tmp_path) -> None:
    """Below a file there is no folder; the error is one of the storage, and says where."""
    (tmp_path / "data").write_bytes(b"")
    failing = made(tmp_path, options={"data_dir": str(tmp_path / "data/below")})
    with pytest.raises(StorageError, match=f"cannot make {tmp_path}/data/below: "):
        await failing.start()
    for option in ("data_dir", "storage"):
        options = {"data_dir": str(tmp_path / "other")} | {
            option: (tmp_path / "data").as_uri() if option == "storage" else str(tmp_path / "data")
        }
        with pytest.raises(ConfigError, match=f"{option} = {tmp_path}/data is a file"):
            await made(tmp_path, options=options).start()
        assert not (tmp_path / "other").exists()


class KafkaBroker(AloneBroker):
    """A broker whose queue is elsewhere."""

    async def _open_queue(self, *_) -> InMemoryQueue:
        return InMemoryQueue()


@pytest.mark.parametrize("kind", [AloneBroker, KafkaBroker])
async def test_the_disks_that_are_looked_at_are_those_that_are_written_to(tmp_path, kind) -> None:
    """Objects and queue where they are folders; with a queue elsewhere the data directory."""
    data, objects = tmp_path / "data", tmp_path / "objects"
    options = {"data_dir": str(data), "storage": objects.as_uri(), "port": 0, "admin_port": 0}
    objects.mkdir()
    if kind is KafkaBroker:
        options["queue"] = "kafka://k:9092"
    b = kind(BrokerConfig.create(options))
    await b.start()
    await until(lambda: len(b.context.disk.free_bytes) == 2)
    of_queue = data if kind is KafkaBroker else data / "queue"
    assert set(b.context.disk.free_bytes) == {str(objects), str(of_queue)}
    assert await b.stop()
    async with broker(data / "given") as b:
        assert b.context.disk._folders == []


async def test_what_is_elsewhere_is_opened_as_configured(tmp_path, monkeypatch) -> None:
    """Storage, queue and ZooKeeper get their options, and a failure of the queue is fatal."""
    opened = {}

    async def kafka(*arguments, **named):
        opened["kafka"] = (arguments, named)
        return InMemoryQueue()

    async def zookeeper(options, runtime):
        opened["zookeeper"] = (options, runtime)

    def storage(*arguments, opened: object):
        assert opened == b._opened
        at_storage.extend(arguments)
        return InMemoryStorage()

    at_storage = []
    monkeypatch.setattr(server, "open_kafka", kafka)
    monkeypatch.setattr(server, "open_zookeeper", zookeeper)
    monkeypatch.setattr(server, "open_storage", storage)
    options = {
        "queue": "kafka://k:9092",
        "queue_options": "security.protocol=SSL",
        "storage": "s3://bucket/x",
        "storage_options": "region=eu-west-1",
        "cluster_id": "c",
        "broker_id": "one",
        "upload_threads": 3,
    }
    runtime = Runtime()
    b = made(tmp_path, options=options, runtime=runtime)
    await b.start()
    config = b.config
    given, named = opened["kafka"]
    assert given == ("kafka://k:9092", config.queue_options)
    report = named.pop("on_failure")
    assert named == {"cluster_id": "c", "broker_id": "one", "runtime": runtime}
    assert at_storage == ["s3://bucket/x", config.storage_options, runtime]
    assert b.context.uploads._max_workers == 2 * 3
    assert b.context.upload_slots._value == 3
    share = server.ANSWERS_SHARE
    assert b.context.scheduler.limit_bytes == int(config.memory_bytes * share)
    assert b.context.memory.limit_bytes == config.memory_bytes
    report("queue", PlantedError("a bug"))
    assert isinstance(await b.failed(), PlantedError)
    assert await b.stop()
    cluster = {"zookeeper": "zk:2181/memq/", "zookeeper_options": "session_timeout=7s"}
    member = made(tmp_path, options=options | cluster, runtime=runtime)
    await member._open_coordination()
    found, of = opened["zookeeper"]
    assert of is runtime
    assert found == ZooKeeperOptions.read("zk:2181/memq/c", member.config.zookeeper_options)


# -- stop -----------------------------------------------------------------------------------


class Threads:
    """A machine whose executors are remembered."""

    def __init__(self, **clocks) -> None:
        self.made: list[ThreadPoolExecutor] = []
        self.runtime = Runtime(threads=self._make, **clocks)

    def _make(self, count: int, name: str) -> ThreadPoolExecutor:
        self.made.append(ThreadPoolExecutor(count, name))
        return self.made[-1]

    def __iter__(self):
        return iter(self.made)


async def test_a_stop_in_its_order(tmp_path) -> None:
    """While what was accepted is stored nobody new is let in; all is acked, and then closed."""
    storage, queue, threads, steps = GatedStorage(), InMemoryQueue(), Threads(), []
    note = lambda name, call: lambda *args: (steps.append(name), call(*args))[1]  # noqa: E731
    queue.save_times = note("times", queue.save_times)
    queue.close = note("queue", queue.close)
    storage.close = note("storage", storage.close)
    b = made(tmp_path, storage=storage, queue=queue, runtime=threads.runtime)
    await b.start()
    context = b.context
    async with client(b) as c:
        await c.create(batch_age="1ms")
        storage.gate.clear()
        writing = asyncio.ensure_future(c.write(0))
        await until(lambda: context.memory.used_bytes > 0)
        background = list(b._background)
        steps.clear()
        stopping = asyncio.ensure_future(b.stop())
        await until(lambda: context.stopping)
        assert context.not_ready() == ["it starts or stops"]
        assert refuses(b.address)
        assert await get(b, "/health") == (200, "ok, but not ready: it starts or stops\n")
        assert await get(b, "/ready") == (503, "not ready: it starts or stops\n")
        with pytest.raises(ClosedError):
            context.check_not_stopping()
        with pytest.raises(MemqError):
            await c.write(1)
        assert not steps
        assert not any(each.done() for each in background)
        storage.gate.set()
        assert (await writing).offset == 0  # the ack leaves before the connection is closed
        assert await stopping is True
        await until(lambda: c.connection.closed)
    assert steps[-3:] == ["times", "queue", "storage"]
    assert all(each.done() for each in background)
    assert len(background) == 4
    assert len(b.connections) == 0
    assert refuses(f"127.0.0.1:{b.admin_port}")
    assert len(list(threads)) == 3
    assert all(each._shutdown for each in threads)
    assert not any(thread.is_alive() for each in threads for thread in each._threads)


async def test_a_stop_saves_the_time(tmp_path) -> None:
    """The next life goes on where this one has ended, and tells no watermark of before."""
    passed, queue = [0.0], InMemoryQueue()
    runtime = Runtime(mono_s=lambda: time.monotonic() + passed[0])
    async with broker(tmp_path, queue=queue, runtime=runtime) as b:
        begun = b.context.now()
        passed[0] += 1_000
    shared = queue.another_process()
    saved = await shared.times()
    assert saved.running_ms >= begun.mono_ms + 1_000_000
    assert saved.wall_ms == b.context.times.saved.wall_ms


async def test_a_queue_that_fails_at_the_end_keeps_nothing_open(tmp_path, caplog) -> None:
    """The time that was not saved is told of in the log; the broker has drained and closes all."""
    storage, queue = ClosedStorage(), InMemoryQueue()

    async def full(_: SavedTimes) -> None:
        raise QueueError("no space left")

    queue.save_times = full
    b = made(tmp_path, storage=storage, queue=queue)
    await b.start()
    loop = asyncio.get_running_loop()
    assert await b.stop() is True
    assert (
        "the time was not saved, the next start goes on from before: no space left" in caplog.text
    )
    assert storage.closed
    with pytest.raises(ClosedError):
        await queue.times()
    assert loop.get_exception_handler() is None


async def test_an_upload_that_hangs_does_not_keep_the_broker(tmp_path) -> None:
    """After the time to drain the broker ends and says that it did not; nothing was acked."""
    storage, threads = GatedStorage(), Threads()
    options = {"drain_timeout": "50ms"}
    b = made(tmp_path, options=options, storage=storage, runtime=threads.runtime)
    await b.start()
    try:
        async with client(b) as c:
            await c.create(batch_age="1ms")
            storage.gate.clear()
            writing = asyncio.ensure_future(c.write(0))
            await until(lambda: b.context.memory.used_bytes > 0)
            executors = (b.context.reads, b.context.uploads)
            waiting = [each.submit(storage.gate.wait, 60) for each in executors for _ in range(50)]
            async with asyncio.timeout(20):
                assert await b.stop() is False
            assert [each.cancelled() for each in waiting].count(True) > 50
            with pytest.raises(MemqError):
                await writing
        assert all(each._shutdown for each in threads)
    finally:
        storage.gate.set()


async def test_a_question_that_hangs_does_not_keep_the_broker(tmp_path, monkeypatch) -> None:
    """A probe of a store that answers nobody is left behind, and so are those that wait."""
    gate, asked = threading.Event(), []

    class Silent(InMemoryStorage):
        remote = True

        def get_range(self, *_):
            asked.append(True)
            assert gate.wait(60)
            return b""

    threads = Threads()
    b = made(tmp_path, storage=Silent(), queue=InMemoryQueue(), runtime=threads.runtime)
    monkeypatch.setattr("memq.broker.services.PROBE_S", 0.001)
    try:
        await b.start()
        await until(lambda: asked)
        waiting = [b._asks.submit(gate.wait, 60) for _ in range(2 * server.ASK_THREADS)]
        async with asyncio.timeout(20):
            assert await b.stop() is True
        assert waiting[-1].cancelled()
        assert all(each._shutdown for each in threads)
    finally:
        gate.set()


async def test_locks_go_with_the_broker(tmp_path) -> None:
    """Objects, queue and folder are free for the next broker in the same process."""
    for _ in range(2):
        b = made(tmp_path)
        await b.start()
        assert list((tmp_path / "data/objects").glob("*.lock"))
        assert await b.stop()


# -- a process ------------------------------------------------------------------------------


def kill(number: int) -> None:
    """A signal to this process."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path, number) -> None:
    """SIGTERM and SIGINT stop it once it serves, with exit code 0."""
    storage, seen = ClosedStorage(), []

    def ready(b: Broker) -> None:
        seen.append(b.context.not_ready())
        kill(number)

    assert asyncio.run(serve(made(tmp_path, storage=storage), ready)) == 0
    assert seen == [[]]
    assert storage.closed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start(tmp_path, monkeypatch, number) -> None:
    """It gives up what it has begun, says it is no failure, and is never ready."""
    storage, ended = ClosedStorage(), []

    async def long(*_: object) -> None:
        kill(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    monkeypatch.setattr(server, "look_for_objects", long)
    assert asyncio.run(serve(made(tmp_path, storage=storage), ended.append)) == 0
    assert ended == [True]
    assert storage.closed
    monkeypatch.undo()
    asyncio.run(EmbeddedQueue(tmp_path / "data/queue").close())


def test_an_error_that_nothing_expected_is_a_failure(tmp_path) -> None:
    """It stops the broker, in order, and the exit code tells of it though all was stored."""
    storage = ClosedStorage()

    def ready(b: Broker) -> None:
        b.context.fatal_errors.report("here", PlantedError("a bug"))

    assert asyncio.run(serve(made(tmp_path, storage=storage), ready)) == 1
    assert storage.closed


def test_what_was_not_drained_is_a_failure(tmp_path, monkeypatch) -> None:
    """A supervisor learns from the exit code that something that was accepted was not acked."""

    async def not_drained(*_: object) -> bool:
        return False

    monkeypatch.setattr(server.OwnTopics, "stop", not_drained)
    running = made(tmp_path, storage=InMemoryStorage())
    assert asyncio.run(serve(running, lambda _: kill(signal.SIGTERM))) == 1


def test_a_hangup_reads_the_tokens_again(tmp_path) -> None:
    """SIGHUP has the file of tokens read again, and ends nothing."""
    file = tmp_path / "tokens"
    file.write_text("old\n")
    said = []

    def ready(b: Broker) -> None:
        file.write_text("new\n")
        kill(signal.SIGHUP)
        asyncio.get_running_loop().call_later(0, later, b)

    def later(b: Broker) -> None:
        said.extend([b.tokens.accept("old"), b.tokens.accept("new")])
        if said[-1]:
            kill(signal.SIGTERM)
        else:
            asyncio.get_running_loop().call_later(0.001, later, b)

    running = made(tmp_path, options={"token_file": str(file)}, storage=InMemoryStorage())
    assert asyncio.run(serve(running, ready)) == 0
    assert said[-2:] == [False, True]


# -- in the background ----------------------------------------------------------------------


class Rounds:
    """What retention does in a broker, noted by topic, in rounds that are awaited."""

    def __init__(self, monkeypatch) -> None:
        self.done: list[tuple[str, str]] = []
        self.deleted: list[list[str]] = []
        self.errors: dict[tuple[str, str], Exception] = {}
        self.meanwhile = lambda _: None
        monkeypatch.setattr(server, "scan_orphans", self._scan)
        monkeypatch.setattr(server, "forget_expired", self._forget)
        monkeypatch.setattr(server, "delete_expired", self._delete)

    def _note(self, what: str, name: str) -> None:
        self.done.append((what, name))
        if (what, name) in self.errors:
            raise self.errors[what, name]

    async def _scan(self, hosted, _) -> OrphanReport:
        self._note("scan", hosted.topic.name)
        self.meanwhile(hosted)
        return OrphanReport(1, 1, [f"orphan of {hosted.topic.name}"])

    async def _forget(self, hosted, _) -> list[str]:
        self._note("forget", hosted.topic.name)
        return [f"expired of {hosted.topic.name}"]

    async def _delete(self, keys, _) -> None:
        self.deleted.append(keys)

    async def round(self) -> None:
        """Wait for one that has begun after this moment."""
        self.done.clear()
        count = len(self.deleted)
        await until(lambda: len(self.deleted) > count)
        self.done.clear()
        await until(lambda: len(self.deleted) > count + 1)


OFTEN = {"retention_interval": "100ms"}


async def test_orphans_are_looked_for_at_the_start_and_then_now_and_then(
    tmp_path, monkeypatch
) -> None:
    """Retention is looked at in each round, orphans when their interval has passed, every topic."""
    passed, rounds = [0.0], Rounds(monkeypatch)
    runtime = Runtime(mono_s=lambda: time.monotonic() + passed[0])
    queue = InMemoryQueue()
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create("t")
    options = OFTEN | {"orphan_interval": "1h"}
    rounds.deleted.clear()
    successor = queue.another_process()
    await successor.save_times(SavedTimes(10**9, 0))  # it has run for days
    async with broker(tmp_path, queue=successor, runtime=runtime, **options) as b:
        await until(lambda: rounds.deleted)
        both = {"t", AUDIT_TOPIC}
        assert {name for what, name in rounds.done if what == "scan"} == both
        assert set(rounds.deleted[0]) == {
            f"{a} of {t}" for a in ("orphan", "expired") for t in both
        }
        await rounds.round()
        assert {what for what, _ in rounds.done} == {"forget"}
        passed[0] += 3_590
        await rounds.round()
        assert {what for what, _ in rounds.done} == {"forget"}
        passed[0] += 20
        await until(lambda: {name for what, name in rounds.done if what == "scan"} == both)
        await rounds.round()
        assert {what for what, _ in rounds.done} == {"forget"}


@pytest.mark.parametrize("what", ["scan", "forget"])
@pytest.mark.parametrize("failing", ["t", AUDIT_TOPIC])
async def test_a_topic_whose_retention_fails_costs_no_other(
    tmp_path, monkeypatch, caplog, what, failing
) -> None:
    """It is named and tried again; what has expired of the others is deleted in the same round."""
    rounds = Rounds(monkeypatch)
    rounds.errors[what, failing] = CorruptDataError("damaged")
    options = OFTEN | {"orphan_interval": "100ms"}
    async with broker(tmp_path, **options) as b, client(b) as c:
        await c.create("t")
        await rounds.round()
        (other,) = {"t", AUDIT_TOPIC} - {failing}
        assert f"{failing}: retention failed, later again: damaged" in caplog.text
        assert f"expired of {other}" in rounds.deleted[-1]
        assert f"expired of {failing}" not in rounds.deleted[-1]
        rounds.errors.clear()
        await until(lambda: f"expired of {failing}" in rounds.deleted[-1])
        assert not b.context.fatal_errors.failure.done()


async def test_a_time_that_is_not_saved_keeps_no_retention(tmp_path, monkeypatch, caplog) -> None:
    """On a full disk what has expired is deleted all the same, and the time is saved later."""
    rounds, queue, refusing = Rounds(monkeypatch), InMemoryQueue(), [True]
    save = queue.save_times

    async def full(times: SavedTimes) -> None:
        if refusing:
            raise QueueError("no space left")
        await save(times)

    queue.save_times = full
    async with broker(tmp_path, queue=queue, **OFTEN) as b:
        await rounds.round()
        assert rounds.deleted[-1] == [f"expired of {AUDIT_TOPIC}"]
        assert "the time was not saved, later again: no space left" in caplog.text
        refusing.clear()
        before = b.context.times.saved
        await until(lambda: b.context.times.saved.running_ms > before.running_ms)


@pytest.mark.parametrize("lost", ["lease", "partition"])
@pytest.mark.parametrize("when", ["before", "during"])
async def test_who_is_not_sure_of_a_topic_deletes_nothing_of_it(
    tmp_path, monkeypatch, lost, when
) -> None:
    """Without its lease, or write partition 0, even if it goes in a scan; repeats are forgotten."""
    rounds, expired_at = Rounds(monkeypatch), []
    options = OFTEN | {"orphan_interval": "100ms"}
    async with broker(tmp_path, **options) as b, client(b) as c:
        await c.create("t")
        hosted = b.topics.get("t")
        window = hosted.partitions[0].processor.window
        monkeypatch.setattr(window, "expire", expired_at.append)

        def lose(where) -> None:
            if where is hosted:
                if lost == "lease":
                    b.context.leased = lambda: False
                else:
                    hosted.coordinated = False

        if when == "before":
            lose(hosted)
            await rounds.round()
            assert ("scan", "t") not in rounds.done
        else:
            rounds.meanwhile = lose
            await until(lambda: not hosted.coordinated or not b.context.leased())
            await until(lambda: rounds.deleted and expired_at)
        await rounds.round()
        assert ("forget", "t") not in rounds.done
        assert not [each for each in rounds.deleted[-1] if each.endswith(" t")]
        assert expired_at
        assert not b.context.fatal_errors.failure.done()


@pytest.mark.parametrize("shared", [False, True])
async def test_repeats_are_known_for_as_long_as_clocks_differ(
    tmp_path, monkeypatch, shared
) -> None:
    """An owner before may have been behind, so the window of a cluster's broker is longer."""
    Rounds(monkeypatch)
    async with broker(tmp_path, **OFTEN) as b, client(b) as c:
        await c.create("t", write_partitions=2)
        b.context.shared = shared
        found = []
        for partition in b.topics.get("t").partitions.values():
            expire = lambda now_ms: found.append(b.context.now().mono_ms - now_ms)  # noqa: E731
            monkeypatch.setattr(partition.processor.window, "expire", expire)
        await until(lambda: len(found) >= 4)
        room_ms = CLOCKS_DIFFER_MS if shared else 0
        assert all(room_ms <= each < room_ms + 30_000 for each in found)


LOST = MissingObject("t", 0, 7, "00/key", "memory:///00/key")


async def test_missing_objects_are_told_of_once_and_so_is_their_end(
    tmp_path, monkeypatch, caplog
) -> None:
    """While some are missing they are looked for; a storage that cannot tell changes nothing."""
    answers = [Presence("r", 2, (LOST,), 0)]
    looked = []

    async def look(_, topics, *__):
        looked.append([topic.name for topic in topics])
        return answers[-1]

    monkeypatch.setattr(server, "look_for_objects", look)
    queue = InMemoryQueue()
    async with broker(tmp_path, queue=queue) as b, client(b) as c:
        await c.create("t")
    successor = queue.another_process()
    caplog.clear()
    caplog.set_level(logging.WARNING)
    looked.clear()
    async with broker(tmp_path, queue=successor, **OFTEN) as b:

        async def answered(*presence) -> list[str]:
            answers.append(Presence("r", *presence))
            caplog.clear()
            count = len(looked)
            await until(lambda: len(looked) > count + 1 or not b.context.presence.missing)
            said = [each.getMessage() for each in caplog.records if each.name == server.__name__]
            return [each for each in said if "objects" in each or "object" in each]

        assert looked[0] == ["t", AUDIT_TOPIC]  # an example that users know comes first
        assert caplog.text.count("objects are missing") == 1
        assert b.context.not_ready() == []  # of two one is there
        assert await answered(2, (LOST, LOST), 0) == []
        assert len(b.context.not_ready()) == 1
        said = await answered(0, (), 3)
        assert set(said) == {"the storage does not say what is there of 3 objects"}
        assert len(b.context.not_ready()) == 1
        assert await answered(1, (LOST,), 3) == []
        assert b.context.presence.unknown == 3
        assert await answered(2, (), 0) == ["no object is missing any more"]
        assert b.context.not_ready() == []
        count = len(looked)
        saved = b.context.times.saved
        await until(lambda: b.context.times.saved.running_ms > saved.running_ms + 200)
        assert len(looked) == count


async def test_a_disk_must_have_room_for_the_largest_batch(tmp_path, monkeypatch) -> None:
    """What must be free is that of any topic with the pages of the queue; a look may fail."""
    needed: list[int] = []
    monkeypatch.setattr(server, "DISK_S", 0.001)

    def look(_, needed_bytes: int) -> None:
        needed.append(needed_bytes)
        if len(needed) % 2:
            raise StorageError("objects has 1 KiB free")

    monkeypatch.setattr(server.DiskSpace, "look", look)
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("small", batch_bytes="5MiB")
        await c.create("large", batch_bytes="9MiB")
        await c.create("medium", batch_bytes="6MiB")
        needed.clear()
        await until(lambda: len(needed) > 3)
        assert needed[-1] == server.QUEUE_BYTES + (9 << 20)
        assert not b.context.fatal_errors.failure.done()


async def test_the_sweep_sees_to_every_write_partition(tmp_path, monkeypatch) -> None:
    """What is parked in any topic and partition is looked at, memory only every few seconds."""
    monkeypatch.setattr(server, "SWEEP_S", 0.001)
    passed, swept, tidied = [0.0], [], []
    runtime = Runtime(mono_s=lambda: 1_000 + passed[0])
    async with broker(tmp_path, runtime=runtime) as b, client(b) as c:
        for name in ("s", "t"):
            await c.create(name, write_partitions=2)
        monkeypatch.setattr(b.context.memory, "tidy", lambda: tidied.append(passed[0]))
        of = {
            (name, number): partition
            for name in ("s", "t")
            for number, partition in b.topics.get(name).partitions.items()
        }
        for at, partition in of.items():
            monkeypatch.setattr(partition, "expire_parked", lambda _, at=at: swept.append(at))
        ticks = []
        monkeypatch.setattr(b.groups, "tick", ticks.append)
        await until(lambda: len(swept) > 8)
        assert set(swept) == set(of)
        assert set(ticks) == {b.context.now().mono_ms}
        passed[0] += 1.9
        swept.clear()
        await until(lambda: len(swept) > 8)
        assert not tidied
        passed[0] += 0.2
        await until(lambda: tidied)
        swept.clear()
        await until(lambda: len(swept) > 8)
        assert len(tidied) == 1


async def test_an_end_of_a_group_that_is_not_stored_is_tried_again(tmp_path, monkeypatch) -> None:
    """A queue that fails then stops nothing."""
    monkeypatch.setattr(server, "TIDY_GROUPS_S", 0.001)
    async with broker(tmp_path) as b:
        tried = []

        async def tidy() -> None:
            tried.append(True)
            raise QueueError("no space left")

        monkeypatch.setattr(b.handlers.stored_groups, "tidy", tidy)
        await until(lambda: len(tried) > 3)
        assert not b.context.fatal_errors.failure.done()
