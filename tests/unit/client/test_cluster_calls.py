"""Which broker a call asks, how long it waits there, and what it does with each error."""

import asyncio
from collections import defaultdict

import pytest

from memq import errors
from memq.client.broker_choice import REST_S
from memq.client.cluster import ANY_BROKER_ATTEMPT_S, Cluster, parse_bootstrap
from memq.core.topic import TopicConfig
from memq.core.wire.messages import BrokerInfo, DeleteTopic, Done, MetadataAnswer, TopicInfo
from memq.errors import (
    ClosedError,
    ConfigError,
    MemqError,
    NotHostedError,
    ProtocolError,
    StorageError,
    UnauthorizedError,
    UnavailableError,
)
from memq.runtime.system import Runtime

A, B, C = "a:1", "b:2", "c:3"
REQUEST = DeleteTopic(topic="t")
EVERY_ERROR = [each for each in vars(errors).values() if isinstance(each, type)]


class Connection:
    """A connection to a broker of the rig."""

    closed = False

    def __init__(self, rig, address):
        self.rig = rig
        self.address = address
        self.ended = False

    async def request(self, header, body=b"", *, body_crc=None, timeout_s):
        await asyncio.sleep(0)
        self.rig.asked.append((self.address, timeout_s))
        self.rig.ends_s.append(self.rig.now + timeout_s)
        self.rig.sent.append((header, body, body_crc))
        answers = self.rig.answers[self.address]
        answer = answers.pop(0) if answers else Done()
        if callable(answer):
            answer = answer(header)
        if isinstance(answer, MemqError):
            raise answer
        return answer, memoryview(b"")

    async def close(self):
        self.closed = self.ended = True


class Rig:
    """A cluster with a clock of its own, whose brokers answer as they are told.

    Attributes:
        answers: what each broker answers next: an answer, an error, or a function that gives one;
            afterwards it is `Done`.
        refusals: what each broker answers the next attempts to connect.
        asked: whom, and for how long.
        ends_s: when each of them had to have answered.
        slept: between attempts.
    """

    def __init__(self, *seeds, request_timeout_s=30.0):
        self.now = 100.0
        self.answers = defaultdict(list)
        self.refusals = defaultdict(list)
        self.opened = []
        self.asked = []
        self.ends_s = []
        self.sent = []
        self.slept = []
        runtime = Runtime(mono_s=lambda: self.now, random=lambda: 0.5)
        self.cluster = Cluster(
            ",".join(seeds or (A, B)),
            runtime=runtime,
            sleep=self._sleep,
            request_timeout_s=request_timeout_s,
        )
        self.cluster._connect = self._connect

    async def _sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def _connect(self, address):
        await asyncio.sleep(0)
        if self.refusals[address]:
            raise self.refusals[address].pop(0)
        self.opened.append(Connection(self, address))
        return self.opened[-1]

    def after(self, seconds, answer):
        """An answer that takes so long."""

        def answered(_):
            self.now += seconds
            return answer

        return answered

    def whom(self):
        """Addresses of those asked so far; the list begins anew."""
        found = [address for address, _ in self.asked]
        self.asked.clear()
        return found

    async def call(self, **options):
        return await self.cluster.call(REQUEST, **options)


def topic(name):
    return TopicInfo(
        config=TopicConfig.create(name),
        schemas={},
        schema_id="",
        hosts=[A],
        named_partitions=1,
        queue_address=A,
    )


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.code)
@pytest.mark.parametrize("where", ["answer", "connect"])
async def test_an_error_where_any_broker_will_do(kind, where):
    """What may pass, or what one broker alone refuses, is tried at the next, and it rests."""
    rig = Rig()
    script = rig.answers if where == "answer" else rig.refusals
    error = kind("why")
    script[A].append(error)
    elsewhere = error.retriable or isinstance(error, UnauthorizedError)
    if not elsewhere:
        with pytest.raises(kind) as caught:
            await rig.call()
        assert caught.value is error
        assert rig.slept == []
        await rig.call()
        assert rig.whom()[-1] == A
        return
    await rig.call()
    # One that does not host it is no worse than others.
    other = A if kind is NotHostedError else B
    assert rig.whom()[-1] == other
    assert rig.slept == [0.0] if other == B else rig.slept[0] > 0
    await rig.call()
    assert rig.whom() == [other]


async def test_a_token_is_wrong_once_every_broker_has_refused_it():
    """Each is asked once; the last one's word is raised."""
    rig = Rig(A, B, C)
    for address in (A, B, C):
        rig.refusals[address] = [UnauthorizedError(address)] * 2
    with pytest.raises(UnauthorizedError, match="c:3"):
        await rig.call()
    assert [len(rig.refusals[address]) for address in (A, B, C)] == [1, 1, 1]


async def test_brokers_that_were_told_of_are_asked_after_the_seeds():
    """Each is asked before one that has failed is asked again, the one that failed first."""
    rig = Rig(A, B)
    rig.cluster.brokers = [BrokerInfo(id="c", address=C), BrokerInfo(id="a", address=A)]
    down = UnavailableError("down")
    for address in (A, B, C):
        rig.answers[address] = [down]
    rig.answers[A].append(down)
    await rig.call()
    assert rig.whom() == [A, B, C, A, B]
    assert [seconds == 0 for seconds in rig.slept] == [True, True, False, False]
    await rig.call()
    assert rig.whom() == [B]
    rig.now += REST_S
    await rig.call()
    assert rig.whom() == [A]


async def test_redirects_are_followed_at_once_only_the_first_time():
    """Wherever a call goes meanwhile; and one that leads back to a named broker is not lost."""
    rig = Rig(A)
    rig.answers[A] = [
        NotHostedError("no", B),
        NotHostedError("no", C),
        NotHostedError("no", B),
    ]
    rig.answers[B] = [StorageError("slow"), NotHostedError("no", A)]
    rig.answers[C] = [NotHostedError("nobody")]
    await rig.call()
    assert rig.whom() == [A, B, A, C, A, B, A]
    assert [seconds == 0 for seconds in rig.slept] == [True, *[False] * 5]


async def test_a_broker_that_was_pointed_to_may_fail():
    """Then the call begins anew; who is pointed to has all the time that is left."""
    rig = Rig(A, B)
    rig.answers[A] = [NotHostedError("no", C), NotHostedError("no", C)]
    rig.answers[C] = [UnavailableError("down")]
    await rig.call(timeout_s=100)
    assert [address for address, _ in rig.asked] == [A, C, A, C]
    assert rig.asked[:2] == [(A, ANY_BROKER_ATTEMPT_S), (C, pytest.approx(100))]


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
async def test_how_long_an_attempt_may_take(wait_s):
    """Where others could answer, no broker is waited for longer than is worth it.

    What it takes on purpose comes on top, in each attempt, and never beyond the deadline.
    """
    rig = Rig(A, B)
    for address in (A, B):
        rig.answers[address] = [rig.after(1, UnavailableError("down"))] * 100
    with pytest.raises(UnavailableError):
        await rig.call(timeout_s=5.5, wait_s=wait_s)
    limits = [limit_s for _, limit_s in rig.asked]
    assert max(rig.ends_s) <= 100 + 5.5 + wait_s + 1e-6
    lefts = [limit_s - wait_s for limit_s in limits[:2]]
    assert lefts[0] == 5.5 / 2
    assert lefts[1] == pytest.approx(4.5)  # the other one rests
    rig.now += REST_S
    rig.asked.clear()
    rig.answers.clear()
    await rig.call(timeout_s=100, wait_s=wait_s)
    assert [limit_s for _, limit_s in rig.asked] == [ANY_BROKER_ATTEMPT_S + wait_s]


# -- topics ---------------------------------------------------------------------------------


def told(*names, version="", more=False):
    return MetadataAnswer(
        cluster_id="x",
        brokers=[BrokerInfo(id="a", address=A)],
        topics=[topic(name) for name in names],
        version=version,
        more=more,
    )


async def test_news_of_a_topic_are_asked_for_by_what_is_known():
    """The last version that was told is sent along, also where the topic is to be asked for."""
    rig = Rig(A, request_timeout_s=4.0)
    rig.answers[A] = [told("t", version="7"), told("t", version="8"), told("t"), told("t")]
    await rig.cluster.topic("t")
    rig.cluster.forget("t")
    rig.cluster.brokers = []
    await rig.cluster.next_topic("t", 30.0)
    assert [broker.address for broker in rig.cluster.brokers] == [A]
    assert rig.cluster.moves("t")
    await rig.cluster.next_topic("t", 30.0)
    assert not rig.cluster.moves("t")
    await rig.cluster.next_topic("t", 30.0)
    assert [request.known for request, _, _ in rig.sent] == ["", "7", "8", ""]
    assert [request.max_wait_ms for request, _, _ in rig.sent] == [0, *[30_000] * 3]
    assert rig.cluster.cluster_id == "x"
    assert rig.asked[1] == (A, 34.0)


@pytest.mark.parametrize("names", [(), ("other",), ("t", "other"), ("other", "t")])
async def test_another_topic_than_the_one_asked_for_is_no_answer(names):
    """What a broker mixes up is not believed, nor remembered."""
    rig = Rig(A)
    rig.answers[A] = [told(*names)] * 2
    with pytest.raises(ProtocolError, match="asked for topic 't'"):
        await rig.cluster.topic("t")
    with pytest.raises(ProtocolError, match="asked for topic 't'"):
        await rig.cluster.next_topic("t", 1.0)
    assert not rig.cluster._topics


@pytest.mark.parametrize(
    "names", ["", "b", "a", "cb"], ids=["empty", "the same", "an earlier one", "back"]
)
async def test_pages_that_go_nowhere_are_refused(names):
    """A broker that says that there is more, and does not tell what, is not asked for ever."""
    rig = Rig(A)
    rig.answers[A] = [told("a", "b", more=True), told(*names, more=True)]
    with pytest.raises(ProtocolError, match="goes back"):
        await rig.cluster.metadata(None)


async def test_all_topics_come_in_pages():
    """Each page begins after the last topic of the one before."""
    rig = Rig(A)
    pages = [told("a", "b", more=True), told("c", "d", more=True), told()]
    rig.answers[A] = [rig.after(1, page) for page in pages]
    found = await rig.cluster.metadata(None, timeout_s=4)
    assert [limit_s for _, limit_s in rig.asked] == [4, 3, 2]
    assert [each.config.name for each in found.topics] == ["a", "b", "c", "d"]
    assert [request.after for request, _, _ in rig.sent] == ["", "b", "d"]


# -- connections ----------------------------------------------------------------------------


async def test_an_attempt_to_connect_that_fails_is_not_kept():
    """Who comes next tries anew."""
    rig = Rig(A)
    rig.refusals[A] = [UnavailableError("down")]
    with pytest.raises(UnavailableError):
        await rig.cluster.connection(A)
    connection = await rig.cluster.connection(A)
    assert await rig.cluster.connection(A) is connection
    connection.closed = True
    assert await rig.cluster.connection(B) is not connection
    assert list(rig.cluster._connections) == [B]  # those that have ended are forgotten
    await rig.cluster.close()


@pytest.mark.parametrize("after", range(4))
async def test_nothing_is_open_after_a_close(after):
    """A connection that is being opened as the cluster is closed is closed, or never opened."""
    rig = Rig(A, B)
    await rig.cluster.connection(B)
    opening = asyncio.ensure_future(rig.cluster.connection(A))
    for _ in range(after):
        await asyncio.sleep(0)
    await rig.cluster.close()
    await asyncio.gather(opening, return_exceptions=True)
    assert all(connection.ended for connection in rig.opened)
    with pytest.raises(ClosedError):
        await rig.cluster.connection(A)
    with pytest.raises(ClosedError):
        await rig.call()


async def test_caller_that_gives_up_does_not_take_the_attempt_along():
    """A cancelled caller leaves the others their connection."""
    rig = Rig(A)
    first, second = (asyncio.ensure_future(rig.cluster.connection(A)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is rig.opened[0]


def test_bootstrap_is_a_list_of_addresses():
    """Spaces and repeats do not matter."""
    assert parse_bootstrap(" a:1, b:2 ,a:1,") == ["a:1", "b:2"]
    for bad in ("", " , ", "a:1,b", 5):
        with pytest.raises(ConfigError):
            parse_bootstrap(bad)
