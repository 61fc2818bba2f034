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
    topic it holds up no other Message. In an ordered one nothing behind it in its write partition
    is sent before it; what had been sent already the broker refuses with `SequenceGapError`.
Rule 5. At most `max_in_flight` Messages are in flight per broker.
Rule 6. An error that will not go away fails what it concerns: the one Message that the broker
    refuses; everything, and all that is written later, for `FATAL`.
Rule 7. `NotHostedError` that names an address moves the write partition there, and the Message is
    sent again at once, but only once in a row: then it backs off. Any other retriable error except
    `SequenceGapError` asks for the topic's hosts again (`Refresh`), which are adopted when they come.
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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memq.client.backoff import full_jitter_s
from memq.client.delivery import StoredAt
from memq.core.wire.messages import Write
from memq.errors import (
    DeliveryTimeoutError,
    MemqError,
    NotHostedError,
    ProducerFencedError,
    ProtocolError,
    SequenceGapError,
    UnauthorizedError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memq.client.accumulator import SealedMessage
    from memq.client.delivery import Delivery
    from memq.core.wire.messages import WriteAnswer

FATAL = (ProducerFencedError, UnknownTopicError, UnauthorizedError, ProtocolError)
"""Errors that end the producer: no later Message would fare better."""


@dataclass(eq=False, slots=True)
class Entry:
    """A Message with its name.

    Attributes:
        message: its bytes and their description.
        partition: write partition that it belongs to.
        sequence: in that write partition.
        deadline_s: when it fails.
        attempts: how often it was sent or could not be.
        settled: its outcome is known.
        sent_s: when it was sent last; meaningless while it waits.
        redirected: it was sent on by its last answer.
    """

    message: SealedMessage
    partition: _Partition
    sequence: int
    deadline_s: float
    attempts: int = 0
    settled: bool = False
    sent_s: float = 0.0
    redirected: bool = False


@dataclass(eq=False, slots=True)
class _Partition:
    """A write partition: its host and its Messages."""

    number: int
    host: str
    next_sequence: int = 0
    unsettled: OrderedDict[int, Entry] = field(default_factory=OrderedDict)
    # By (when it may be sent, sequence); in an ordered topic by sequence alone.
    waiting: list[tuple[float, int, float, Entry]] = field(default_factory=list)

    def first_unsettled(self) -> int:
        return next(iter(self.unsettled), self.next_sequence)


@dataclass(eq=False, slots=True)
class _Link:
    """What is known of a broker as somewhere to send to."""

    address: str
    state: str = "down"  # "down", "connecting", "up"
    attempts: int = 0
    retry_at_s: float = -math.inf
    in_flight: OrderedDict[int, Entry] = field(default_factory=OrderedDict)  # by id, oldest first


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


Effect = Send | Connect | Drop | Refresh
