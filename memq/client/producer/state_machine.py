"""What a producer sends when, to whom, and what becomes of it: the state machine.

Theory of operation
-------------------
A Message that is submitted gets its name for life, (write partition, sequence), and is

    waiting --Send--> in flight --acked / failed for good--> settled
       ^                  |
       +-- retriable -----+          waiting or in flight --deadline--> settled (failed)

Rule 1. Sequences count from 0 per write partition and are never given to other content. A retry
    sends the very same bytes under the very same name.
Rule 2. Each Message has one deadline. At it the Message fails with `DeliveryTimeoutError`, waiting
    or in flight. If it is in flight its answer is still awaited, and its memory is given back only
    then: the connection may still be reading it.
Rule 3. `first_unsettled` of a write partition is the least sequence that is not settled; it only
    grows. The broker refuses, and never waits for, what is below it.
Rule 4. A retriable error makes the Message wait for a back-off with full jitter. In an unordered
    topic it holds up no other Message.
Rule 4a. In an ordered topic nothing behind it in its write partition is sent before it, so only the
    first Message that is not settled ever waits. What was sent behind it the broker refuses for the
    sake of a neighbour, which counts for nobody, as does a `SequenceGapError`: once the first is
    acked the next goes at once. Whatever is refused has crossed the network for nothing, so after
    any other failure one Message is in flight, and with each ack one more. A write partition that
    moves is sent on only when nothing is in flight to its old host.
Rule 5. At most `max_in_flight` Messages are in flight per broker.
Rule 6. An error that will not go away fails what it concerns: the one Message that the broker
    refuses; for `FATAL` everything, and all that is written later. Then there is nothing more to
    do but to await what is in flight.
Rule 7. `NotHostedError` that names an address moves the write partition there, and the Message is
    sent again at once, but only once in a row: then it backs off. An error that may mean that the
    host has changed asks for the topic's hosts again (`Refresh`); they are adopted when they come.
Rule 8. A broker that leaves a Message unanswered for `answer_timeout_s` is not answering: its
    connection is dropped, which fails, retriably, all that is in flight on it.

The core does no I/O and knows no clock. The caller passes events and the time in monotonic seconds,
carries out what `poll` returns, and calls `poll` again after each event and at `wake_at_s()`.
Every `Send` must be answered by one of `acked` and `failed`; every `Connect` by `connected` or
`connect_failed`; every `Refresh` by `refreshed` or `refresh_failed`.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

from memq.client.producer.delivery import StoredAt
from memq.client.producer.state import (
    Connect,
    Drop,
    Entry,
    Link,
    LinkState,
    Partition,
    Refresh,
    Send,
)
from memq.core.checksum import crc32c
from memq.core.retry import BROKER_BACKOFF
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memq.client.producer.accumulator import SealedMessage
    from memq.client.producer.state import CoreOptions, Effect
    from memq.core.wire.messages import WriteAnswer

FATAL = (
    ProducerFencedError,
    ProtocolError,
    TopicRecreatedError,
    UnauthorizedError,
    UnknownTopicError,
)
"""Errors that end the producer: no later Message would fare better."""


REFRESH_INTERVAL_S = 0.5  # hosts change within seconds; asking more often only loads the brokers


class ProducerCore:
    """The state machine of one producer.

    Args:
        options: see there.
        hosts: address of each write partition's broker, by position.
        release: gives so many bytes back to the budget.
        on_submitted: told of each Message when it has its name.
        on_settled: told of each Message when it is settled, with its place or its error.
        randomness: evenly spread over [0, 1).
    """

    def __init__(
        self,
        options: CoreOptions,
        hosts: Sequence[str],
        *,
        release: Callable[[int], None],
        on_submitted: Callable[[Entry], None],
        on_settled: Callable[[Entry, StoredAt | MemqError], None],
        randomness: Callable[[], float],
    ) -> None:
        self.options = options
        self.error: MemqError | None = None
        self._partitions: list[Partition] = []
        self._add_partitions(hosts)
        self._links: dict[str, Link] = {}
        self._unsettled: OrderedDict[Entry, None] = OrderedDict()  # as submitted: by deadline
        self._unsent = 0
        self._submitted = 0
        self._turn = 0
        self._refresh_wanted = False
        self._refreshing = False
        self._refresh_s = -math.inf
        self._last_error: MemqError | None = None
        self._release = release
        self._on_submitted = on_submitted
        self._on_settled = on_settled
        self._randomness = randomness
        self._first_partition = crc32c(options.producer_id.encode())

    def __repr__(self) -> str:
        in_flight = sum(len(link.in_flight) for link in self._links.values())
        state = f"over: {self.error} | " if self.error is not None else ""
        return (
            f"<ProducerCore {self.options.producer_id} [{state}{len(self._unsettled)} unsettled | "
            f"{in_flight} in flight | {self._unsent} never sent]>"
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

    def unsettled(self) -> list[Entry]:
        """Messages whose outcome is open, as submitted."""
        return list(self._unsettled)

    # -- events -----------------------------------------------------------------------------

    def submit(self, message: SealedMessage) -> None:
        """Take a Message, give it its name, and see to it that its delivery ends."""
        partition = self._choose_partition()
        deadline_s = message.written_s + self.options.delivery_timeout_s
        entry = Entry(message, partition, partition.next_sequence, deadline_s)
        partition.next_sequence += 1
        partition.unsettled[entry.sequence] = entry
        self._unsettled[entry] = None
        self._submitted += 1
        self._unsent += 1
        self._on_submitted(entry)
        if self.error is not None:
            self._settle(entry, self.error)
        else:
            self._wait(entry)

    def acked(self, entry: Entry, answer: WriteAnswer) -> None:
        """The broker acked the Message."""
        self._land(entry)
        partition = entry.partition
        partition.window = min(partition.window + 1, self.options.max_in_flight)
        if not entry.settled:
            self._settle(
                entry,
                StoredAt(
                    self.options.topic,
                    answer.partition,
                    answer.offset,
                    answer.batch_id,
                    entry.partition.number,
                    entry.sequence,
                    answer.duplicate,
                ),
            )

    def failed(self, entry: Entry, error: MemqError, now_s: float) -> None:
        """The broker refused the Message, or the connection ended before its answer."""
        self._land(entry)
        if isinstance(error, FATAL):
            self.end(error)
        elif not entry.settled:
            if error.retriable:
                self._retry(entry, error, now_s)
            else:
                self._settle(entry, error)

    def connected(self, address: str) -> None:
        """There is a connection to the broker."""
        link = self._link(address)
        link.state, link.attempts = LinkState.UP, 0

    def connect_failed(self, address: str, error: MemqError, now_s: float) -> None:
        """The broker cannot be reached, or refuses the connection."""
        if isinstance(error, FATAL):
            self.end(error)
            return
        link = self._link(address)
        link.state = LinkState.DOWN
        link.retry_s = now_s + BROKER_BACKOFF.full_jitter_s(link.attempts, self._randomness)
        link.attempts += 1
        self._last_error = error
        self._refresh_wanted = True

    def disconnected(self, address: str) -> None:
        """The connection to the broker has ended; its Messages are reported as `failed`."""
        link = self._link(address)
        if link.state is LinkState.UP:
            link.state = LinkState.DOWN

    def refreshed(self, hosts: Sequence[str], now_s: float) -> None:
        """These are the topic's hosts now."""
        self._refreshing = False
        self._refresh_s = now_s + REFRESH_INTERVAL_S
        for partition, host in zip(self._partitions, hosts, strict=False):
            partition.host = host
        if not (self.options.ordered or self.options.fixed_partitions):
            self._add_partitions(hosts[len(self._partitions) :])
        used = {partition.host for partition in self._partitions}
        self._links = {
            address: link
            for address, link in self._links.items()
            if address in used or link.in_flight or link.state is not LinkState.DOWN
        }

    def refresh_failed(self, error: MemqError, now_s: float) -> None:
        """The topic's hosts cannot be told."""
        self._refreshing = False
        self._refresh_s = now_s + REFRESH_INTERVAL_S
        self._last_error = error
        if isinstance(error, FATAL):
            self.end(error)
        else:
            self._refresh_wanted = True

    def end(self, error: MemqError) -> None:
        """Fail all that is not settled, and all that is submitted from now on."""
        if self.error is None:
            self.error = error
        for entry in list(self._unsettled):
            self._settle(entry, error)

    # -- what to do -------------------------------------------------------------------------

    def poll(self, now_s: float) -> list[Effect]:
        """What has to be done now; each effect is handed out once."""
        effects: list[Effect] = []
        if self.error is not None:
            return effects
        self._expire(now_s)
        for link in self._links.values():
            if now_s >= self._silent_s(link):
                link.state = LinkState.DOWN
                effects.append(Drop(link.address))
        count = len(self._partitions)
        self._turn = (self._turn + 1) % count
        for step in range(count):
            self._send_from(self._partitions[(self._turn + step) % count], now_s, effects)
        if self._refresh_wanted and not self._refreshing and now_s >= self._refresh_s:
            self._refresh_wanted, self._refreshing = False, True
            effects.append(Refresh())
        return effects

    def wake_at_s(self) -> float:
        """When `poll` has something to do if nothing happens before; infinity when never."""
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
            self._partitions.append(Partition(number, host, window=window))

    def _choose_partition(self) -> Partition:
        turn = 0 if self.options.ordered else self._submitted
        return self._partitions[(self._first_partition + turn) % len(self._partitions)]

    def _link(self, address: str) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(address)
        return link

    def _wait(self, entry: Entry) -> None:
        key = 0.0 if self.options.ordered else entry.ready_s
        heapq.heappush(entry.partition.waiting, (key, entry.sequence, entry))

    def _send_from(self, partition: Partition, now_s: float, effects: list[Effect]) -> None:
        """Send what may be sent of a write partition, and connect to its host if need be."""
        while partition.waiting:
            entry = partition.waiting[0][2]
            if entry.settled:
                heapq.heappop(partition.waiting)
                continue
            if not partition.host:
                self._refresh_wanted = True
            if entry.ready_s > now_s or not partition.host:
                return
            link = self._link(partition.host)
            if link.state is LinkState.DOWN and now_s >= link.retry_s:
                link.state = LinkState.CONNECTING
                effects.append(Connect(link.address))
            if not self._may_send(partition, link):
                return
            heapq.heappop(partition.waiting)
            effects.append(self._send(entry, link, now_s))

    def _may_send(self, partition: Partition, link: Link) -> bool:
        if link.state is not LinkState.UP or len(link.in_flight) >= self.options.max_in_flight:
            return False
        if not self.options.ordered:
            return True
        # Two brokers at a time would keep no order between what each of them got.
        moving = partition.in_flight > 0 and partition.sent_to is not link
        return not moving and partition.in_flight < partition.window

    def _send(self, entry: Entry, link: Link, now_s: float) -> Send:
        if entry.sent_s == -math.inf:
            self._unsent -= 1
        entry.link, entry.sent_s = link, now_s
        link.in_flight[entry] = None
        entry.partition.in_flight += 1
        entry.partition.sent_to = link
        message, options = entry.message, self.options
        header = Write(
            topic=options.topic,
            incarnation=options.incarnation,
            write_partition=entry.partition.number,
            producer_id=options.producer_id,
            epoch=options.epoch,
            sequence=entry.sequence,
            first_unsettled=entry.partition.first_unsettled(),
            acks=options.acks,
            schema_id=message.schema_id,
            records=message.records,
            min_timestamp_us=message.min_timestamp_us,
            max_timestamp_us=message.max_timestamp_us,
        )
        return Send(entry, link.address, header)

    def _land(self, entry: Entry) -> None:
        """The Message is not in flight any more."""
        link, entry.link = entry.link, None
        if link is not None:
            del link.in_flight[entry]
            entry.partition.in_flight -= 1
            if entry.settled:
                self._free(entry)

    def _retry(self, entry: Entry, error: MemqError, now_s: float) -> None:
        self._last_error = error
        moved = isinstance(error, NotHostedError) and error.address != ""
        if isinstance(error, NotHostedError) and moved:
            entry.partition.host = error.address
        elif isinstance(error, NotHostedError | UnavailableError | RequestTimeoutError):
            self._refresh_wanted = True
        if not moved or entry.redirected:
            self._back_off(entry, error, now_s)
        entry.redirected = moved and not entry.redirected
        self._wait(entry)

    def _back_off(self, entry: Entry, error: MemqError, now_s: float) -> None:
        partition, counts = entry.partition, not isinstance(error, SequenceGapError)
        if self.options.ordered:
            if counts:
                partition.window = 1
            if entry.sequence != partition.first_unsettled():
                return
        entry.ready_s = now_s + BROKER_BACKOFF.full_jitter_s(entry.attempts, self._randomness)
        entry.attempts += counts

    def _expire(self, now_s: float) -> None:
        while self._unsettled:
            entry = next(iter(self._unsettled))
            if now_s < entry.deadline_s:
                return
            last = f"; last error: {self._last_error}" if self._last_error is not None else ""
            timeout_s = self.options.delivery_timeout_s
            self._settle(
                entry,
                DeliveryTimeoutError(
                    f"sequence {entry.sequence} of write partition {entry.partition.number} of "
                    f"{self.options.topic!r} was not acked within {timeout_s:g} s{last}"
                ),
            )

    def _settle(self, entry: Entry, outcome: StoredAt | MemqError) -> None:
        entry.settled = True
        del entry.partition.unsettled[entry.sequence]
        del self._unsettled[entry]
        if entry.sent_s == -math.inf:
            self._unsent -= 1
        self._on_settled(entry, outcome)
        if entry.link is None:
            self._free(entry)
        entry.message.delivery.settle(outcome)

    def _free(self, entry: Entry) -> None:
        size = entry.message.size_bytes
        entry.message.body = b""  # the heap of waiting ones may keep the entry for a while
        self._release(size)

    def _silent_s(self, link: Link) -> float:
        """When the broker has taken too long to answer."""
        if link.state is not LinkState.UP or not link.in_flight:
            return math.inf
        return next(iter(link.in_flight)).sent_s + self.options.answer_timeout_s

    def _sendable_s(self, partition: Partition) -> float:
        """When the first waiting Message can be sent, if only time keeps it."""
        if not partition.waiting or not partition.host:
            return math.inf
        ready_s = partition.waiting[0][2].ready_s
        link = self._link(partition.host)
        if link.state is LinkState.DOWN:
            return max(ready_s, link.retry_s)
        return ready_s if self._may_send(partition, link) else math.inf
