"""What a producer sends when, to whom, and what becomes of it: the state machine.

Theory of operation
-------------------
A Message that is submitted gets its name for life, (write partition, sequence), and is

    waiting --SendMessage--> in flight --acked / failed for good--> settled
       ^                         |
       +------ retriable --------+   waiting or in flight --deadline--> settled (failed)

Rule 1. Sequences count from 0 per write partition and are never given to other content. A retry
    sends the very same bytes under the very same name.
Rule 2. Each Message has one deadline. At it the Message fails with `DeliveryTimeoutError`, waiting
    or in flight. If it is in flight its answer is still awaited, and its memory is given back only
    then: the connection may still be reading it.
Rule 3. `first_unsettled` of a write partition is the least sequence neither acked nor failed; it
    only grows. The broker refuses, and never waits for, what is below it.
Rule 4. A retriable error makes the Message wait for a back-off with full jitter. In an unordered
    topic it holds up no other Message.
Rule 4a. In an ordered topic no later Message of its write partition is sent before it, so only the
    first Message without an outcome ever waits. Those sent after it the broker refuses because of
    the gap (`SequenceGapError`), which counts as a failure of none of them: once the first is acked
    the next goes at once. Whatever is refused has crossed the network for nothing, so after any
    other failure one Message is in flight, and with each ack one more. A write partition that moves
    is sent on only when nothing is in flight to its old host.
Rule 5. At most `max_in_flight` Messages are in flight per broker.
Rule 6. An error that will not go away fails what it concerns: the one Message that the broker
    refuses; for `FATAL` everything, and all that is written later. Then there is nothing more to
    do but to await what is in flight. A token that is refused is fatal once every host refuses it:
    while tokens are replaced, one broker may be late.
Rule 7. `NotHostedError` that names an address moves the write partition there, and the Message is
    sent again at once, but only once in a row: then it backs off. An error that may mean that the
    host has changed asks for the topic's hosts again (`RefreshHosts`); they are adopted when they
    come, asked for or not. A write partition without a host waits, and asks again and again.
Rule 7a. A Message that may go to any write partition goes to one whose host is near, while there is
    any; then it stays with that one wherever it moves.
Rule 8. A broker that leaves a Message unanswered for `answer_timeout_s` is not answering: its
    connection is dropped, which fails, retriably, all that is in flight on it.

It does no I/O and knows no clock. The caller passes events and the time in monotonic seconds,
carries out what `poll` returns, and calls `poll` again after each event and at `wake_at_s()`.
Every `SendMessage` must be answered by `acked` or `failed`; every `ConnectToBroker` by `connected`
or `connect_failed`; every `RefreshHosts` by `refreshed` or `refresh_failed`.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from memq.client.producer.delivery import StoredAt
from memq.core.checksum import crc32c
from memq.core.wire.messages import Write
from memq.errors import (
    DeliveryTimeoutError,
    MemqError,
    NotHostedError,
    ProducerFencedError,
    ProtocolError,
    RequestTimeoutError,
    SequenceGapError,
    TopicRecreatedError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.runtime.retry import BROKER_BACKOFF

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from opentelemetry.trace import Span

    from memq.client.producer.accumulator import SealedMessage
    from memq.core.wire.messages import WriteAnswer

FATAL = (
    ProducerFencedError,
    ProtocolError,
    TopicRecreatedError,
    UnknownTopicError,
)
"""Errors that end the producer: no later Message would fare better."""

REFRESH_INTERVAL_S = 0.5  # hosts change within seconds; asking more often only loads the brokers


@dataclass(eq=False, slots=True)
class PartitionState:
    """A write partition: its host and its Messages.

    Attributes:
        number: of the write partition.
        host: address of its broker; empty while it has none.
        next_sequence: of the next Message submitted.
        unsettled: its Messages without an outcome, by sequence.
        waiting: heap of those that are not in flight, the next to be sent first: sorted by when
            they may be sent and by sequence; in an ordered topic by sequence alone. Those with an
            outcome are dropped when they come up.
        in_flight: how many are in flight.
        sent_to: the broker that the last one was sent to.
        window: how many may be in flight, in an ordered topic.
    """

    number: int
    host: str
    next_sequence: int = 0
    unsettled: OrderedDict[int, NamedMessage] = field(default_factory=OrderedDict)
    waiting: list[tuple[float, int, NamedMessage]] = field(default_factory=list)
    in_flight: int = 0
    sent_to: BrokerLink | None = None
    window: int = 1

    def first_unsettled(self) -> int:
        """Least sequence that may still be sent."""
        return next(iter(self.unsettled), self.next_sequence)


@dataclass(eq=False, slots=True)
class NamedMessage:
    """A Message with its name.

    Attributes:
        sealed: its bytes and their description.
        partition: write partition that it belongs to.
        sequence: in that write partition.
        deadline_s: when it fails.
        ready_s: when it may be sent.
        attempts: how often it failed.
        sent_s: when it was sent last.
        link: the broker that it is in flight to; None while it waits.
        settled: its outcome is known.
        redirected: its last answer sent it on to another broker.
        span: of tracing; None without.
        trace: context of that span.
    """

    sealed: SealedMessage
    partition: PartitionState
    sequence: int
    deadline_s: float
    ready_s: float = -math.inf
    attempts: int = 0
    sent_s: float = -math.inf
    link: BrokerLink | None = None
    settled: bool = False
    redirected: bool = False
    span: Span | None = None
    trace: str = ""


class LinkState(enum.Enum):
    """Whether Messages can be sent to a broker."""

    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"


@dataclass(eq=False, slots=True)
class BrokerLink:
    """A broker as somewhere to send to.

    Attributes:
        address: of the broker.
        state: of the connection.
        attempts: failed ones to connect, in a row.
        retry_s: when to try to connect again.
        refused: it refused the token when it was tried last.
        in_flight: Messages without an answer, the longest in flight first.
    """

    address: str
    state: LinkState = LinkState.DOWN
    attempts: int = 0
    retry_s: float = -math.inf
    refused: bool = False
    in_flight: OrderedDict[NamedMessage, None] = field(default_factory=OrderedDict)


class SendMessage(NamedTuple):
    """Send the Message to the broker; report `acked` or `failed`."""

    message: NamedMessage
    address: str
    header: Write


class ConnectToBroker(NamedTuple):
    """Connect to the broker; report `connected` or `connect_failed`."""

    address: str


class DropConnection(NamedTuple):
    """Close the connection to the broker: it does not answer."""

    address: str


class RefreshHosts(NamedTuple):
    """Ask for the topic's hosts; report `refreshed` or `refresh_failed`."""


Effect: TypeAlias = SendMessage | ConnectToBroker | DropConnection | RefreshHosts


@dataclass(frozen=True)
class StateMachineOptions:
    """What a producer is, and how long it tries.

    Attributes:
        topic: that it writes to.
        topic_id: of that topic.
        producer_id: its name.
        epoch: of that name.
        acks: 0, 1, or -1 for `all`.
        ordered: the topic keeps each producer's order: sequences in order, and one write partition
            for Messages that do not name theirs.
        fixed_partitions: never use write partitions that are added later, so that the same
            Messages, or keys, go to the same ones.
        max_in_flight: Messages per broker without an answer.
        delivery_timeout_s: from when a Message was written to its deadline.
        answer_timeout_s: longest that a broker may take to answer.
    """

    topic: str
    topic_id: str
    producer_id: str
    epoch: int
    acks: int
    ordered: bool
    fixed_partitions: bool
    max_in_flight: int
    delivery_timeout_s: float
    answer_timeout_s: float


class ProducerStateMachine:
    """The state machine of one producer.

    Args:
        options: see there.
        hosts: address of each write partition's broker, by position.
        near: addresses of brokers that are preferred.
        release: gives so many bytes back to the budget.
        on_submitted: told of each Message when it has its name.
        on_settled: told of each Message when it is acked or fails, with where it is stored or its
            error.
        randomness: evenly spread over [0, 1).
    """

    def __init__(
        self,
        options: StateMachineOptions,
        hosts: Sequence[str],
        *,
        near: Collection[str] = (),
        release: Callable[[int], None],
        on_submitted: Callable[[NamedMessage], None],
        on_settled: Callable[[NamedMessage, StoredAt | MemqError], None],
        randomness: Callable[[], float],
    ) -> None:
        self.options = options
        self.error: MemqError | None = None
        self._near = near
        self._spread: list[PartitionState] = []  # what Messages are spread over that may be
        self._partitions: list[PartitionState] = []
        self._add_partitions(hosts)
        self._hosts_changed()
        self._links: dict[str, BrokerLink] = {}
        self._unsettled: OrderedDict[NamedMessage, None] = (
            OrderedDict()
        )  # as submitted: by deadline
        self._unsent = 0
        self._in_turn = 0
        self._turn = 0
        self._refresh_wanted = False
        self._refreshing = False
        self._refresh_s = -math.inf
        self._last_error: MemqError | None = None
        self.trouble = ""  # why acks do not come, as a broker says
        self._release = release
        self._on_submitted = on_submitted
        self._on_settled = on_settled
        self._randomness = randomness
        self._first_partition = crc32c(options.producer_id.encode())

    def __repr__(self) -> str:
        state = f"over: {self.error} | " if self.error is not None else ""
        return (
            f"<ProducerStateMachine {self.options.producer_id} [{state}"
            f"{len(self._unsettled)} unsettled | {self.in_flight} in flight | "
            f"{self._unsent} never sent]>"
        )

    @property
    def write_partitions(self) -> int:
        """Write partitions that Messages are spread over."""
        return len(self._partitions)

    @property
    def unsent(self) -> int:
        """Messages that wait to be sent for the first time."""
        return self._unsent

    @property
    def in_flight(self) -> int:
        """Messages whose answer, or whose connection's end, is awaited."""
        return sum(len(link.in_flight) for link in self._links.values())

    @property
    def unsettled_count(self) -> int:
        """Messages whose outcome is open."""
        return len(self._unsettled)

    def unsettled(self) -> list[NamedMessage]:
        """Messages whose outcome is open, as submitted."""
        return list(self._unsettled)

    def overdue(self, now_s: float, patience_s: float) -> tuple[str, str]:
        """Return the broker of the oldest Message, and the last error, if it waits for so long."""
        first = next(iter(self._unsettled), None)
        before_s = now_s - patience_s + self.options.delivery_timeout_s
        if first is None or first.deadline_s > before_s:
            return "", ""
        address = first.partition.host if first.link is None else first.link.address
        return address, str(self._last_error) if first.attempts else ""

    # -- events -----------------------------------------------------------------------------

    def submit(self, sealed: SealedMessage) -> None:
        """Take a Message, give it its name, and see to it that its delivery ends."""
        partition = self._partition_of(sealed)
        deadline_s = sealed.written_s + self.options.delivery_timeout_s
        message = NamedMessage(sealed, partition, partition.next_sequence, deadline_s)
        partition.next_sequence += 1
        partition.unsettled[message.sequence] = message
        self._unsettled[message] = None
        self._unsent += 1
        self._on_submitted(message)
        if self.error is not None:
            self._settle(message, self.error)
        else:
            self._wait(message)

    def acked(self, message: NamedMessage, answer: WriteAnswer) -> None:
        """Record that the broker acked the Message."""
        self._land(message)
        message.partition.window += 1  # what a broker may have in flight bounds it, too
        if not message.settled:
            self._settle(
                message,
                StoredAt(
                    self.options.topic,
                    answer.partition,
                    answer.offset,
                    answer.batch_id,
                    message.partition.number,
                    message.sequence,
                    answer.duplicate,
                ),
            )

    def failed(self, message: NamedMessage, error: MemqError, now_s: float) -> None:
        """Record that the broker refused the Message, or the connection ended before its answer."""
        self._land(message)
        if isinstance(error, FATAL):
            self.end(error)
        elif not message.settled:
            if error.retriable:
                self._retry(message, error, now_s)
            else:
                self._settle(message, error)

    def connected(self, address: str) -> None:
        """There is a connection to the broker."""
        link = self._link(address)
        link.state, link.attempts, link.refused = LinkState.UP, 0, False

    def connect_failed(self, address: str, error: MemqError, now_s: float) -> None:
        """Record that the broker cannot be reached, or refuses the connection."""
        if isinstance(error, FATAL):
            self.end(error)
            return
        link = self._link(address)
        link.refused = isinstance(error, UnauthorizedError)
        hosts = {partition.host for partition in self._partitions if partition.host}
        if link.refused and hosts and all(self._link(host).refused for host in hosts):
            self.end(error)
            return
        link.state = LinkState.DOWN
        link.retry_s = now_s + BROKER_BACKOFF.full_jitter_s(link.attempts, self._randomness)
        link.attempts += 1
        self._last_error = error
        self._refresh_wanted = True

    def disconnected(self, address: str) -> None:
        """Record that the connection has ended; its Messages are reported as `failed`."""
        link = self._link(address)
        if link.state is LinkState.UP:
            link.state = LinkState.DOWN

    def refreshed(self, hosts: Sequence[str], now_s: float, *, near: Collection[str] = ()) -> None:
        """Take the topic's hosts and preferred brokers that were asked for."""
        self._refreshing = False
        self._refresh_s = now_s + REFRESH_INTERVAL_S
        self.moved(hosts, near=near)

    def moved(self, hosts: Sequence[str], *, near: Collection[str] = ()) -> None:
        """Take the topic's hosts and preferred brokers that changed by themselves."""
        for partition, host in zip(self._partitions, hosts, strict=False):
            partition.host = host
        if not (self.options.ordered or self.options.fixed_partitions):
            self._add_partitions(hosts[len(self._partitions) :])
        self._near = near
        self._hosts_changed()
        used = {partition.host for partition in self._partitions}
        self._links = {
            address: link
            for address, link in self._links.items()
            if address in used or link.in_flight or link.state is not LinkState.DOWN
        }

    def refresh_failed(self, error: MemqError, now_s: float) -> None:
        """Record that the topic's hosts could not be looked up."""
        self._refreshing = False
        self._refresh_s = now_s + REFRESH_INTERVAL_S
        self._last_error = error
        if isinstance(error, FATAL):
            self.end(error)
        else:
            self._refresh_wanted = True

    def end(self, error: MemqError) -> None:
        """Fail all that has no outcome, and all that is submitted from now on."""
        if self.error is None:
            self.error = error
        for message in list(self._unsettled):
            self._settle(message, error)

    # -- what to do -------------------------------------------------------------------------

    def poll(self, now_s: float) -> list[Effect]:
        """Return what has to be done now; each effect is handed out once."""
        effects: list[Effect] = []
        if self.error is not None:
            return effects
        self._expire(now_s)
        for link in self._links.values():
            if now_s >= self._silent_s(link):
                link.state = LinkState.DOWN
                effects.append(DropConnection(link.address))
        count = len(self._partitions)
        self._turn = (self._turn + 1) % count
        for step in range(count):
            self._send_from(self._partitions[(self._turn + step) % count], now_s, effects)
        if self._refresh_wanted and not self._refreshing and now_s >= self._refresh_s:
            self._refresh_wanted, self._refreshing = False, True
            effects.append(RefreshHosts())
        return effects

    def wake_at_s(self) -> float:
        """Return when `poll` has something to do if nothing happens before; infinity when never."""
        if self.error is not None:
            return math.inf
        times = [self._silent_s(link) for link in self._links.values()]
        times += [self._sendable_s(partition) for partition in self._partitions]
        if self._unsettled:
            times.append(next(iter(self._unsettled)).deadline_s)
        if self._refresh_wanted and not self._refreshing:
            times.append(self._refresh_s)
        return min(times)

    # -- inside -----------------------------------------------------------------------------

    def _add_partitions(self, hosts: Sequence[str]) -> None:
        for host in hosts:
            number, window = len(self._partitions), self.options.max_in_flight
            self._partitions.append(PartitionState(number, host, window=window))

    def _hosts_changed(self) -> None:
        """Choose the write partitions of Messages that may go to any of them."""
        near: list[PartitionState] = []
        if not (self.options.ordered or self.options.fixed_partitions):
            near = [partition for partition in self._partitions if partition.host in self._near]
        self._spread = near or self._partitions

    def _partition_of(self, sealed: SealedMessage) -> PartitionState:
        if sealed.write_partition is not None:
            return self._partitions[sealed.write_partition]
        turn = 0 if self.options.ordered else self._in_turn
        self._in_turn += 1
        return self._spread[(self._first_partition + turn) % len(self._spread)]

    def _link(self, address: str) -> BrokerLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = BrokerLink(address)
        return link

    def _wait(self, message: NamedMessage) -> None:
        key = 0.0 if self.options.ordered else message.ready_s
        heapq.heappush(message.partition.waiting, (key, message.sequence, message))

    def _send_from(self, partition: PartitionState, now_s: float, effects: list[Effect]) -> None:
        """Send what may be sent of a write partition, and connect to its host if need be."""
        while partition.waiting:
            message = partition.waiting[0][2]
            if message.settled:
                heapq.heappop(partition.waiting)
                continue
            if not partition.host:
                self._refresh_wanted = True
            if message.ready_s > now_s or not partition.host:
                return
            link = self._link(partition.host)
            if link.state is LinkState.DOWN and now_s >= link.retry_s:
                link.state = LinkState.CONNECTING
                effects.append(ConnectToBroker(link.address))
            if not self._may_send(partition, link):
                return
            heapq.heappop(partition.waiting)
            effects.append(self._send(message, link, now_s))

    def _may_send(self, partition: PartitionState, link: BrokerLink) -> bool:
        if link.state is not LinkState.UP or len(link.in_flight) >= self.options.max_in_flight:
            return False
        if not self.options.ordered:
            return True
        # Two brokers at a time would keep no order between what each of them got.
        moving = partition.in_flight > 0 and partition.sent_to is not link
        return not moving and partition.in_flight < partition.window

    def _send(self, message: NamedMessage, link: BrokerLink, now_s: float) -> SendMessage:
        if message.sent_s == -math.inf:
            self._unsent -= 1
        message.link, message.sent_s = link, now_s
        link.in_flight[message] = None
        message.partition.in_flight += 1
        message.partition.sent_to = link
        sealed, options = message.sealed, self.options
        header = Write(
            topic=options.topic,
            topic_id=options.topic_id,
            write_partition=message.partition.number,
            producer_id=options.producer_id,
            epoch=options.epoch,
            sequence=message.sequence,
            first_unsettled=message.partition.first_unsettled(),
            acks=options.acks,
            schema_id=sealed.schema_id,
            records=sealed.records,
            min_timestamp_us=sealed.min_timestamp_us,
            max_timestamp_us=sealed.max_timestamp_us,
            trace=message.trace,
        )
        return SendMessage(message, link.address, header)

    def _land(self, message: NamedMessage) -> None:
        """Record that the Message is not in flight any more."""
        link, message.link = message.link, None
        if link is not None:
            del link.in_flight[message]
            message.partition.in_flight -= 1
            if message.settled:
                self._free(message)

    def _retry(self, message: NamedMessage, error: MemqError, now_s: float) -> None:
        self._last_error = error
        moved = isinstance(error, NotHostedError) and error.address != ""
        if isinstance(error, NotHostedError) and moved:
            message.partition.host = error.address
            self._hosts_changed()
        elif isinstance(error, NotHostedError | UnavailableError | RequestTimeoutError):
            self._refresh_wanted = True
        if not moved or message.redirected:
            self._back_off(message, error, now_s)
        message.redirected = moved and not message.redirected
        self._wait(message)

    def _back_off(self, message: NamedMessage, error: MemqError, now_s: float) -> None:
        partition, counts = message.partition, not isinstance(error, SequenceGapError)
        if self.options.ordered:
            if counts:
                partition.window = 1
            if message.sequence != partition.first_unsettled():
                return
        message.ready_s = now_s + BROKER_BACKOFF.full_jitter_s(message.attempts, self._randomness)
        message.attempts += counts

    def _expire(self, now_s: float) -> None:
        while self._unsettled:
            message = next(iter(self._unsettled))
            if now_s < message.deadline_s:
                return
            last = f"; last error: {self._last_error}" if self._last_error is not None else ""
            if self.trouble:
                last = f"; {self.trouble}"
            timeout_s = self.options.delivery_timeout_s
            self._settle(
                message,
                DeliveryTimeoutError(
                    f"sequence {message.sequence} of write partition {message.partition.number} of "
                    f"{self.options.topic!r} was not acked within {timeout_s:g} s{last}"
                ),
            )

    def _settle(self, message: NamedMessage, outcome: StoredAt | MemqError) -> None:
        message.settled = True
        del message.partition.unsettled[message.sequence]
        del self._unsettled[message]
        if message.sent_s == -math.inf:
            self._unsent -= 1
        self._on_settled(message, outcome)
        if message.link is None:
            self._free(message)
        message.sealed.delivery.settle(outcome)

    def _free(self, message: NamedMessage) -> None:
        size = message.sealed.size_bytes
        message.sealed.body = b""  # the heap of waiting ones may keep the message for a while
        self._release(size)

    def _silent_s(self, link: BrokerLink) -> float:
        """Return when the broker has taken too long to answer."""
        if link.state is not LinkState.UP or not link.in_flight:
            return math.inf
        return next(iter(link.in_flight)).sent_s + self.options.answer_timeout_s

    def _sendable_s(self, partition: PartitionState) -> float:
        """Return when the first waiting Message can be sent, if only time keeps it."""
        if not partition.waiting or not partition.host:
            return math.inf
        ready_s = partition.waiting[0][2].ready_s
        link = self._link(partition.host)
        if link.state is LinkState.DOWN:
            return max(ready_s, link.retry_s)
        return ready_s if self._may_send(partition, link) else math.inf
