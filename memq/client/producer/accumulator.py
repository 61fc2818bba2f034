"""Records become Messages: gathered by any thread, sealed by size, by time, or when asked.

Theory of operation
-------------------
There is at most one *open* Message. Its records lie in plain lists, one per column, behind one
lock; `write` appends to them and returns the Message's `Delivery`. Sealing turns the lists into the
Message's bytes and hands these over, still under the lock, so that Messages leave in the order in
which they were sealed.

Rule 1. `_room` is what the open Message still takes. It is 0 whenever `write` must look closer:
    nothing is open, the producer is closed, the open Message is *paused* (`parked_room`), or a call
    is under way.
Rule 2. Opening a Message takes its whole size from the budget, and sealing gives back what it did
    not need: memory stays within the budget, and a Message that is open can always be sealed.
    Where the budget has no room `write` returns None, and the caller waits and tries again.
Rule 3. Time is sampled, not read for each record: when a Message is opened, and by `tick` while
    records keep coming. A record without a timestamp gets the last sample, which is at most
    `TICK_S` old (and what the event loop is late). When no record came since the last sample,
    `tick` pauses the Message, so that the next record takes a new one.
Rule 4. `tick` seals a Message that has been open for the linger time, unless what was sealed
    before still waits to be sent: then a larger Message is better than more of them. It is sealed
    after `MAX_WAIT_S` all the same, since its deadline counts from its first record. Without a
    linger time a Message is sealed only by size and by `seal`, which cuts the same records the same
    way each time.
Rule 5. Where nobody knows how long a Message stays open, and where several accumulators hand over
    to one state machine, its deadline counts from when it was sealed. Deadlines come in order then.
Rule 6. A signal's handler may raise between any two calls in here, and the program may go on. The
    record that is being written is then written whole or not at all, and no other is lost. So a
    record counts from when its value is appended, after its other columns. After one that was
    interrupted `_room` stays 0, and the next seals the Message. A Message is sealed by the code
    that takes it out of `_open`, when all that can be interrupted before is undone or may be done
    again. The budget alone may be wrong by that one Message.
Rule 7. A handler may call the producer instead, on the thread that it interrupts, as may `__del__`
    and a logging handler. The lock knows its thread, so that nobody waits for himself. Records are
    refused while a call of the same thread is under way. `end` is not: it seals the records that
    count, and the call that it interrupts finds the error, and raises it.
Rule 8. `tick` does not wait for the lock longer than `LOCK_WAIT_S`: the thread that holds it may be
    in a handler that waits for the event loop.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from memq.client.producer.delivery import Delivery
from memq.core.checksum import crc32c
from memq.core.format.message import encode_message, encode_records, timestamp_range_us
from memq.errors import ClosedError, InvalidRequestError, MemqError, MessageTooLargeError
from memq.runtime.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.client.producer.memory import ByteBudget
    from memq.core.format.message import Headers

BytesLike = bytes | bytearray | memoryview

TICK_S = 0.01  # how coarse the timestamps are that a producer gives
MAX_WAIT_S = 1.0  # a small part of any delivery deadline
LOCK_WAIT_S = 0.001  # a call holds the lock for less, unless a handler interrupts it
END_WAIT_S = 1.0  # the same, for a thread that ends the producer: it has time

# What Arrow adds to the bytes of a LogMessage of the default schema.
RECORD_BYTES = 21  # three offsets of 4, a timestamp of 8, and up to four validity bits
HEADER_BYTES = 9  # two offsets of 4 and a validity bit
ENVELOPE_BYTES = 704  # of a Message: metadata (about 530), padding, last offsets, compression

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP_RANGE = range(-(1 << 63), 1 << 63)


@dataclass(eq=False, slots=True)
class SealedMessage:
    """A Message ready to be sent.

    Attributes:
        body: its bytes, a `pyarrow.Buffer`.
        crc32c: of the body.
        schema_id: of its rows.
        records: LogMessages in it.
        min_timestamp_us: least timestamp.
        max_timestamp_us: greatest timestamp.
        written_s: when its first record was written, on the accumulator's clock; or when it was
            sealed, see rule 5.
        delivery: who waits for it.
        write_partition: that it belongs to; None where the state machine chooses one.
    """

    body: Any
    crc32c: int
    schema_id: str
    records: int
    min_timestamp_us: int
    max_timestamp_us: int
    written_s: float
    delivery: Delivery
    write_partition: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that it holds of the budget."""
        return len(self.body)


class Record(NamedTuple):
    """A checked LogMessage.

    Attributes:
        key: None where it has none.
        value: None is a tombstone.
        headers: None where it has none.
        timestamp_us: microseconds since 1970 UTC; None for the time of writing.
        size_bytes: upper bound of what it adds to its Message.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_us: int | None
    size_bytes: int


class _OpenMessage:
    """The records of a Message that is not sealed.

    Args:
        delivery: of the Message.
        reserved: bytes of the budget that it holds.
        opened_s: when it was opened.
    """

    __slots__ = (
        "delivery",
        "headers",
        "keys",
        "opened_s",
        "parked_room",
        "reserved",
        "sampled_at",
        "samples",
        "timestamps",
        "values",
    )

    def __init__(self, delivery: Delivery, reserved: int, opened_s: float) -> None:
        self.delivery = delivery
        self.reserved = reserved
        self.opened_s = opened_s
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[list[tuple[str, bytes | None]] | None] = []
        self.timestamps: list[int] = []
        self.samples: list[tuple[int, int]] = []  # (index of the first record, time)
        self.sampled_at = 0
        self.parked_room = 0

    def append(self, record: Record) -> None:
        """Add a record, its value last."""
        count = len(self.values)
        if record.key is not None:
            _pad(self.keys, count)
            self.keys.append(record.key)
        if record.headers is not None:
            _pad(self.headers, count)
            self.headers.append(record.headers)
        if record.timestamp_us is not None:
            self.fill_timestamps(count)
            self.timestamps.append(record.timestamp_us)
        self.values.append(record.value)

    def rows(self) -> pa.RecordBatch:
        """Return the records that count, as Arrow."""
        count = len(self.values)
        for column in (self.keys, self.headers, self.timestamps):
            del column[count:]  # of a record that a handler has kept from being written
        for column in (self.keys, self.headers):
            if column:
                _pad(column, count)
        self.fill_timestamps(count)
        return encode_records(self.keys or None, self.values, self.headers or None, self.timestamps)

    def sample(self, now_us: int) -> None:
        """Give the records that follow this time."""
        self.sampled_at = len(self.values)
        self.samples.append((self.sampled_at, now_us))

    def fill_timestamps(self, count: int) -> None:
        """Give the records up to `count` that have no timestamp the sample that holds for them."""
        ends = [index for index, _ in self.samples[1:]] + [count]
        for end, (_, sample_us) in zip(ends, self.samples, strict=True):
            missing = min(end, count) - len(self.timestamps)
            self.timestamps.extend([sample_us] * missing)


class Accumulator:
    """Gathers records into Messages. Thread safe.

    Args:
        budget: memory for open and unsettled Messages.
        message_bytes: size at which a Message is sealed.
        max_message_bytes: largest Message that the topic accepts.
        linger_s: how long a Message stays open at least; None for as long as it takes.
        compression: of Messages: None, "zstd" or "lz4".
        schema_id: of the default schema, told with each Message of records; None for a topic with
            a schema of its own, which takes tables only.
        on_sealed: takes a sealed Message, in one step that no signal divides, as `deque.append`.
            Called under the lock: it must not call back.
        on_ready: says that it did. Called under the lock, so it must not call back.
        on_wake: asks for `tick` in `first_tick_s` seconds. Called under the lock, as `on_ready` is.
        clock: monotonic seconds.
        wall_us: microseconds since 1970 UTC.
        write_partition: of all its Messages; None where the state machine chooses one for each.
        one_of_many: it is one of several of a producer, see rule 5.

    Attributes:
        first_tick_s: how soon `on_wake` asks for `tick`.
    """

    # Of the open Message, so that `write` finds them at once; not looked at while `_room` is 0.
    _append: Callable[[bytes | None], None]
    _delivery: Delivery

    def __init__(
        self,
        budget: ByteBudget,
        *,
        message_bytes: int,
        max_message_bytes: int,
        linger_s: float | None,
        compression: str | None,
        schema_id: str | None,
        on_sealed: Callable[[SealedMessage], object],
        on_ready: Callable[[], object],
        on_wake: Callable[[], object],
        clock: Callable[[], float] = SYSTEM.mono_s,
        wall_us: Callable[[], int] = SYSTEM.wall_us,
        write_partition: int | None = None,
        one_of_many: bool = False,
    ) -> None:
        self._budget = budget
        self._message_bytes = min(message_bytes, max_message_bytes)
        self._max_message_bytes = min(max_message_bytes, budget.limit_bytes)
        self._linger_s = linger_s
        self._compression = compression
        self._schema_id = schema_id
        self._on_sealed = on_sealed
        self._on_ready = on_ready
        self._on_wake = on_wake
        self._clock = clock
        self._wall_us = wall_us
        self._write_partition = write_partition
        self._from_sealing = one_of_many or linger_s is None
        self._lock = threading.RLock()
        self._error: MemqError | None = None
        self._ticking = False
        self.first_tick_s = TICK_S if linger_s is None else min(linger_s, TICK_S)
        self._open: _OpenMessage | None = None
        self._room = 0
        _accumulators.add(self)

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<Accumulator over: {self._error}>"
        return f"<Accumulator [{self.open_records} records open | {self._budget!r}]>"

    @property
    def open_records(self) -> int:
        """Records in the Message that is not sealed yet."""
        opened = self._open
        return 0 if opened is None else len(opened.values)

    @property
    def limits_bytes(self) -> tuple[int, int]:
        """What a RecordBatch should have, and what it must not exceed, before the envelope."""
        return self._message_bytes - ENVELOPE_BYTES, self._max_message_bytes - ENVELOPE_BYTES

    @property
    def max_value_bytes(self) -> int:
        """What the value of a record without key and headers must not exceed."""
        return self._max_message_bytes - ENVELOPE_BYTES - RECORD_BYTES

    # -- records ----------------------------------------------------------------------------

    def write(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Delivery | None:
        """Add a record; None where the budget has no room for another Message now.

        Raises:
            InvalidRequestError: something is not of its type, or the topic takes tables only.
            MessageTooLargeError: the record fits no Message.
            MemqError: what ended the producer.
        """
        # All that is not bytes, and all that opens or ends a Message, goes the long way.
        if type(value) is bytes and headers is None and timestamp is None:
            if key is None:
                needed = len(value) + RECORD_BYTES
                with self._lock:
                    room = self._room - needed
                    if room >= 0:  # no signal comes from here to the end of the append
                        self._room = room
                        self._append(value)
                        return self._delivery
            elif type(key) is bytes:
                with self._lock:
                    room, self._room = self._room, 0  # what a handler writes goes the long way
                    left = room - len(value) - len(key) - RECORD_BYTES
                    opened = self._open
                    if left >= 0 and opened and len(opened.keys) == len(opened.values):
                        opened.keys.append(key)
                        opened.values.append(value)
                        if self._error is None:
                            self._room = left
                            return opened.delivery
                    elif self._error is None:
                        self._room = room
        return self._add(check_record(value, key, headers, timestamp))

    def _add(self, record: Record) -> Delivery | None:
        self._check_not_nested()
        with self._lock:
            self._check_open()
            if self._schema_id is None:
                raise InvalidRequestError("the topic has a schema of its own: use write_table")
            self._check_fits(record.size_bytes)
            self._unpark()
            room, self._room = self._room, 0
            if record.size_bytes > room:
                self._seal()
                room = self._open_message(record.size_bytes)
            if not room or (opened := self._open) is None:
                self._check_open()
                return None
            opened.append(record)
            if self._error is not None:  # a handler has ended it meanwhile, or another thread
                if (dropped := self._discard()) is not None:
                    dropped.delivery.settle(self._error)
                raise self._error
            if room > record.size_bytes:
                self._room = room - record.size_bytes
            else:  # nothing fits in after a record that is larger than a Message
                self._seal()
            return opened.delivery

    # -- rows that are Arrow already --------------------------------------------------------

    def write_batch(self, batch: pa.RecordBatch, schema_id: str) -> Delivery | None:
        """Make these rows one Message, after what is open; None where the budget has no room.

        Raises:
            MemqError: what ended the producer.
        """
        self._check_not_nested()
        reserved = pa.ipc.get_record_batch_size(batch) + ENVELOPE_BYTES
        with self._lock:
            self._check_open()
            self._seal()
            if not self._budget.take(reserved):
                return None
            try:
                message = self._encode(batch, schema_id, Delivery(), self._clock())
            except BaseException:
                self._budget.give(reserved)
                raise
            size_bytes = message.size_bytes
            if self._error is not None:  # a handler has ended it meanwhile
                self._budget.give(reserved)
                raise self._error
            # As in `_seal`, and no function of their own: a signal could come where that begins.
            try:
                self._on_sealed(message)
                self._leave(message.delivery, reserved, size_bytes)
            except BaseException:
                self._ready_again()
                raise
            return message.delivery

    # -- sealing ----------------------------------------------------------------------------

    def seal(self) -> None:
        """Seal the open Message, if there is one.

        Raises:
            InvalidRequestError: this thread is in another call of the accumulator.
        """
        self._check_not_nested()
        with self._lock:
            self._seal()

    def tick(self, *, may_seal: bool) -> float | None:
        """Sample the time, and seal what has been open long enough.

        Args:
            may_seal: False while sealed Messages wait to be sent.

        Returns:
            Seconds until the next call, unless `on_wake` asks for it sooner; None for only then.
        """
        if not self._lock.acquire(timeout=LOCK_WAIT_S):
            return TICK_S
        try:
            return self._tick(may_seal)
        finally:
            self._lock.release()

    def _tick(self, may_seal: bool) -> float | None:
        opened = self._open
        if opened is None or not opened.values or self._error is not None:
            self._seal()
            self._ticking = False
            return None
        left_s = self._linger_left_s(opened, may_seal)
        if left_s is not None and left_s <= 0:
            self._seal()
            self._ticking = False
            return None
        if opened.sampled_at < len(opened.values):
            opened.sample(self._wall_us())
            return self.first_tick_s if left_s is None else min(left_s, self.first_tick_s)
        if self._room:
            opened.parked_room, self._room = self._room, 0
        self._ticking = False
        return left_s

    def drop_open(self, error: MemqError) -> None:
        """Give up the Message that is not sealed yet, if there is one: its delivery fails so."""
        if self._lock.acquire(timeout=END_WAIT_S):
            try:
                opened = self._discard()
            finally:
                self._lock.release()
            if opened is not None:
                opened.delivery.settle(error)  # whose callbacks may write again

    def end(self, error: MemqError) -> None:
        """Refuse everything with this error, or an earlier one, and seal what is open.

        What another thread keeps open by a call that does not end stays so, see `open_records`.
        """
        if self._error is not None:
            return
        if self._lock.acquire(timeout=END_WAIT_S):
            try:
                self._error = error
                self._seal()
            finally:
                self._lock.release()
        else:
            self._error = error

    def fail(self, error: MemqError) -> None:
        """Refuse everything with this error, or an earlier one; `tick` seals what is open."""
        self._error = self._error or error

    def _linger_left_s(self, opened: _OpenMessage, may_seal: bool) -> float | None:
        if self._linger_s is None:
            return None
        age_s = self._clock() - opened.opened_s
        if may_seal or age_s >= MAX_WAIT_S:
            return self._linger_s - age_s
        return max(self._linger_s - age_s, TICK_S)

    def _open_message(self, record_bytes: int) -> int:
        """Open a Message; return the room in it, which is 0 where the budget has none."""
        reserved = max(record_bytes + ENVELOPE_BYTES, self._message_bytes)
        if not self._budget.take(reserved):
            return 0
        try:
            delivery = Delivery(self.seal if self._linger_s is None else self._check_not_nested)
            opened = _OpenMessage(delivery, reserved, self._clock())
            opened.sample(self._wall_us())
            self._wake()
        except BaseException:
            self._budget.give(reserved)
            raise
        self._append, self._delivery = opened.values.append, delivery
        self._open = opened
        return reserved - ENVELOPE_BYTES

    def _seal(self) -> None:
        self._room = 0
        opened = self._open
        if opened is None or not opened.values:
            self._discard()  # opened for a record that an interrupt has kept away
            return
        interrupt = None
        try:
            message = self._encode_open(opened)
        except Exception as exc:
            if self._open is not opened:  # a handler has sealed it meanwhile
                self._check_open()
                raise
            interrupt = exc
            try:  # again: a signal's handler may have raised it
                message = self._encode_open(opened)
            except Exception:
                self._discard()
                opened.delivery.settle(_not_sent(exc))
                raise
        size_bytes = message.size_bytes  # none once it is acked, which may be at any time
        try:
            # No signal comes from here to the end of the next call, which is one in C.
            mine, self._open = self._open, None
            if mine is opened:
                self._on_sealed(message)
                self._leave(opened.delivery, opened.reserved, size_bytes)
        except BaseException:
            self._ready_again()
            raise
        if interrupt is not None:
            raise interrupt

    def _encode_open(self, opened: _OpenMessage) -> SealedMessage:
        written_s = self._clock() if self._from_sealing else opened.opened_s
        return self._encode(opened.rows(), self._schema_id or "", opened.delivery, written_s)

    def _encode(
        self, rows: pa.RecordBatch, schema_id: str, delivery: Delivery, written_s: float
    ) -> SealedMessage:
        body = encode_message(rows, self._compression)
        least, greatest = timestamp_range_us(rows)
        return SealedMessage(
            body,
            crc32c(body),
            schema_id,
            rows.num_rows,
            least,
            greatest,
            written_s,
            delivery,
            self._write_partition,
        )

    def _leave(self, delivery: Delivery, reserved: int, size_bytes: int) -> None:
        delivery.sealed()
        self._budget.give(reserved - size_bytes)
        try:
            self._on_ready()
        except (MemqError, RuntimeError) as exc:  # the event loop is gone
            self._budget.give(size_bytes)
            delivery.settle(_not_sent(exc))
            raise

    def _ready_again(self) -> None:
        """Say that something is sealed, which an interrupt may have kept away."""
        with suppress(ClosedError):  # then the close has taken it
            self._on_ready()

    def _discard(self) -> _OpenMessage | None:
        """Forget the open Message, if there is one, and return it."""
        self._room = 0
        opened, self._open = self._open, None
        if opened is not None:
            self._budget.give(opened.reserved)
        return opened

    # -- inside, with the lock held ---------------------------------------------------------

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_not_nested(self) -> None:
        """Refuse a call out of another one of the same thread. Called without the lock."""
        if self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition asks
            self._check_open()
            raise InvalidRequestError(
                "a signal's handler, __del__ or a logging handler called the producer in the "
                "middle of a call to it by the same thread; set a flag there, and write, flush or "
                "wait after it; only close works there"
            )

    def _check_fits(self, record_bytes: int) -> None:
        most = self._max_message_bytes - ENVELOPE_BYTES
        if record_bytes > most:
            raise MessageTooLargeError(
                f"a record of {record_bytes} bytes does not fit into a Message of {most} bytes, "
                "the lesser of the topic's message_bytes and the producer's buffer_bytes; "
                "send less, or raise them"
            )

    def _unpark(self) -> None:
        opened = self._open
        if opened is not None and opened.parked_room:
            opened.sample(self._wall_us())
            self._wake()
            self._room, opened.parked_room = opened.parked_room, 0

    def _wake(self) -> None:
        if not self._ticking:
            self._on_wake()
            self._ticking = True


def _not_sent(exc: Exception) -> MemqError:
    return exc if isinstance(exc, MemqError) else MemqError(f"not sent: {exc!r}")


def _pad(column: list[Any], count: int) -> None:
    column.extend([None] * (count - len(column)))


# -- records as callers give them -----------------------------------------------------------


def check_record(
    value: BytesLike | None,
    key: BytesLike | None,
    headers: Headers | None,
    timestamp: datetime | int | None,
) -> Record:
    """Return the record, safe from later changes by the caller.

    Raises:
        InvalidRequestError: something is not of its type; the message says how to give it.
    """
    value = checked_bytes("value", value)
    key = checked_bytes("key", key)
    size = RECORD_BYTES + len(value or b"") + len(key or b"")
    pairs = None
    if headers is not None:
        pairs = [_checked_header(pair) for pair in _pairs(headers)]
        size += sum(HEADER_BYTES + len(name.encode()) + len(text or b"") for name, text in pairs)
    return Record(key, value, pairs, _checked_timestamp_us(timestamp), size)


def checked_bytes(what: str, given: object) -> bytes | None:
    """Return what a caller gave as bytes, safe from later changes.

    Raises:
        InvalidRequestError: it is something else.
    """
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    hint = "; encode it first: value.encode()" if isinstance(given, str) else ""
    raise InvalidRequestError(f"a {what} must be bytes or None, not {type(given).__name__}{hint}")


def _pairs(headers: Headers) -> list[tuple[object, object]]:
    try:
        items = headers.items() if isinstance(headers, Mapping) else headers
        return [(name, text) for name, text in items]
    except (TypeError, ValueError) as exc:
        raise InvalidRequestError(
            f"headers must be a mapping of str to bytes, or pairs of them, not {headers!r:.200}"
        ) from exc


def _checked_header(pair: tuple[object, object]) -> tuple[str, bytes | None]:
    name, text = pair
    if not isinstance(name, str):
        raise InvalidRequestError(f"a header name must be str, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequestError(f"header name {name!r:.200} is not valid Unicode") from exc
    return name, checked_bytes(f"value of header {name!r:.200}", text)


def _checked_timestamp_us(timestamp: object) -> int | None:
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidRequestError(
                f"timestamp {timestamp!r} has no time zone; give one, such as "
                "datetime.now(timezone.utc)"
            )
        return (timestamp - _EPOCH) // _MICROSECOND
    if type(timestamp) is not int:
        raise InvalidRequestError(
            "a timestamp must be a datetime with a time zone, or microseconds since 1970 UTC as "
            f"int, not {type(timestamp).__name__}"
        )
    if timestamp not in _TIMESTAMP_RANGE:
        raise InvalidRequestError(f"timestamp {timestamp} does not fit 64 bits of microseconds")
    return timestamp


# -- fork -----------------------------------------------------------------------------------

_accumulators: weakref.WeakSet[Accumulator] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Reset after a fork: the child has no sending thread, and the lock may have been held."""
    error = ClosedError("this producer was made before a fork; make one in the child process")
    for accumulator in list(_accumulators):
        accumulator._lock = threading.RLock()  # noqa: SLF001
        accumulator._open, accumulator._room = None, 0  # noqa: SLF001
        accumulator._error = error  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
