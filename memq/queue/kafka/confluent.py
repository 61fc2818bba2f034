"""The seam to Kafka through confluent-kafka, which is librdkafka.

What of it blocks runs in threads of ours: one for each way of using Kafka, so that none waits for
another. Records of followed partitions come by one consumer, whose thread hands them to the event
loop. What was published longer ago is read by other consumers: to give a consumer another partition
takes 2 ms, but up to `FOLLOW_WAIT_MS` while it waits for news of those that it has.

Errors, as they were measured: a client locked out by a password or a certificate sees a timeout;
a commit that timed out can be called again, and its transaction may be committed all the while; a
producer whose transactional id has another one gets `_FENCED`, and takes nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import confluent_kafka as ck
from confluent_kafka import admin

from memq.core.queue import MAX_PAYLOAD_BYTES
from memq.errors import (
    ClosedError,
    ConfigError,
    FencedError,
    MemqError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueError,
    QueueFailedError,
    UnknownTopicError,
)
from memq.queue.kafka.client import Bounds, KafkaRecord, Place, log_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from memq.queue.kafka.client import NewRecord, OnFailure, Reader
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Partition = tuple[str, int]
_Change = tuple[Place, int, "Reader | None"]  # what to follow, from where on, who is told

REQUEST_S = 10.0  # of an ordinary request; Kafka answers in milliseconds, or is away
COMMIT_S = 60.0  # a commit that is not answered is asked for again until then
TRANSACTION_MS = 10_000  # after which Kafka ends what a producer that died has left open
BEGIN_S = 60.0  # to be the one producer of an id; ends after the transaction of the one before
FOLLOW_WAIT_MS = 100  # how long Kafka waits for news before it answers that there are none
READERS = 2  # consumers that read what was published longer ago
APPEND_S = 60.0  # for records that are restored
WAIT_S = 75.0  # for anything that is asked in a thread, with its turn there
SETTLED_S = 30.0  # for a topic that was made or deleted to be so at every broker of Kafka
LOOK_AGAIN_S = 0.05
LOOK_S = 0.02  # within which the thread that follows sees that it is to follow others, or to end
SAME_LOG_S = 30.0  # between two lines of one kind of librdkafka's log
LOOK_AT_ONCE = 1_000  # partitions that are asked about in one request
MAX_TOLD = 10_000  # topics that a consumer is known to know
READ_AT_ONCE = 2_000  # records that a consumer hands over at a time

TOPIC_PREFIX = "topic."  # of options that are of topics, not of connections
_CONSUMER: dict[str, Any] = {
    "group.id": "memq",  # asked for, and never used
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,  # it tells how far was read
    "auto.offset.reset": "error",  # what is gone must be told, not skipped
    "client.rack": "",  # what a leader has committed must be seen at once
}
_PRODUCER: dict[str, Any] = {
    "transaction.timeout.ms": TRANSACTION_MS,
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0,
    "message.max.bytes": MAX_PAYLOAD_BYTES * 2,
    "delivery.report.only.error": False,  # offsets come with these reports
    "queue.buffering.max.messages": 100_000,  # transactions have their own bounds
    "queue.buffering.max.kbytes": 1 << 20,
}
OURS = {**_CONSUMER, **_PRODUCER, "bootstrap.servers": None, "transactional.id": None}

_GONE = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - its public name
    ck.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}
_OUT_OF_RANGE = {
    ck.KafkaError.OFFSET_OUT_OF_RANGE,
    ck.KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
    ck.KafkaError._LOG_TRUNCATION,  # noqa: SLF001
}
_FENCED = {
    ck.KafkaError._FENCED,  # noqa: SLF001
    ck.KafkaError.PRODUCER_FENCED,
    ck.KafkaError.INVALID_PRODUCER_EPOCH,
}
_REFUSED = {
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ck.KafkaError.SASL_AUTHENTICATION_FAILED,
    ck.KafkaError.UNSUPPORTED_VERSION,
    ck.KafkaError.POLICY_VIOLATION,
    ck.KafkaError.INVALID_CONFIG,
    ck.KafkaError.INVALID_REPLICATION_FACTOR,
}
_NO_ANSWER = {ck.KafkaError._TIMED_OUT, ck.KafkaError._TRANSPORT}  # noqa: SLF001
_SAYS_WHY = {"FAIL", "ERROR"}  # kinds of lines in librdkafka's log
_HUNG_UP = ": Disconnected"  # in such a line
_EOF = ck.KafkaError._PARTITION_EOF  # noqa: SLF001

_RUNNING = "running-ms"  # the header that has a record's running time


class ConfluentClient:
    """A `KafkaClient`. It belongs to the event loop that first uses it.

    Args:
        bootstrap: `host:port` of some brokers of Kafka, comma-separated.
        options: settings of librdkafka, such as `security.protocol`; those that begin with
            `topic.` are for the topics that are made, as `topic.min.insync.replicas`, and
            `topic.replication.factor` says how many replicas they have.
        runtime: threads.
        on_failure: told, on the event loop, of a bug after which nothing is followed any more.

    Raises:
        ConfigError: an option is not known to librdkafka, or is ours to set.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, str],
        runtime: Runtime,
        on_failure: OnFailure = log_failure,
    ) -> None:
        for name in options:
            if name in OURS:
                raise ConfigError(f"queue_options: {name} cannot be set: memq does so itself")
        of_topics = {
            name.removeprefix(TOPIC_PREFIX): value
            for name, value in options.items()
            if name.startswith(TOPIC_PREFIX)
        }
        self._replicas = _replicas(of_topics.pop("replication.factor", "-1"))
        self._topic_settings = of_topics
        self._settings: dict[str, Any] = {
            name: value for name, value in options.items() if not name.startswith(TOPIC_PREFIX)
        } | {"bootstrap.servers": bootstrap}
        self._bootstrap = bootstrap
        self._on_failure = on_failure
        self._log = _Log(runtime.mono_s)
        self._admin = self._made(admin.AdminClient, {})
        self._closed = threading.Event()
        self._readers: dict[Place, Reader] = {}
        self._tail = self._consumer({"fetch.wait.max.ms": FOLLOW_WAIT_MS})
        self._looks_at_committed = self._consumer({})
        self._looks_at_all = self._consumer({"isolation.level": "read_uncommitted"})
        self._changes: queue.SimpleQueue[_Change] = queue.SimpleQueue()  # of what is followed
        self._idle: queue.SimpleQueue[_Consumer] = queue.SimpleQueue()
        for _ in range(READERS):
            self._idle.put(self._consumer({"fetch.wait.max.ms": 0}))  # the end is told at once
        self._publishing = runtime.threads(1, "memq-kafka-publish")
        self._fencing = runtime.threads(4, "memq-kafka-fence")
        self._reading = runtime.threads(READERS, "memq-kafka-read")
        self._asking = runtime.threads(1, "memq-kafka-ask")
        self._looking = asyncio.Lock()
        self._wanted: dict[Place, None] = {}  # by those who share the next look
        self._next_look: asyncio.Task[dict[Place, Bounds]] | None = None
        self._follower: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<ConfluentClient {self._bootstrap} [{len(self._readers)} followed]>"

    # -- topics -----------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> int:
        """Make a topic, or find it there, and wait until each of its partitions serves."""
        new = admin.NewTopic(  # type: ignore[attr-defined]
            name, partitions, self._replicas, config=self._topic_settings | {**settings}
        )
        try:
            asked = self._admin.create_topics([new], request_timeout=REQUEST_S)[name]
            await self._asked(asked, f"make topic {name}")
        except _AlreadyThereError:  # not every broker of Kafka knows at once what was just made
            what = f"topic {name} is there and cannot be used"
            partitions = await self._until(lambda: self._listed(name), what)
        places = [Place(name, partition) for partition in range(partitions)]
        await self._until(lambda: self.bounds(places), f"topic {name} does not serve")
        return partitions

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and wait until no broker of Kafka answers for it."""
        try:
            asked = self._admin.delete_topics([name], request_timeout=REQUEST_S)[name]
            await self._asked(asked, f"delete topic {name}")
        except UnknownTopicError:
            return
        await self._until(lambda: self._check_gone(name), f"topic {name} is not gone")

    async def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic there is."""
        found = await self._metadata()
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    async def cluster_id(self) -> str:
        """Return Kafka's name for its cluster; empty when it does not say."""
        return (await self._metadata()).cluster_id or ""

    async def _metadata(self) -> Any:
        listing = partial(self._admin.list_topics, timeout=REQUEST_S)
        return await self._in(self._asking, "list topics", listing)

    async def delete_records(self, place: Place, offset: int) -> None:
        """Forget what is before an offset."""
        where = ck.TopicPartition(*place, offset)
        asked = self._admin.delete_records([where], request_timeout=REQUEST_S)[where]
        await self._asked(asked, f"truncate {place}")

    async def bounds(self, places: Sequence[Place]) -> list[Bounds]:
        """Return what each of these partitions has now, as their leaders say.

        One thread looks, and every commit of a group asks. So questions that come while it is busy
        share the next look. None shares one that has begun: what was written before somebody asked
        must be in the answer.
        """
        self._wanted.update(dict.fromkeys(places))
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().create_task(self._look())
            self._next_look.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            found = await asyncio.shield(self._next_look)
        except MemqError as exc:
            if exc.retriable or isinstance(exc, ClosedError):
                raise
            found = await self._bounds(places)  # what another one asked about may be to blame
        return [found[place] for place in places]

    async def _look(self) -> dict[Place, Bounds]:
        async with self._looking:
            places, self._wanted, self._next_look = [*self._wanted], {}, None
            return await self._bounds(places)

    async def _bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        found: dict[Place, Bounds] = {}
        for first in range(0, len(places), LOOK_AT_ONCE):
            some = places[first : first + LOOK_AT_ONCE]
            looking = partial(self._bounds_of, some)
            found |= await self._in(self._asking, f"look up the offsets of {some[0]}", looking)
        return found

    def _bounds_of(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        try:
            return self._bounds_as_told(places)
        except ck.KafkaException as exc:
            if exc.args[0].code() in _NO_ANSWER:
                raise
        for consumer in (self._looks_at_all, self._looks_at_committed):
            for topic in dict.fromkeys(place.topic for place in places):
                consumer.tell(topic, anew=True)
        return self._bounds_as_told(places)

    def _bounds_as_told(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        starts = _offsets(self._looks_at_all, places, ck.OFFSET_BEGINNING)
        written = _offsets(self._looks_at_all, places, ck.OFFSET_END)
        stable = _offsets(self._looks_at_committed, places, ck.OFFSET_END)
        found = zip(places, starts, stable, written, strict=True)
        return {place: Bounds(*each) for place, *each in found}

    async def _listed(self, name: str) -> int:
        """Return the partitions of a topic."""
        found = await self.topics()
        if name not in found:
            raise QueueError("it is not listed, or is being deleted")
        return found[name]

    async def _check_gone(self, name: str) -> None:
        if name in await self.topics():
            raise QueueError("it is listed")
        with contextlib.suppress(UnknownTopicError):
            await self.bounds([Place(name, 0)])
            raise QueueError("it has offsets")

    async def _until(self, attempt: Callable[[], Awaitable[_Result]], what: str) -> _Result:
        """Try until all brokers of Kafka agree, and give the result."""
        clock_s = asyncio.get_running_loop().time
        until_s = clock_s() + SETTLED_S
        while True:
            try:
                return await attempt()
            except (UnknownTopicError, QueueError) as exc:
                if clock_s() >= until_s:
                    problem = f"{what} after {SETTLED_S:g} s: {exc}; look at Kafka's log"
                    raise QueueError(problem) from exc
            await asyncio.sleep(LOOK_AGAIN_S)

    # -- reading ----------------------------------------------------------------------------

    async def read(
        self, place: Place, start: int, end: int, *, max_records: int, max_bytes: int
    ) -> list[KafkaRecord]:
        """Committed records between two offsets, from the first on."""
        if start >= end:
            return []
        reading = partial(self._read, place, start, end, max_records, max_bytes)
        try:
            return await self._in(self._reading, f"read {place}", reading)
        except OffsetOutOfRangeError as exc:
            # A Kafka that comes back says so of what it has not recovered yet, too.
            bounds = (await self.bounds([place]))[0]
            if bounds.start <= start <= bounds.written:
                raise QueueError(f"{exc}; it is retained, try again") from exc
            raise

    def _read(
        self, place: Place, start: int, end: int, max_records: int, max_bytes: int
    ) -> list[KafkaRecord]:
        consumer = self._idle.get()
        try:
            consumer.tell(place.topic)
            consumer.incremental_assign([ck.TopicPartition(*place, start)])
            try:
                return _first_records(consumer, place, range(start, end), max_records, max_bytes)
            finally:
                consumer.incremental_unassign([ck.TopicPartition(*place)])
        finally:
            self._idle.put(consumer)

    def follow(self, place: Place, offset: int, reader: Reader) -> None:
        """Tell this reader, and no other, what is committed from an offset on."""
        self._readers[place] = reader
        self._changes.put((place, offset, reader))
        if self._follower is None:
            follow = partial(self._follow, asyncio.get_running_loop())
            # A daemon keeps no process alive that ends without closing this.
            self._follower = threading.Thread(target=follow, name="memq-kafka-follow", daemon=True)
            self._follower.start()

    def unfollow(self, place: Place) -> None:
        """Tell of it no more."""
        if self._readers.pop(place, None) is not None:
            self._changes.put((place, 0, None))

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over what comes, until the end; in its own thread."""
        assigned: dict[_Partition, Reader] = {}
        try:
            while not self._closed.is_set():
                # A consumer that polls cannot be told by others.
                while not self._changes.empty() and not self._closed.is_set():
                    self._assign(assigned, *self._changes.get())
                if news := _news(_polled(self._tail, LOOK_S), assigned):
                    loop.call_soon_threadsafe(self._hand_over, news)
        except Exception as exc:  # noqa: BLE001 - it would be lost with the thread
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._tell_all, exc)

    def _assign(
        self, assigned: dict[_Partition, Reader], place: Place, offset: int, reader: Reader | None
    ) -> None:
        """Follow a partition from an offset on, or no more."""
        if assigned.pop(place, None) is not None:
            self._tail.incremental_unassign([ck.TopicPartition(*place)])
        if reader is None:
            return
        try:
            self._tail.tell(place.topic)
        except ck.KafkaException as exc:
            log.debug("Kafka is slow to say what %s has: %s", place.topic, exc)
        self._tail.incremental_assign([ck.TopicPartition(*place, offset)])
        assigned[place] = reader

    def _tell_all(self, error: Exception) -> None:
        """Tell everybody that nothing is followed any more."""
        self._on_failure("what follows Kafka", error)
        while self._readers:
            _, reader = self._readers.popitem()
            reader.failed(QueueFailedError(f"Kafka is followed no more: {error!r}"))

    def _hand_over(self, news: Iterable[_News]) -> None:
        """Tell each partition's reader what is new of it, unless another one has come meanwhile."""
        for each in news:
            if self._readers.get(each.place) is not each.reader:
                continue
            if each.records or each.reached:
                each.reader.read(each.records, each.reached)
            if each.error is not None:
                self.unfollow(each.place)
                each.reader.failed(_translated(each.error, f"follow {each.place}"))

    # -- publishing -------------------------------------------------------------------------

    async def append(self, place: Place, records: Sequence[NewRecord]) -> None:
        """Write records after those that are there, durably, at neighbouring offsets."""
        settings = {name: value for name, value in _PRODUCER.items() if "transaction" not in name}
        producer: ck.Producer = self._made(ck.Producer, settings)
        first = (await self.bounds([place]))[0].written
        offsets = [-1] * len(records)

        def write() -> None:
            for number, record in enumerate(records):
                _produce(producer, record, partial(_note, offsets, number))
            producer.flush(APPEND_S)

        await self._in(self._publishing, f"write to {place}", write)
        if offsets != [*range(first, first + len(records))]:
            raise QueueError(f"{place} was not written as a whole from {first} on: try again")

    async def transactions(self, transactional_id: str) -> ConfluentTransactions:
        """Make a producer, the only one of its id from now on."""
        settings = _PRODUCER | {"transactional.id": transactional_id}
        producer: ck.Producer = self._made(ck.Producer, settings)
        beginning = partial(producer.init_transactions, BEGIN_S)
        await self._in(self._fencing, f"begin transactions of {transactional_id}", beginning)
        return ConfluentTransactions(producer, transactional_id, self._publishing)

    async def close(self) -> None:
        """Let go of threads and connections."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._readers.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        """Close each consumer where nobody uses it any more; what hangs, ends by itself."""
        for look in (self._looks_at_committed, self._looks_at_all):
            self._asking.submit(look.close)
        for _ in range(READERS):
            self._reading.submit(lambda: self._idle.get().close())
        for threads in (self._publishing, self._fencing, self._reading, self._asking):
            threads.shutdown(wait=False)
        if self._follower is not None:
            self._follower.join()
        self._tail.close()

    # -- inside -----------------------------------------------------------------------------

    def _consumer(self, settings: Mapping[str, Any]) -> _Consumer:
        return self._made(_Consumer, _CONSUMER | {**settings})

    def _made(self, kind: Callable[..., _Result], settings: Mapping[str, Any]) -> _Result:
        try:
            return kind(self._settings | {**settings}, logger=self._log)
        except ck.KafkaException as exc:
            raise ConfigError(f"queue_options: {exc.args[0].str()}") from exc
        except (TypeError, ValueError, AttributeError) as exc:  # of what only Python can give
            raise ConfigError(f"queue_options: {exc}") from exc

    async def _asked(self, asked: Future[_Result], doing: str) -> _Result:
        return await self._answered(asyncio.wrap_future(asked), doing, 2 * REQUEST_S)

    async def _in(self, threads: Executor, doing: str, work: Callable[[], _Result]) -> _Result:
        def work_if_open() -> _Result:
            self._check_open(doing)
            return work()

        self._check_open(doing)
        answer = asyncio.get_running_loop().run_in_executor(threads, work_if_open)
        return await self._answered(answer, doing, WAIT_S)  # others may be before it

    async def _answered(self, answer: Awaitable[_Result], doing: str, timeout_s: float) -> _Result:
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as exc:
            raise QueueError(f"cannot {doing}: Kafka does not answer{self._reason()}") from exc
        except ck.KafkaException as exc:
            raise self._translated(exc.args[0], doing) from exc

    def _check_open(self, doing: str) -> None:
        if self._closed.is_set():
            raise ClosedError(f"cannot {doing}: the client of Kafka is closed")

    def _translated(self, error: ck.KafkaError, doing: str) -> MemqError:
        """Translate an error; add to a timeout what librdkafka has seen of its cause."""
        if error.code() in _NO_ANSWER and (reason := self._reason()):
            return QueueError(f"cannot {doing}: {error.str()}{reason}")
        return _translated(error, doing)

    def _reason(self) -> str:
        """Why Kafka cannot be reached, in brackets; empty if librdkafka does not say."""
        self._admin.poll(0)  # until then it keeps what it has to say
        return self._log.reason()


class _Log:
    """Takes what librdkafka logs, and passes on one line of each kind per `SAME_LOG_S`.

    While Kafka is away, librdkafka repeats some lines many times a second. It keeps them until the
    client is polled. Only these lines say what is wrong with a password or a certificate.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._next_s: dict[str, float] = {}
        self._latest = ("", 0.0)

    def log(self, level: int, _text: str, kind: str, _name: str, said: str) -> None:
        """Called by confluent-kafka, as `logging.Logger.log` would be."""
        now_s = self._clock_s()
        if kind in _SAYS_WHY:
            self._latest = said.rpartition("]: ")[2], now_s
        if level >= logging.WARNING and now_s >= self._next_s.get(kind, 0.0):
            self._next_s[kind] = now_s + SAME_LOG_S
            log.warning("Kafka: %s: %s", kind, said)

    def reason(self) -> str:
        """Why Kafka is not reached, as far as that was said lately; in brackets."""
        said, at_s = self._latest
        if not said or self._clock_s() >= at_s + SAME_LOG_S:
            return ""
        if _HUNG_UP in said:
            said += "; a Kafka that expects another security.protocol does so, too"
        return f" ({said})"


class ConfluentTransactions:
    """The one producer of a transactional id; see `Transactions`.

    Args:
        producer: whose transactions have begun.
        transactional_id: of the producer.
        thread: that it publishes in.
    """

    def __init__(self, producer: ck.Producer, transactional_id: str, thread: Executor) -> None:
        self._producer = producer
        self._id = transactional_id
        self._thread = thread
        self.over = False

    def __repr__(self) -> str:
        return f"<ConfluentTransactions {self._id} [{'over' if self.over else 'open'}]>"

    async def commit(self, records: Sequence[NewRecord]) -> list[int]:
        """Write records in one transaction, in order and durably. Returns their offsets."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, records)

    def close(self) -> None:
        """End without waiting: what the producer had to say was said, or is over."""
        self.over = True
        self._producer.purge()

    def _commit(self, records: Sequence[NewRecord]) -> list[int]:
        offsets = [-1] * len(records)
        try:
            self._producer.begin_transaction()
            for number, record in enumerate(records):
                _produce(self._producer, record, partial(_note, offsets, number))
            self._producer.flush(REQUEST_S)  # nothing is committed by what fails up to here
        except (ck.KafkaException, BufferError) as exc:
            raise self._given_up(exc) from exc
        except SystemError as exc:  # of `flush`, when the producer is fenced
            raise self._given_up(exc.__cause__ or exc) from exc
        self._end()
        if any(each < 0 for each in offsets):  # of what was sent twice Kafka may know no offset
            raise self._uncertain("Kafka has not told the offset of each record")
        return offsets

    def _end(self) -> None:
        """Commit; asked again while nobody answers, for that may take effect only once."""
        for asked_before in range(int(COMMIT_S / REQUEST_S)):
            if self.over:
                raise self._uncertain("the queue was closed")
            try:
                self._producer.commit_transaction(REQUEST_S)
            except ck.KafkaException as exc:
                error = exc.args[0]
                if error.txn_requires_abort() and not asked_before:
                    raise self._given_up(exc) from exc
                if error.fatal() or error.txn_requires_abort() or not error.retriable():
                    raise self._uncertain(error.str()) from exc
                log.warning("Kafka has not answered a commit, which is repeated: %s", error.str())
            else:
                return
        raise self._uncertain(f"Kafka has not answered for {COMMIT_S:g} s")

    def _uncertain(self, why: str) -> PublishUncertainError:
        self.over = True
        return PublishUncertainError(f"a transaction may have been committed, or not: {why}")

    def _given_up(self, cause: BaseException) -> MemqError:
        """Abort; it is not committed, whatever becomes of that."""
        error = cause.args[0] if isinstance(cause, ck.KafkaException) else None
        try:
            self._producer.abort_transaction(REQUEST_S)
        except ck.KafkaException as exc:
            log.warning("Kafka: a transaction is left to its time limit: %s", exc.args[0].str())
            self.over = True
        if error is None:
            return QueueError(f"Kafka is slower than what is published: {cause}; try again")
        if error.code() in _FENCED:
            self.over = True
            return FencedError(f"another producer has {self._id}: {error.str()}")
        return _translated(error, "publish")


class _AlreadyThereError(QueueError):
    """There is a topic of that name."""


def _produce(producer: ck.Producer, record: NewRecord, noted: Callable[[Any, Any], None]) -> None:
    producer.produce(
        record.place.topic,
        record.value,
        record.key,
        record.place.partition,
        on_delivery=noted,
        timestamp=max(record.timestamp_ms, 1),  # 0 would be the present
        headers=[(_RUNNING, b"%d" % record.running_ms)] if record.running_ms else None,
    )


def _note(offsets: list[int], number: int, error: Any, message: Any) -> None:
    """Keep the offset of a record; an error shows in the commit."""
    if error is None:
        offsets[number] = message.offset()


class _Consumer(ck.Consumer):
    """A consumer that is told of a topic before it is asked about it.

    It would look itself, but only once a second.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._told: dict[str, None] = {}

    def tell(self, topic: str, *, anew: bool = False) -> None:
        """Let it look which partitions a topic has."""
        if anew or topic not in self._told:
            self.list_topics(topic, REQUEST_S)
            self._told[topic] = None
            if len(self._told) > MAX_TOLD:
                self._told.clear()


def _offsets(consumer: _Consumer, places: Sequence[Place], which: int) -> list[int]:
    """Look up the first offset retained in each partition, or one past the last that may be read.

    Kafka takes these as special times; so there is one request for all, not one for each.
    """
    for topic in dict.fromkeys(place.topic for place in places):
        consumer.tell(topic)
    asked = [ck.TopicPartition(*place, which) for place in places]
    found = consumer.offsets_for_times(asked, REQUEST_S)
    for each in found:
        if each.error is not None:
            raise ck.KafkaException(each.error)
    return [each.offset for each in found]


def _first_records(
    consumer: ck.Consumer, place: Place, offsets: range, max_records: int, max_bytes: int
) -> list[KafkaRecord]:
    """Records at these offsets, from the first on, by a consumer that was given the partition."""
    records: list[KafkaRecord] = []
    while messages := _polled(consumer, REQUEST_S):
        for each in messages:
            error = each.error()
            if error is not None and error.code() != _EOF:
                if not _is_passing(error):
                    raise _translated(error, f"read {place} from offset {offsets.start} on")
                continue
            if (each.topic(), each.partition()) != place or each.offset() < offsets.start:
                continue  # the rest of what was read before
            if each.offset() >= offsets.stop:
                return records
            if error is not None:  # an end before the one that was asked for is not reached yet
                continue
            record = _record(each)
            max_bytes -= len(record.value or b"")
            if records and max_bytes < 0:
                return records
            records.append(record)
            if len(records) >= max_records:
                return records
    raise QueueError(f"{place} was not read within {REQUEST_S:g} s: Kafka is away; try again")


@dataclass
class _News:
    """What is new of a partition: records, how far it was read, or why it is not."""

    place: Place
    reader: Reader
    records: list[KafkaRecord] = field(default_factory=list)
    reached: int = 0
    error: ck.KafkaError | None = None


def _news(messages: Iterable[Any], assigned: Mapping[_Partition, Reader]) -> list[_News]:
    """Gather what messages say, by partition."""
    found: dict[_Partition, _News] = {}
    for message in messages:
        partition, error = (message.topic(), message.partition()), message.error()
        reader = assigned.get(partition)
        if reader is None or (error is not None and error.code() != _EOF and _is_passing(error)):
            if error is not None:
                log.debug("Kafka: %s", error.str())
            continue
        news = found.setdefault(partition, _News(Place(*partition), reader))
        if error is None:
            news.records.append(_record(message))
            news.reached = message.offset() + 1
        elif error.code() == _EOF:
            news.reached = message.offset()
        else:
            news.error = error
    return [*found.values()]


def _polled(consumer: ck.Consumer, timeout_s: float) -> list[Any]:
    """Poll what there is; nothing after so many seconds. (`consume` waits for all of them.)"""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(READ_AT_ONCE, 0)]


def _record(message: Any) -> KafkaRecord:
    running = next((value for name, value in message.headers() or () if name == _RUNNING), b"0")
    return KafkaRecord(
        message.offset(), message.timestamp()[1], message.value(), message.key(), int(running)
    )


def _replicas(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"queue_options: {TOPIC_PREFIX}replication.factor = {text!r}: expected a number, or -1 "
            "for what Kafka has as its default"
        ) from None


def _is_passing(error: ck.KafkaError) -> bool:
    """Return whether librdkafka goes on by itself."""
    code = error.code()
    return code not in _GONE and code not in _OUT_OF_RANGE and code not in _REFUSED


def _translated(error: ck.KafkaError, doing: str) -> MemqError:
    """Translate an error of Kafka to one of a queue."""
    code, text = error.code(), f"cannot {doing}: {error.str()}"
    if code in _GONE:
        return UnknownTopicError(text)
    if code in _OUT_OF_RANGE:
        return OffsetOutOfRangeError(text)
    if code in _FENCED:
        return FencedError(text)
    if code == ck.KafkaError.TOPIC_ALREADY_EXISTS:
        return _AlreadyThereError(text)
    if code in _REFUSED:
        return QueueFailedError(f"{text}; ask Kafka's administrator")
    if code in _NO_ANSWER:
        text += " (a wrong password or certificate shows so, too)"
    return QueueError(text)
