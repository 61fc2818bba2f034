"""What Kafka's client says, and what becomes of it; its objects stand in for a Kafka."""

import asyncio
import logging
import queue as queues
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import confluent_kafka as ck
import pytest

from memq.errors import (
    ClosedError,
    FencedError,
    OffsetOutOfRangeError,
    PublishUncertainError,
    QueueError,
    QueueFailedError,
    UnknownTopicError,
)
from memq.queue.kafka import confluent
from memq.queue.kafka.client import Bounds, KafkaRecord, NewRecord, Place
from memq.queue.kafka.confluent import ConfluentClient, ConfluentTransactions
from memq.runtime.system import Runtime

A, B, C = (Place("c.t", number) for number in range(3))
MEANINGS = {
    UnknownTopicError: ["UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"],
    OffsetOutOfRangeError: ["OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"],
    FencedError: ["_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"],
    QueueFailedError: [
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_VERSION",
        "POLICY_VIOLATION",
        "INVALID_CONFIG",
        "INVALID_REPLICATION_FACTOR",
    ],
    QueueError: ["_TIMED_OUT", "_TRANSPORT", "NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS"],
}
NAMES = [(name, kind) for kind, names in MEANINGS.items() for name in names]
ONE_OF_EACH = [(names[0], kind) for kind, names in MEANINGS.items()]
ENDS = {UnknownTopicError, OffsetOutOfRangeError, QueueFailedError}  # of what is followed


def failure(name, **flags):
    """What Kafka's client raises, with an error of that name."""
    return ck.KafkaException(ck.KafkaError(getattr(ck.KafkaError, name), name, **flags))


def message(place, offset, value=b"x", *, error=None, headers=None):
    """A message as a consumer gives it."""
    code = None if error is None else ck.KafkaError(getattr(ck.KafkaError, error), error)
    return SimpleNamespace(
        topic=lambda: place.topic,
        partition=lambda: place.partition,
        offset=lambda: offset,
        value=lambda: value,
        key=lambda: None,
        headers=lambda: headers,
        timestamp=lambda: (1, 7),
        error=lambda: code,
    )


def end(place, offset):
    """What a consumer gives where a partition ends."""
    return message(place, offset, error="_PARTITION_EOF")


class Consumer:
    """A consumer that gives what it is told to."""

    made = ()

    def __init__(self, settings, logger):
        self.settings = settings
        self.told, self.assigned, self.changes = [], {}, []
        self.bounds, self.failures, self.messages = {}, [], queues.Queue()
        self.refuses_to_look = None
        self.closed = 0
        type(self).made.append(self)

    def tell(self, topic, *, anew=False):
        self.told.append((topic, anew))
        if self.refuses_to_look:
            raise failure(self.refuses_to_look)

    def offsets_for_times(self, asked, _timeout_s):
        if self.failures and (failed := self.failures.pop(0)):
            raise failure(failed)
        return [self._answer(each) for each in asked]

    def _answer(self, asked):
        found = self.bounds.get((asked.topic, asked.partition), Bounds(0, 0, 0))
        if isinstance(found, str):
            return SimpleNamespace(error=failure(found).args[0])
        uncommitted = self.settings["isolation.level"] == "read_uncommitted"
        written = found.written if uncommitted else found.stable
        offset = found.start if asked.offset == ck.OFFSET_BEGINNING else written
        return SimpleNamespace(error=None, offset=offset)

    def incremental_assign(self, places):
        for each in places:
            assert (each.topic, each.partition) not in self.assigned
            self.assigned[each.topic, each.partition] = each.offset
            self.changes.append(each.offset)

    def incremental_unassign(self, places):
        for each in places:
            del self.assigned[each.topic, each.partition]

    def poll(self, timeout_s):
        try:
            return self.messages.get(timeout=min(timeout_s, 0.01))
        except queues.Empty:
            return None

    def consume(self, _count, _timeout_s):
        return [self.messages.get() for _ in range(self.messages.qsize())]

    def close(self):
        self.closed += 1


class Admin:
    """An admin client of which each call has an answer."""

    def __init__(self, settings, logger):
        self.error, self.silent = None, False
        self.there = {"c.t": 3}

    def _answer(self, key):
        answer = Future()
        if self.error is not None:
            answer.set_exception(failure(self.error))
        elif not self.silent:
            answer.set_result(None)
        return {key: answer}

    def create_topics(self, topics, request_timeout):
        return self._answer(topics[0].topic)

    def delete_topics(self, names, request_timeout):
        return self._answer(names[0])

    def delete_records(self, places, request_timeout):
        return self._answer(places[0])

    def list_topics(self, timeout):
        assert timeout
        if self.error:
            raise failure(self.error)
        topics = {name: SimpleNamespace(partitions=range(n)) for name, n in self.there.items()}
        return SimpleNamespace(topics=topics, cluster_id=None)

    def poll(self, _timeout_s):
        pass


class Producer:
    """A producer whose steps fail as they are told to, each with the first of its failures.

    It writes from offset 100 of each partition on.
    """

    def __init__(self, settings=None, logger=None):
        self.fails = {}
        self.steps = []
        self.produced = []
        self.ends = {}
        self.on_commit = lambda: None
        self.silent = False  # about deliveries

    def _step(self, name):
        self.steps.append(name)
        failures = self.fails.get(name)
        if failures and (failed := failures.pop(0)):
            raise failed

    def init_transactions(self, timeout_s):
        assert timeout_s == confluent.BEGIN_S
        self._step("init")

    def begin_transaction(self):
        self._step("begin")

    def produce(self, topic, _value, _key, partition, *, on_delivery, **_):
        self._step("produce")
        self.produced.append(((topic, partition), on_delivery))

    def flush(self, _timeout_s):
        self._step("flush")
        if self.silent:
            return
        for place, on_delivery in self.produced:
            offset = self.ends[place] = self.ends.get(place, 99) + 1
            on_delivery(None, SimpleNamespace(offset=lambda offset=offset: offset))

    def commit_transaction(self, _timeout_s):
        self.on_commit()
        self._step("commit")

    def abort_transaction(self, _timeout_s):
        self._step("abort")

    def purge(self):
        self._step("purge")


class Followed:
    """A reader that keeps what it is told."""

    def __init__(self):
        self.told, self.error = [], None
        self.news = asyncio.Event()

    def read(self, records, reached):
        self.told.append(([each.offset for each in records], reached))
        self.news.set()

    def failed(self, error):
        self.error = error
        self.news.set()


@pytest.fixture
def clock():
    """A clock that stands still."""
    return SimpleNamespace(now_s=1_000.0)


@pytest.fixture
async def client(monkeypatch, clock):
    """A client whose Kafka is what its consumers, producers and admin client are told."""
    monkeypatch.setattr(Consumer, "made", [])
    monkeypatch.setattr(confluent, "_Consumer", Consumer)
    monkeypatch.setattr(confluent.admin, "AdminClient", Admin)
    monkeypatch.setattr(confluent.ck, "Producer", Producer)
    monkeypatch.setattr(confluent, "LOOK_S", 0.001)
    options = {"security.protocol": "ssl", "topic.segment.bytes": "9", "topic.cleanup.policy": "x"}
    found = ConfluentClient("kafka:1", options, Runtime(mono_s=lambda: clock.now_s))
    yield found
    await found.close()


def the_only_reader(client):
    """The consumer that reads next, with the others out of its way."""
    consumers = [client._idle.get() for _ in range(confluent.READERS)]
    client._idle.put(consumers[0])
    return consumers[0]


async def error_of(call):
    """What a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its type is what is asked for
        await call
    return caught.value


# -- what errors mean ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_each_error_has_a_meaning(name, kind):
    """A caller learns from its type what to do, and from its words whom to ask."""
    code = failure(name).args[0]
    error = confluent._translated(code, "read")
    assert type(error) is kind
    assert name in str(error)
    asks = "ask Kafka's administrator" in str(error) or "password or cert" in str(error)
    assert asks is (kind is QueueFailedError or name in ("_TIMED_OUT", "_TRANSPORT"))
    assert confluent._is_passing(code) is (kind not in ENDS)


@pytest.mark.parametrize(("name", "kind"), ONE_OF_EACH)
async def test_an_error_means_the_same_whatever_was_asked(client, monkeypatch, name, kind):
    """Whichever request of Kafka has failed."""
    client._admin.error = client._looks_at_all.bounds[A] = name
    producer = Producer()
    producer.fails["init"] = [failure(name)]
    monkeypatch.setattr(confluent.ck, "Producer", lambda *_, **__: producer)
    for asked in (
        client.delete_records(A, 5),
        client.topics(),
        client.create_topic("c.u", 1, {}),
        client.bounds([A]),
        client.transactions("id"),
    ):
        assert type(await error_of(asked)) is kind


@pytest.mark.parametrize(("name", "kind"), ONE_OF_EACH)
async def test_a_follower_goes_on_after_what_passes(client, name, kind):
    """Its client mends by itself what passes; of the rest the reader is told, after the news."""
    reader, other = Followed(), Followed()
    client.follow(A, 5, reader)
    client.follow(B, 0, other)
    async with asyncio.timeout(30):
        while len(client._tail.assigned) < 2:
            await asyncio.sleep(0.001)
        for each in (message(A, 5), message(A, -1, error=name), message(B, 0), end(B, 3)):
            client._tail.messages.put(each)
        while not other.told or not reader.told:
            await asyncio.sleep(0.001)
        assert reader.told[0] == ([5], 6)
        assert (reader.error is not None) is (kind in ENDS)
        if reader.error is not None:
            assert type(reader.error) is kind
            while A in client._tail.assigned:
                await asyncio.sleep(0.001)
            assert A not in client._readers
        assert [each for each, _ in other.told if each] == [[0]]
        while other.told[-1][1] != 3:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("name", "kind"), ONE_OF_EACH)
async def test_a_read_goes_on_after_what_passes(client, name, kind):
    """What ends it is told; whoever reads next has the same consumers, with nothing assigned."""
    consumer = the_only_reader(client)
    for each in (message(A, 5), message(A, -1, error=name), message(A, 6)):
        consumer.messages.put(each)
    if kind is OffsetOutOfRangeError:
        client._looks_at_all.bounds[A] = client._looks_at_committed.bounds[A] = Bounds(9, 9, 9)
    reading = client.read(A, 5, 7, max_records=2, max_bytes=99)
    if kind in ENDS:
        assert type(await error_of(reading)) is kind
    else:
        assert [each.offset for each in await reading] == [5, 6]
    assert consumer.assigned == {}
    assert client._idle.get_nowait() is consumer
    for _ in range(confluent.READERS):  # as many are closed in the end
        client._idle.put(consumer)


# -- where partitions begin and end ----------------------------------------------------------


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART"])
async def test_where_leaders_are_is_looked_up_once_more(client, name):
    """Whatever is known of leaders may be old: one more look finds the new ones, of each topic."""
    both = client._looks_at_all, client._looks_at_committed
    for looks in both:
        looks.failures = [name]
        assert await client.bounds([A, Place("c.u", 0)]) == [Bounds(0, 0, 0)] * 2
        for each in both:
            assert {("c.t", True), ("c.u", True)} <= {*each.told}


async def test_those_who_wait_share_a_look_that_begins_after_they_asked(client):
    """None has an older answer than its question, or the error of what another one asked about."""
    busy = threading.Event()
    client._asking.submit(busy.wait)
    client._looks_at_all.bounds[C] = "UNKNOWN_TOPIC_OR_PART"
    asked = []
    look = client._looks_at_all.offsets_for_times
    client._looks_at_all.offsets_for_times = lambda at, s: asked.append(len(at)) or look(at, s)
    first = asyncio.ensure_future(client.bounds([A]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(client.bounds([each])) for each in (A, B, B)]
    busy.set()
    assert [(await each) for each in (first, *others)] == [[Bounds(0, 0, 0)]] * 4
    assert asked == [1, 1, 2, 2]
    sound, unknown = (asyncio.ensure_future(client.bounds([each])) for each in (A, C))
    assert await sound == [Bounds(0, 0, 0)]
    assert type(await error_of(unknown)) is UnknownTopicError


# -- topics ----------------------------------------------------------------------------------


async def test_a_topic_is_gone_once_nobody_answers_for_it(client, monkeypatch):
    """It is neither listed nor has offsets then; one that was unknown is not waited for."""
    monkeypatch.setattr(confluent, "SETTLED_S", 0.05)
    monkeypatch.setattr(confluent, "LOOK_AGAIN_S", 0.01)
    error = await error_of(client.delete_topic("c.t"))
    assert "c.t is not gone after 0.05 s: it is listed" in str(error)
    client._admin.there.clear()
    error = await error_of(client.delete_topic("c.t"))
    assert "c.t is not gone after 0.05 s: it has offsets" in str(error)
    client._looks_at_all.bounds[A] = "UNKNOWN_TOPIC_OR_PART"
    await client.delete_topic("c.t")
    client._admin.there["c.t"] = 3
    client._admin.error = "UNKNOWN_TOPIC_OR_PART"
    await client.delete_topic("c.t")
    assert await client.bounds([B]) == [Bounds(0, 0, 0)]


async def test_a_question_that_nobody_answers_ends(client, monkeypatch):
    """With what the client's log has said of the cause, or without."""
    monkeypatch.setattr(confluent, "REQUEST_S", 0.005)
    client._admin.silent = True
    error = await error_of(client.delete_records(A, 1))
    assert str(error) == "cannot truncate c.t/0: Kafka does not answer"
    client._log.log(logging.ERROR, "", "FAIL", "", "[thrd:x]: kafka:1/bootstrap: Disconnected")
    error = await error_of(client.delete_records(A, 1))
    assert "(kafka:1/bootstrap: Disconnected; a Kafka that expects another" in str(error)
    monkeypatch.setattr(confluent, "WAIT_S", 0.01)
    blocked = threading.Event()
    client._asking.submit(blocked.wait)
    for call in (client.bounds([A]), client.topics()):
        error = await error_of(call)
        assert type(error) is QueueError
        assert "Kafka does not answer" in str(error)
    blocked.set()


# -- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((9, 99), [6, 7, 8]),
        ((2, 99), [6, 7]),
        ((1, 0), [6]),
        ((9, 20), [6, 7]),
        ((9, 19), [6]),
        ((9, 0), [6]),
    ],
)
async def test_a_read_gives_what_was_asked_for(client, limits, expected):
    """What is left of another partition or of before, and an end that moves, are passed over."""
    old = [message(B, 6), message(A, 4), message(A, 5), message(Place("c.u", 0), 7)]
    found = [end(A, 6), *old, *(message(A, each, b"x" * 10) for each in (6, 7, 8, 9)), end(A, 10)]
    found.insert(7, end(A, 8))
    consumer = the_only_reader(client)
    for each in found:
        consumer.messages.put(each)
    records = await client.read(A, 6, 9, max_records=limits[0], max_bytes=limits[1])
    assert [each.offset for each in records] == expected
    assert consumer.changes == [6]
    assert consumer.told == [("c.t", False)]
    client._idle.put(consumer)  # as many are closed in the end


# -- following -------------------------------------------------------------------------------


async def test_news_is_for_the_follower_that_asked_last(client):
    """What comes by an earlier call, or after the end, is told to nobody."""
    first, second = Followed(), Followed()
    client.follow(A, 5, first)
    client.follow(A, 2, second)

    def news(place, reader):
        return confluent._News(place, reader, [KafkaRecord(5, 1, b"x")], 6)

    client._hand_over([news(A, first), news(B, second), news(A, second)])
    assert (first.told, second.told) == ([], [([5], 6)])
    async with asyncio.timeout(30):
        while client._tail.changes != [5, 2]:
            await asyncio.sleep(0.001)
    client.unfollow(A)
    client._hand_over([news(A, second)])
    assert len(second.told) == 1
    async with asyncio.timeout(30):
        while client._tail.assigned:
            await asyncio.sleep(0.001)


async def test_the_end_of_following_is_told_to_each_reader(client, monkeypatch):
    """A bug in the thread is told once, and no reader is left waiting."""
    failures, readers = [], [Followed(), Followed()]
    client._on_failure = lambda *failure: failures.append(failure)

    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(confluent, "_news", broken)
    for place, reader in zip((A, B), readers, strict=True):
        client.follow(place, 0, reader)
    async with asyncio.timeout(30):
        for reader in readers:
            await reader.news.wait()
    assert [type(each.error) for each in readers] == [QueueFailedError] * 2
    assert [(where, str(error)) for where, error in failures] == [("what follows Kafka", "a bug")]


# -- publishing ------------------------------------------------------------------------------

RECORDS = [
    NewRecord(A, b"a", b"k", 0, 0),
    NewRecord(B, b"b", None, 5, 77),
    NewRecord(A, None, b"k", 6, 0),
]


@pytest.fixture
def producer():
    """A producer."""
    return Producer()


@pytest.fixture
def transactions(producer):
    """Its transactions."""
    with ThreadPoolExecutor(1) as thread:
        yield ConfluentTransactions(producer, "id", thread)


@pytest.mark.parametrize(("name", "kind"), ONE_OF_EACH)
@pytest.mark.parametrize("step", ["begin", "produce", "flush"])
async def test_what_fails_before_a_commit_is_certainly_not_written(
    producer, transactions, name, kind, step
):
    """It is aborted; the producer is over when it was fenced, or could not abort."""
    producer.fails[step] = [failure(name)]
    error = await error_of(transactions.commit(RECORDS))
    assert type(error) is kind
    assert producer.steps[-1] == "abort"
    assert "commit" not in producer.steps
    assert transactions.over is (kind is FencedError)
    if not transactions.over:
        assert await transactions.commit(RECORDS[:1])
    producer.fails = {step: [failure(name)], "abort": [failure("_TIMED_OUT")]}
    error = await error_of(transactions.commit(RECORDS))
    assert type(error) is kind
    assert transactions.over


def hidden(name):
    """What the client raises where it hides another error."""
    error = SystemError("returned a result with an exception set")
    error.__cause__ = name and failure(name)
    return error


@pytest.mark.parametrize(
    ("step", "raised", "kind"),
    [
        ("produce", BufferError("queue full"), QueueError),
        ("flush", hidden("_FENCED"), FencedError),
        ("flush", hidden("UNKNOWN_TOPIC_OR_PART"), UnknownTopicError),
        ("flush", hidden(None), QueueError),
    ],
)
async def test_what_the_client_raises_otherwise_is_no_doubt_either(
    producer, transactions, step, raised, kind
):
    """Its queue is full, or it hides the cause behind another error."""
    producer.fails[step] = [raised]
    assert type(await error_of(transactions.commit(RECORDS))) is kind
    assert transactions.over is (kind is FencedError)
    assert producer.steps[-1] == "abort"


AGAIN = {"retriable": True}


@pytest.mark.parametrize(
    ("failures", "expected", "over"),
    [
        ([AGAIN], None, False),
        ([AGAIN] * 5, None, False),
        ([AGAIN] * 6, PublishUncertainError, True),
        ([{"txn_requires_abort": True}], QueueError, False),
        ([AGAIN, {"txn_requires_abort": True}], PublishUncertainError, True),
        ([AGAIN, AGAIN | {"txn_requires_abort": True}], PublishUncertainError, True),
        ([{"fatal": True}], PublishUncertainError, True),
        ([AGAIN | {"fatal": True}], PublishUncertainError, True),
        ([{}], PublishUncertainError, True),
        ([AGAIN, {}], PublishUncertainError, True),
    ],
)
async def test_a_commit_without_an_answer_is_asked_for_again(
    producer, transactions, failures, expected, over
):
    """Only what Kafka has refused at once was certainly not written; all else is in doubt."""
    producer.fails["commit"] = [failure("_TIMED_OUT", **each) for each in failures]
    if expected is None:
        assert await transactions.commit(RECORDS) == [100, 100, 101]
    else:
        error = await error_of(transactions.commit(RECORDS))
        assert type(error) is expected
    assert transactions.over is over
    assert producer.fails["commit"] == []
    assert producer.steps.count("abort") == (expected is QueueError)


async def test_a_commit_without_offsets_is_in_doubt(producer, transactions):
    """Nothing is acked at an offset that Kafka has not told, whatever it says of the commit."""
    producer.silent = True
    assert type(await error_of(transactions.commit(RECORDS))) is PublishUncertainError
    assert transactions.over


async def test_a_commit_is_given_up_when_the_queue_is_closed(producer, transactions):
    """It may take effect all the same: that is doubt, and what the producer had is dropped."""
    producer.fails["commit"] = [failure("_TIMED_OUT", retriable=True)] * 6
    producer.on_commit = transactions.close
    error = await error_of(transactions.commit(RECORDS))
    assert type(error) is PublishUncertainError
    assert "the queue was closed" in str(error)
    assert producer.steps.count("commit") == 1
    assert "purge" in producer.steps
    assert transactions.over


# -- settings and the end --------------------------------------------------------------------


async def test_all_is_closed_once(client):
    """Each consumer is, also when closing is asked for twice; nothing is asked after that."""
    reader = Followed()
    client.follow(A, 0, reader)
    await client.close()
    await client.close()
    for consumer in Consumer.made:
        if consumer is not client._tail:
            async with asyncio.timeout(30):
                while not consumer.closed:
                    await asyncio.sleep(0.001)
    assert [each.closed for each in Consumer.made] == [1] * len(Consumer.made)
    assert not client._follower.is_alive()
    calls = [client.bounds([A]), client.read(A, 0, 1, max_records=1, max_bytes=1)]
    for call in (*calls, client.topics(), client.transactions("id")):
        assert type(await error_of(call)) is ClosedError
