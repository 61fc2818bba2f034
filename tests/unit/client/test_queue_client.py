from __future__ import annotations

import msgspec
import pytest

from memq.client.topic import TopicClient
from memq.core.runtime import SYSTEM
from memq.core.topic import TopicConfig
from memq.core.wire.messages import (
    Done,
    FetchNotificationsAnswer,
    NotificationEntry,
    PartitionOffset,
    TopicInfo,
)
from memq.errors import (
    InvalidRequestError,
    NotHostedError,
    ProtocolError,
    RequestTimeoutError,
    UnavailableError,
    UnknownTopicError,
)


class Brokers:
    """Stands for a `Cluster`: the broker of the queue is the last address of a list.

    Attributes:
        addresses: where the queue was and is; the last one is only told to who looks again.
        outcomes: what the next calls give: an answer with its body, or an error.
        asked: addresses that were asked.
    """

    request_timeout_s = 5.0
    runtime = SYSTEM

    def __init__(self, *outcomes, addresses=("a:1",)):
        self.addresses, self.outcomes, self.asked = list(addresses), list(outcomes), []

    async def topic(self, name, *, refresh=False, timeout_s=None):
        """The topic as it is known."""
        if refresh and len(self.addresses) > 1:
            self.addresses.pop(0)
        return TopicInfo(
            config=TopicConfig.create(name),
            schemas={},
            schema_id="",
            hosts=[],
            named_partitions=1,
            queue_address=self.addresses[0],
        )

    async def call(self, address, request, *, timeout_s):
        """The next outcome."""
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


@pytest.mark.parametrize("error", [InvalidRequestError, UnknownTopicError])
async def test_what_cannot_pass_is_raised(error):
    """An error that trying again cannot mend is raised at once."""
    brokers = Brokers(error("no"))
    with pytest.raises(error, match="no"):
        await TopicClient(brokers, "t").ask(Done())
    assert len(brokers.asked) == 1


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
