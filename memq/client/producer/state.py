"""What a producer's state machine is made of, and the effects it asks for."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from memq.client.producer.accumulator import SealedMessage
    from memq.core.wire.messages import Write


@dataclass(eq=False, slots=True)
class Partition:
    """A write partition: its host and its Messages.

    Attributes:
        number: of the write partition.
        host: address of its broker; empty while it has none.
        next_sequence: of the next Message submitted.
        unsettled: its Messages that are not settled, by sequence.
        waiting: heap of those that are not in flight, the next to be sent first: sorted by when
            they may be sent and by sequence; in an ordered topic by sequence alone. Settled ones
            are dropped when they come up.
        in_flight: how many are in flight.
        sent_to: the broker that the last one was sent to.
        window: how many may be in flight, in an ordered topic.
    """

    number: int
    host: str
    next_sequence: int = 0
    unsettled: OrderedDict[int, Entry] = field(default_factory=OrderedDict)
    waiting: list[tuple[float, int, Entry]] = field(default_factory=list)
    in_flight: int = 0
    sent_to: Link | None = None
    window: int = 1

    def first_unsettled(self) -> int:
        """Least sequence that may still be sent."""
        return next(iter(self.unsettled), self.next_sequence)


@dataclass(eq=False, slots=True)
class Entry:
    """A Message with its name.

    Attributes:
        message: its bytes and their description.
        partition: write partition that it belongs to.
        sequence: in that write partition.
        deadline_s: when it fails.
        ready_s: when it may be sent.
        attempts: how often it failed.
        sent_s: when it was sent last.
        link: the broker that it is in flight to; None while it waits.
        settled: its outcome is known.
        redirected: its last answer sent it on to another broker.
    """

    message: SealedMessage
    partition: Partition
    sequence: int
    deadline_s: float
    ready_s: float = -math.inf
    attempts: int = 0
    sent_s: float = -math.inf
    link: Link | None = None
    settled: bool = False
    redirected: bool = False


class LinkState(enum.Enum):
    """Whether Messages can be sent to a broker."""

    DOWN = "down"
    CONNECTING = "connecting"
    UP = "up"


@dataclass(eq=False, slots=True)
class Link:
    """A broker as somewhere to send to.

    Attributes:
        address: of the broker.
        state: of the connection.
        attempts: failed ones to connect, in a row.
        retry_s: when to try to connect again.
        in_flight: Messages without an answer, the longest in flight first.
    """

    address: str
    state: LinkState = LinkState.DOWN
    attempts: int = 0
    retry_s: float = -math.inf
    in_flight: OrderedDict[Entry, None] = field(default_factory=OrderedDict)


class Send(NamedTuple):
    """Send the Message to the broker; report `acked` or `failed`."""

    entry: Entry
    address: str
    header: Write


class Connect(NamedTuple):
    """Connect to the broker; report `connected` or `connect_failed`."""

    address: str


class Drop(NamedTuple):
    """Close the connection to the broker: it does not answer."""

    address: str


class Refresh(NamedTuple):
    """Ask for the topic's hosts; report `refreshed` or `refresh_failed`."""


Effect: TypeAlias = Send | Connect | Drop | Refresh


@dataclass(frozen=True)
class CoreOptions:
    """What a producer is, and how long it tries.

    Attributes:
        topic: that it writes to.
        incarnation: of that topic.
        producer_id: its name.
        epoch: of that name.
        acks: 0, 1, or -1 for `all`.
        ordered: the topic keeps each producer's order: one write partition, sequences in order.
        fixed_partitions: never use write partitions that are added later, so that the same
            Messages go to the same ones in every run.
        max_in_flight: Messages per broker without an answer.
        delivery_timeout_s: from when a Message was written to its deadline.
        answer_timeout_s: longest that a broker may take to answer.
    """

    topic: str
    incarnation: str
    producer_id: str
    epoch: int
    acks: int
    ordered: bool
    fixed_partitions: bool
    max_in_flight: int
    delivery_timeout_s: float
    answer_timeout_s: float
