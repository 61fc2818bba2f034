from __future__ import annotations

import asyncio

import msgspec
import pytest

from memq.client.topic import ATTEMPT_S, TopicClient, merge_watermarks
from memq.core.retry import Retry
from memq.core.runtime import SYSTEM, Runtime
from memq.core.topic import TopicConfig
from memq.core.wire.messages import (
    Done,
    FetchNotificationsAnswer,
    FetchOffsets,
    NotificationEntry,
    PartitionOffset,
    TopicInfo,
    WatermarkAnswer,
    Write,
)
from memq.errors import (
    InvalidRequestError,
    NotHostedError,
    ProtocolError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from tests.unit.core.governor.conftest import virtual_time  # noqa: F401 - a fixture


class Brokers:
    """Stands for a `Cluster`: the broker of the topic is the last address of a list.

    Attributes:
        addresses: where the topic was and is; the last one is only told to who looks again.
        incarnations: of the topic, likewise; none when it does not exist any more.
        outcomes: what the next calls give: an answer with its body, or an error.
        asked: addresses that were asked.
        incarnations_asked: with which incarnation.
    """

    request_timeout_s = 5.0
    runtime = SYSTEM

    def __init__(self, *outcomes, addresses=("a:1",), incarnations=("1",)):
        self.addresses, self.outcomes, self.asked = list(addresses), list(outcomes), []
        self.incarnations, self.incarnations_asked = list(incarnations), []

    async def topic(self, name, *, timeout_s=None):
        """The topic as it is known."""
        if self.incarnations[0] is None:
            raise UnknownTopicError("gone")
        return TopicInfo(
            config=TopicConfig.create(name),
            schemas={},
            schema_id="",
            hosts=self.addresses[0].split(" "),
            named_partitions=1,
            queue_address=self.addresses[0],
            incarnation=self.incarnations[0],
        )

    def forget(self, name):
        """Look again."""
        for known in (self.addresses, self.incarnations):
            if len(known) > 1:
                known.pop(0)

    def reader(self, topic):
        """The broker of the topic."""
        return topic.queue_address

    def retry(self, timeout_s):
        """The attempts of a call."""
        return Retry(timeout_s, SYSTEM)

    async def attempt(self, address, request, body=b"", *, body_crc=None, timeout_s):
        """The next outcome."""
        self.incarnations_asked.append(getattr(request, "incarnation", None))
        self.asked.append(address)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.mark.parametrize("error", [NotHostedError, UnavailableError, RequestTimeoutError])
async def test_follows_the_queue(error):
    """When the queue has moved to another broker the call goes there."""
    brokers = Brokers(error("moved"), (Done(), b""), addresses=["a:1", "b:2"])
    await TopicClient(brokers, "t").ask(Done())
    assert brokers.asked == ["a:1", "b:2"]


async def test_what_cannot_pass_is_raised():
    """An error that trying again cannot mend is raised at once."""
    brokers = Brokers(InvalidRequestError("no"))
    with pytest.raises(InvalidRequestError, match="no"):
        await TopicClient(brokers, "t").ask(Done())
    assert len(brokers.asked) == 1


async def test_a_broker_that_names_another_is_believed():
    """The broker that an error names is asked before the topic is looked up, and once at once."""
    brokers = Brokers(NotHostedError("no", "c:3"), (Done(), b""), addresses=["a:1", "b:2"])
    await TopicClient(brokers, "t").ask(Done())
    assert brokers.asked == ["a:1", "c:3"]


async def test_redirects_in_a_circle_end():
    """Brokers that point at each other are asked now and then, until the deadline."""
    brokers = Brokers(NotHostedError("no", "a:1"))
    with pytest.raises(NotHostedError):
        await TopicClient(brokers, "t").ask(Done(), timeout_s=0.3)
    assert 2 <= len(brokers.asked) < 50


async def test_a_named_broker_that_fails_is_not_asked_again():
    """After it the topic is looked up."""
    brokers = Brokers(
        NotHostedError("no", "c:3"),
        UnavailableError("down"),
        (Done(), b""),
        addresses=["a:1", "b:2"],
    )
    await TopicClient(brokers, "t").ask(Done())
    assert brokers.asked == ["a:1", "c:3", "b:2"]


@pytest.mark.parametrize("error", [UnknownTopicError, TopicRecreatedError])
async def test_a_broker_may_be_the_last_to_hear(error):
    """A topic that one broker does not know (yet) is asked for again while others tell of it."""
    brokers = Brokers(error("no"), (Done(), b""))
    await TopicClient(brokers, "t", "1").ask(Done())
    assert len(brokers.asked) == 2


async def test_a_topic_that_is_gone():
    """When no broker knows it any more, or another incarnation, that is raised."""
    brokers = Brokers(UnknownTopicError("no"), incarnations=["1", None])
    with pytest.raises(UnknownTopicError, match="gone"):
        await TopicClient(brokers, "t", "1").ask(Done())
    brokers = Brokers(TopicRecreatedError("other"), incarnations=["1", "2"])
    with pytest.raises(TopicRecreatedError, match="other"):
        await TopicClient(brokers, "t", "1").ask(FetchOffsets(topic="t"))
    assert brokers.incarnations_asked == ["1"]


async def test_what_is_remembered_may_be_over():
    """Who has not relied on an incarnation yet takes the one that there is."""
    brokers = Brokers(TopicRecreatedError("other"), (Done(), b""), incarnations=["1", "2"])
    client = TopicClient(brokers, "t")
    await client.ask(FetchOffsets(topic="t"))
    assert brokers.incarnations_asked == ["1", "2"]
    assert client.incarnation == "2"


@pytest.mark.parametrize(
    "question", [lambda t: t.committed("g", timeout_s=0.1), lambda t: t.offsets(timeout_s=0.1)]
)
async def test_nobody_to_ask(question):
    """While a topic has no broker nobody is asked, and the deadline ends it with a typed error."""
    brokers = Brokers((Done(), b""), addresses=[""])
    with pytest.raises(UnavailableError, match=r"no broker .* of topic 't' now"):
        await question(TopicClient(brokers, "t"))
    assert brokers.asked == []


async def test_a_topic_that_nobody_knows_is_looked_up_once():
    """The look itself has asked those who know: there is nothing to wait for."""
    looks = []

    class Counting(Brokers):
        async def topic(self, name, *, timeout_s=None):
            looks.append(name)
            return await super().topic(name)

    with pytest.raises(UnknownTopicError):
        await TopicClient(Counting((Done(), b""), incarnations=[None]), "t").ask(Done())
    assert looks == ["t"]


async def test_info_is_of_now_and_of_one_incarnation():
    """It asks the brokers anew, and says that the topic was recreated."""

    class Fresh(Brokers):
        async def topic(self, name, *, refresh):
            assert refresh
            return await super().topic(name)

    brokers = Fresh(incarnations=["1", "2"])
    client = TopicClient(brokers, "t")
    assert (await client.info()).incarnation == client.incarnation == "1"
    brokers.forget("t")
    with pytest.raises(TopicRecreatedError, match="1 and 2 are two topics of that name"):
        await client.info()
    assert client.incarnation == "1"


# -- watermarks -----------------------------------------------------------------------------


def told(by_write, by_read, retained_since_ms=0):
    """What one owner tells."""
    owned = [each for each in by_write if each >= 0]
    return WatermarkAnswer(
        stored_through_ms=min(owned, default=-1),
        write_partitions=by_write,
        read_partitions=by_read,
        retained_since_ms=retained_since_ms,
    )


def test_watermarks_of_owners():
    """Each write partition is told by its owner; all else is the least, or the latest removal."""
    merged = merge_watermarks(
        "t", 3, [told([30, -1, 50], [30, 90], 7), told([-1, 40, -1], [90, 40], 9)]
    )
    assert merged == WatermarkAnswer(
        stored_through_ms=30,
        write_partitions=[30, 40, 50],
        read_partitions=[30, 40],
        retained_since_ms=9,
    )


def test_watermark_of_one_broker():
    """One that owns everything is merged to what it said."""
    only = told([30, 40], [35], 7)
    assert merge_watermarks("t", 2, [only]) == only


def test_what_is_stored_up_to_the_very_first_moment_is_told():
    """Only less than 0 says that somebody does not own it."""
    merged = merge_watermarks("t", 1, [told([0], [0])])
    assert (merged.stored_through_ms, merged.read_partitions) == (0, [0])


def test_two_owners_of_one_write_partition():
    """While a write partition moves two may tell of it: the lesser holds."""
    merged = merge_watermarks("t", 2, [told([30, 20], [30]), told([60, -1], [60])])
    assert (merged.write_partitions, merged.stored_through_ms) == ([30, 20], 20)


def test_an_owner_that_has_nothing_any_more():
    """Who has just let go of all it had says nothing of the read partitions, and takes nothing."""
    merged = merge_watermarks("t", 2, [told([-1, -1], [-1, -1]), told([30, 40], [30, 35])])
    assert merged == told([30, 40], [30, 35])


@pytest.mark.parametrize(
    ("count", "answers"),
    [
        (2, [told([30, -1], [30])]),
        (2, [told([30], [30])]),  # it does not know the second one yet
        (1, [told([30, -1], [30])]),  # the client does not know the second one yet
    ],
)
def test_a_write_partition_that_nobody_tells(count, answers):
    """No watermark is better than a wrong one."""
    with pytest.raises(UnavailableError, match="write partition 1 of topic 't'"):
        merge_watermarks("t", count, answers)


async def test_watermark_waits_for_owners():
    """While a write partition has no owner the topic is looked up again; then all are asked."""
    brokers = Brokers(
        (told([30, -1], [30]), b""), (told([-1, 20], [20]), b""), addresses=["", "a:1 b:2"]
    )
    assert (await TopicClient(brokers, "t").watermark()).stored_through_ms == 20
    assert brokers.asked == ["a:1", "b:2"]


async def test_watermark_asks_again_where_an_owner_fails():
    """An answer that lacks an owner is none."""
    brokers = Brokers(
        (told([30, -1], [30]), b""),
        UnavailableError("down"),
        (told([50, 40], [40]), b""),
        addresses=["a:1 b:2", "a:1"],
    )
    assert (await TopicClient(brokers, "t").watermark()).stored_through_ms == 40
    assert brokers.asked == ["a:1", "b:2", "a:1"]


async def test_deadline():
    """Trying again ends with the deadline, with the last error."""
    brokers = Brokers(UnavailableError("down"))
    with pytest.raises(UnavailableError, match="down"):
        await TopicClient(brokers, "t").ask(Done(), timeout_s=0.05)


async def test_an_attempt_without_time_hides_no_reason():
    """That the last attempt ran out of time says less than what used the time up before."""
    brokers = Brokers(UnavailableError("down"), RequestTimeoutError("not within 0 s"))
    with pytest.raises(UnavailableError, match="down"):
        await TopicClient(brokers, "t").ask(Done(), timeout_s=0.05)
    brokers = Brokers(RequestTimeoutError("not within 5 s"))
    with pytest.raises(RequestTimeoutError):
        await TopicClient(brokers, "t").ask(Done(), timeout_s=0.05)


async def test_page():
    """Notifications and ends are decoded; what is no list of notifications breaks the protocol."""
    entry = NotificationEntry(0, 7, 1, b"payload")
    answer = FetchNotificationsAnswer(ends=[PartitionOffset(0, 8)])
    brokers = Brokers((answer, msgspec.msgpack.encode([entry])), (answer, b"\xc1"))
    client = TopicClient(brokers, "t")
    page = await client.page({0: 7}, max_entries=1)
    assert (page.entries, page.ends) == ([entry], {0: 8})
    with pytest.raises(ProtocolError, match="no list of notifications"):
        await client.page({0: 7}, max_entries=1)


# -- time -----------------------------------------------------------------------------------


class Slow(Brokers):
    """Brokers that let each attempt wait until its time is up.

    Attributes:
        attempts: when each began, and its timeout.
        looks: timeouts of the looks for the topic.
    """

    request_timeout_s = 12.0

    def __init__(self, *outcomes, **options):
        super().__init__(*outcomes, **options)
        self.attempts, self.looks, self.crcs = [], [], []
        self.began_s = asyncio.get_running_loop().time()

    def retry(self, timeout_s):
        clock_s = asyncio.get_running_loop().time
        return Retry(timeout_s, Runtime(mono_s=clock_s, random=lambda: 0.5))

    async def topic(self, name, *, timeout_s=None):
        self.looks.append(timeout_s)
        return await super().topic(name)

    async def attempt(self, address, request, body=b"", *, body_crc=None, timeout_s):
        self.attempts.append((asyncio.get_running_loop().time() - self.began_s, timeout_s))
        self.crcs.append((bytes(body), body_crc))
        await asyncio.sleep(timeout_s)
        return await super().attempt(address, request, body, body_crc=body_crc, timeout_s=timeout_s)


def message(write_partition):
    """A Message of no content."""
    return Write(
        topic="t",
        write_partition=write_partition,
        producer_id="p",
        epoch=0,
        sequence=0,
        first_unsettled=0,
        acks=-1,
        schema_id="s",
        records=0,
        min_timestamp_us=0,
        max_timestamp_us=0,
    )


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    ("ask", "budget_s", "attempt_s"),
    [
        (lambda t: t.ask(Done()), 12, ATTEMPT_S),
        (lambda t: t.ask(Done(), timeout_s=7), 7, ATTEMPT_S),
        (lambda t: t.ask(Done(), timeout_s=3), 3, ATTEMPT_S),
        (lambda t: t.read(FetchOffsets(topic="t"), timeout_s=7, wait_s=2), 9, ATTEMPT_S + 2),
        (lambda t: t.committed("g", timeout_s=7), 7, ATTEMPT_S),
        (lambda t: t.commit("g", "m", {0: 1}, timeout_s=7), 7, ATTEMPT_S),
        (lambda t: t.offsets(timeout_s=7), 7, ATTEMPT_S),
        (lambda t: t.watermark(), 12, ATTEMPT_S),
        (lambda t: t.write(message(0), b"x", 1), 12, 6),
        (lambda t: t.write(message(0), b"x", 1, timeout_s=8), 8, 4),
    ],
)
async def test_all_attempts_share_the_time_of_the_call(ask, budget_s, attempt_s):
    """Each has its own bound, and no more than what is left; so do the looks between them."""
    brokers = Slow(RequestTimeoutError("no answer"))
    with pytest.raises(RequestTimeoutError):
        await ask(TopicClient(brokers, "t"))
    assert len(brokers.attempts) >= budget_s / attempt_s
    for at_s, timeout_s in brokers.attempts:
        assert timeout_s == pytest.approx(min(attempt_s, budget_s - at_s))
    for timeout_s in brokers.looks:
        assert timeout_s is not None
        assert timeout_s <= min(attempt_s, budget_s)
    assert asyncio.get_running_loop().time() - brokers.began_s <= budget_s + 0.001


@pytest.mark.usefixtures("virtual_time")
async def test_a_message_goes_to_the_owner_of_its_write_partition():
    """With its bytes and their CRC, as often as it takes; nobody is asked while it has no owner."""
    brokers = Slow(UnavailableError("down"), (Done(), b""), addresses=["a:1 b:2"])
    await TopicClient(brokers, "t").write(message(1), b"x", 7)
    assert brokers.asked == ["b:2", "b:2"]
    assert brokers.crcs == [(b"x", 7)] * 2
    brokers = Slow((Done(), b""), addresses=["a:1 "])
    with pytest.raises(UnavailableError, match="owns write partition 1 of topic 't'"):
        await TopicClient(brokers, "t").write(message(1), b"x", 7, timeout_s=1)
    assert brokers.asked == []


async def test_a_call_is_about_the_incarnation_that_was_met_first():
    """Whatever the topic is by now: a broker that has the new one must be able to refuse."""
    brokers = Brokers((Done(), b""), incarnations=["1", "2"])
    client = TopicClient(brokers, "t")
    await client.ask(FetchOffsets(topic="t"))
    brokers.forget("t")
    await client.ask(FetchOffsets(topic="t"))
    assert brokers.incarnations_asked == ["1", "1"]
    assert client.incarnation == "1"
