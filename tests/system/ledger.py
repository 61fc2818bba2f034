"""What was written, and what was acked of it.

Every LogMessage has a name, (producer label, number), and all of its content follows from the name.
So whatever is read back says which LogMessage it is, and can be compared with what was sent.
"""

import hashlib
import time
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from memq.client.producer.delivery import Delivery
from memq.client.producer.producer import AsyncProducer
from memq.client.producer.state_machine import NamedMessage
from memq.core.format.message import decode_message
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import ClosedError
from tests.simulation import history as h
from tests.simulation.recording import sent, settled

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


def now_us() -> int:
    """The time of the history."""
    return time.monotonic_ns() // 1_000


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
    """Everything that the producers of a run know, and what happened in it.

    Attributes:
        history: of the run, on the monotonic clock of this process.
        written: by producer label.
        sent: the LogMessages of each Message, by topic and name.
        acked: LogMessages that were acked.
        refused: errors of Messages that should have been acked.
        duplicates: acks that said that the Message had been published before.
    """

    def __init__(self) -> None:
        self.history = h.History()
        self.written: dict[str, Written] = {}
        self.sent: dict[tuple[str, h.Name], tuple[h.Value, ...]] = {}
        self.acked: set[h.Value] = set()
        self.refused: list[str] = []
        self.duplicates = 0

    def value_of(self, topic: str, row: Row) -> h.Value:
        """What a row is for the history: its name, if it is as that was written to this topic."""
        name = name_in(row.value)
        written = None if name is None else self.written.get(name.label)
        if name is None or written is None or name.number >= written.count:
            return f"never written: {row!r:.200}"
        if written.topic != topic or row != row_of(name, written.sizes):
            return f"{name}, but damaged: {row!r:.200}"
        return name

    def watch(self, producer: AsyncProducer, process: str, *, ordered: bool) -> None:
        """Note each Message of a producer as it gets its name, and what becomes of it."""
        core = producer._state_machine
        told = core._on_submitted

        def named(message: NamedMessage) -> None:
            batch = decode_message(message.sealed.body, DEFAULT_SCHEMA)
            values = tuple(map(name_in, batch["value"].to_pylist()))
            send = sent(message, core.options, process, now_us(), values=values, ordered=ordered)
            self.sent[send.topic, send.name] = values
            message.sealed.delivery.add_done_callback(partial(self._settled, send))
            told(message)

        core._on_submitted = named

    def _settled(self, send: h.Send, delivery: Delivery) -> None:
        error = delivery.exception()
        stored = None if error else delivery.result()
        if stored is not None:
            self.acked.update(send.values)
            self.duplicates += stored.duplicate
        elif not isinstance(error, ClosedError):  # a producer that was to die
            self.refused.append(f"{type(error).__name__}: {error}")
        self.history.add(settled(send, now_us(), stored))
