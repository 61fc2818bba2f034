"""What was written, and what was acked of it.

Every LogMessage has a name, (producer label, number), and all of its content follows from the name.
So whatever is read back says which LogMessage it is, and can be compared with what was sent.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memq.errors import ClosedError

if TYPE_CHECKING:
    from memq.client.delivery import Delivery, StoredAt

FIRST_US = 1_700_000_000_000_000  # timestamp of number 0


class Name(NamedTuple):
    """Which LogMessage it is."""

    label: str
    number: int


class Row(NamedTuple):
    """The content of a LogMessage, as it is written and as it is read."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]] | None
    timestamp_us: int


class MessageName(NamedTuple):
    """Which Message it is."""

    topic: str
    write_partition: int
    producer_id: str
    epoch: int
    sequence: int


def row_of(name: Name, sizes: tuple[int, ...]) -> Row:
    """The content that follows from a name; its value has one of the sizes, or a bit more."""
    label, number = name
    text = b"%s|%d|" % (label.encode(), number)
    digest = hashlib.sha256(text).digest()
    size = sizes[digest[0] % len(sizes)]
    return Row(
        key=digest[:8] if number % 3 else None,
        value=text + (digest * (size // len(digest) + 1))[: max(0, size - len(text))],
        headers=[("number", b"%d" % number), ("empty", b"")] if number % 7 == 0 else None,
        timestamp_us=FIRST_US + number,
    )


def name_in(value: bytes | None) -> Name | None:
    """The name that a value begins with; None when it has none."""
    label, bar, rest = (value or b"").partition(b"|")
    number, bar_2, _ = rest.partition(b"|")
    if not (bar and bar_2 and number.isdigit()):
        return None
    return Name(label.decode(errors="replace"), int(number))


@dataclass
class Written:
    """What one producer has written so far; lives of a stable one share it.

    Attributes:
        topic: to which.
        sizes: of its values.
        count: numbers below this were handed to a producer.
    """

    topic: str
    sizes: tuple[int, ...]
    count: int = 0


class Ledger:
    """Everything that the producers of a run know.

    Attributes:
        written: by producer label.
        acked: LogMessages that were acked.
        places: what the acks of each Message said.
        inside: the Message in which a LogMessage was acked, where the producer can tell.
        refused: errors of Messages that should have been acked.
        duplicates: acks that said that the Message had been published before.
    """

    def __init__(self) -> None:
        self.written: dict[str, Written] = {}
        self.acked: set[Name] = set()
        self.places: dict[MessageName, list[StoredAt]] = defaultdict(list)
        self.inside: dict[Name, MessageName] = {}
        self.refused: list[str] = []
        self.duplicates = 0

    def watch(self, delivery: Delivery, producer_id: str, names: list[Name]) -> None:
        """Note what becomes of a Message, of which these are the LogMessages."""

        def settled(stored: StoredAt) -> None:
            message = self.note(stored, producer_id)
            self.acked.update(names)
            self.inside.update(dict.fromkeys(names, message))

        self._on_ack(delivery, settled)

    def watch_table(self, deliveries: list[Delivery], producer_id: str, names: list[Name]) -> None:
        """Note what becomes of a table that was cut into Messages, who knows where."""
        open_ones = set(map(id, deliveries))

        def watch(delivery: Delivery) -> None:
            def settled(stored: StoredAt) -> None:
                self.note(stored, producer_id)
                open_ones.discard(id(delivery))
                if not open_ones:
                    self.acked.update(names)

            self._on_ack(delivery, settled)

        for delivery in deliveries:
            watch(delivery)

    def note(self, stored: StoredAt, producer_id: str) -> MessageName:
        """Note an ack of a Message of epoch 0."""
        message = MessageName(stored.topic, stored.write_partition, producer_id, 0, stored.sequence)
        self.places[message].append(stored)
        self.duplicates += stored.duplicate
        return message

    def _on_ack(self, delivery: Delivery, settled) -> None:
        def done(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is None:
                settled(delivery.result())
            elif not isinstance(error, ClosedError):  # a producer that was to die
                self.refused.append(f"{type(error).__name__}: {error}")

        delivery.add_done_callback(done)
