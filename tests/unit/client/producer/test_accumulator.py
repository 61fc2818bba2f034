"""Records become Messages: none lost, none too large, in order, with the right delivery."""

import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memq.client.producer import accumulator as accumulator_module
from memq.client.producer.accumulator import (
    ENVELOPE_BYTES,
    HEADER_BYTES,
    MAX_WAIT_S,
    RECORD_BYTES,
    TICK_S,
    Accumulator,
    check_record,
)
from memq.client.producer.memory import ByteBudget
from memq.core.format.message import open_message
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import (
    ClosedError,
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    RequestTimeoutError,
    SchemaMismatchError,
)
from tests.unit.client.interrupts import interrupted_by

MESSAGE_BYTES = 4_096
BATCH = pa.record_batch({"value": [b"b"]})


class Rig:
    """An accumulator with a clock of its own; sealed Messages gather in `sealed`."""

    def __init__(self, *, linger_s=0.01, buffer_bytes=1 << 20, compression=None, **options):
        self.now = 50.0
        self.sealed = options.pop("sealed", [])
        self.ready = 0
        self.woken = 0
        self.budget = options.pop("budget", None) or ByteBudget(buffer_bytes)
        self.accumulator = Accumulator(
            self.budget,
            message_bytes=options.pop("message_bytes", MESSAGE_BYTES),
            max_message_bytes=options.pop("max_message_bytes", 4 * MESSAGE_BYTES),
            linger_s=linger_s,
            compression=compression,
            schema_id=options.pop("schema_id", "default"),
            on_sealed=self.sealed.append,
            on_ready=self._ready,
            on_wake=self._wake,
            clock=lambda: self.now,
            wall_us=lambda: round(self.now * 1e6),
            **options,
        )
        self.write = self.accumulator.write
        self.tick = self.accumulator.tick

    def _wake(self):
        self.woken += 1

    def _ready(self):
        self.ready = len(self.sealed)

    def rows(self):
        """All rows of all sealed Messages."""
        self.accumulator.seal()
        return [row for message in self.sealed for row in rows_of(message)]


def rows_of(message):
    return open_message(message.body, DEFAULT_SCHEMA).to_pylist()


def micros(timestamp):
    return pa.scalar(timestamp, pa.timestamp("us", "UTC")).value


@pytest.mark.parametrize("key", [None, b"k" * 200])
def test_message_is_sealed_before_it_would_be_too_large(key):
    """The record that does not fit any more opens the next Message."""
    rig = Rig()
    value = b"x" * (500 - len(key or b""))
    deliveries = [rig.write(value, key, timestamp=number) for number in range(20)]
    assert len(set(map(id, deliveries))) == 4
    assert [message.max_timestamp_us for message in rig.sealed] == [5, 11, 17]
    assert rig.sealed[0].records == (MESSAGE_BYTES - ENVELOPE_BYTES) // (500 + RECORD_BYTES)


def test_large_record_gets_a_message_of_its_own():
    """Up to what the topic accepts, once there is the room that it needs; more is refused."""
    rig = Rig(buffer_bytes=6 * MESSAGE_BYTES)
    most = 4 * MESSAGE_BYTES - ENVELOPE_BYTES - RECORD_BYTES
    rig.write(b"before")
    rig.budget.take(2 * MESSAGE_BYTES)
    assert rig.write(b"x" * most) is None
    assert rig.budget.refused_bytes == 4 * MESSAGE_BYTES
    rig.budget.give(2 * MESSAGE_BYTES)
    assert rig.write(b"x" * most) is not None
    rig.write(b"after")
    with pytest.raises(MessageTooLargeError, match="message_bytes"):
        rig.write(b"x" * (most + 1))
    rig.accumulator.seal()
    assert [message.records for message in rig.sealed] == [1, 1, 1]
    assert rig.sealed[1].size_bytes <= 4 * MESSAGE_BYTES
    assert rig.budget.used_bytes == sum(message.size_bytes for message in rig.sealed)
    small = Rig(buffer_bytes=3 * MESSAGE_BYTES)
    assert small.accumulator.max_value_bytes == most - MESSAGE_BYTES
    with pytest.raises(MessageTooLargeError, match="buffer_bytes"):
        small.write(b"x" * most)


@pytest.mark.parametrize("headers", [None, [("n", b""), ("", None)] * 20])
def test_smallest_records_do_not_overfill_a_message(headers):
    """What Arrow adds to a record is counted in full, nulls and empty headers too."""
    rig = Rig(message_bytes=1 << 18, max_message_bytes=1 << 18)
    while len(rig.sealed) < 2:
        rig.write(None, b"", headers)
        rig.write(b"", None, headers)
    assert all(message.size_bytes <= 1 << 18 for message in rig.sealed)


@pytest.mark.parametrize(
    ("linger_s", "may_seal", "waits_s"),
    [
        (0.001, True, [0.001]),
        (0.025, True, [TICK_S, TICK_S, 0.005]),
        (5.0, True, [TICK_S, TICK_S, 4.98]),
        (0.02, False, [TICK_S] * 99),
        (None, True, [TICK_S, TICK_S]),
    ],
)
def test_linger_seals_by_time(linger_s, may_seal, waits_s):
    """A tick says when it wants the next; others that are unsent win time up to a limit."""
    rig = Rig(linger_s=linger_s)
    rig.write(b"a")
    assert rig.woken == 1
    found = [rig.accumulator.first_tick_s]
    while True:
        rig.now += found[-1] + 1e-9
        if (wait_s := rig.tick(may_seal=may_seal)) is None:
            break
        assert rig.sealed == []
        found.append(wait_s)
    assert found[: len(waits_s)] == pytest.approx(waits_s, abs=1e-6)
    assert bool(rig.sealed) == (linger_s is not None)
    assert may_seal or sum(found) == pytest.approx(MAX_WAIT_S, abs=2 * TICK_S)
    rig.write(b"b")
    assert rig.woken == 2


def test_without_linger_only_size_and_seal_cut():
    """A producer with a stable id cuts the same Messages whatever the time is."""
    cuts = []
    for ticks in (0, 3):
        rig = Rig(linger_s=None)
        for _ in range(100):
            rig.write(b"x" * 200, timestamp=1)
            for _ in range(ticks):
                rig.now += 0.1
                rig.tick(may_seal=True)
        rig.accumulator.seal()
        cuts.append([bytes(message.body) for message in rig.sealed])
    assert cuts[0] == cuts[1]
    assert len(cuts[0]) > 1


def test_idle_message_is_parked_and_its_time_is_taken_again():
    """After a pause the next record gets the time of its writing, not that of the first."""
    rig = Rig(linger_s=None)
    rig.write(b"a")
    for _ in range(2):
        rig.now += TICK_S
        rig.tick(may_seal=True)
    rig.now += 100
    assert rig.tick(may_seal=True) is None
    woken = rig.woken
    rig.write(b"b")
    assert rig.woken == woken + 1
    rig.write(b"c")
    first, *others = [micros(row["timestamp"]) for row in rig.rows()]
    assert first == 50_000_000
    assert others == [round(rig.now * 1e6)] * 2


@pytest.mark.parametrize("linger_s", [None, 60])
def test_a_batch_comes_after_what_is_open(linger_s):
    """A table that waits for memory does not wait for records that nobody would send before."""
    batch = pa.record_batch({"value": [b"x" * MESSAGE_BYTES, b"y"]})
    needed = pa.ipc.get_record_batch_size(batch) + ENVELOPE_BYTES
    rig = Rig(linger_s=linger_s, buffer_bytes=needed)
    rig.write(b"a")
    assert rig.accumulator.write_batch(batch, "typed") is None
    (first,) = rig.sealed
    assert rig.budget.refused_bytes == needed
    rig.budget.give(first.size_bytes)
    delivery = rig.accumulator.write_batch(batch, "typed")
    last = rig.sealed[1]
    assert (last.delivery, last.schema_id, last.records) == (delivery, "typed", 2)
    assert rig.budget.used_bytes == last.size_bytes


def test_batch_that_cannot_be_encoded_fails_and_frees_its_memory():
    """An error in encoding reaches the caller, and costs no memory."""
    rig = Rig()
    batch = pa.record_batch([pa.array(["a"]).dictionary_encode()], names=["d"])
    with pytest.raises(SchemaMismatchError):
        rig.accumulator.write_batch(batch, "typed")
    assert rig.budget.used_bytes == 0
    rig.write(b"a")
    assert len(rig.rows()) == 1


@pytest.mark.parametrize("error", [ClosedError("closed"), RuntimeError("no running loop")])
def test_message_that_cannot_be_handed_over_fails(error):
    """Where the event loop is gone the delivery ends, too, and the memory is given back."""
    rig = Rig()

    def refuse():
        raise error

    rig.accumulator._on_ready = refuse
    delivery = rig.write(b"a")
    with pytest.raises(type(error)):
        rig.accumulator.seal()
    assert type(delivery.exception(0)) is (ClosedError if error.args == ("closed",) else MemqError)
    assert str(error) in str(delivery.exception(0))
    assert rig.budget.used_bytes == 0


def test_message_that_is_acked_at_once():
    """However soon a Message is acked and let go of, its memory is given back once."""
    rig = Rig()

    def ack(message):
        rig.budget.give(message.size_bytes)
        message.body = b""

    rig.accumulator._on_sealed = ack
    rig.write(b"a")
    rig.accumulator.seal()
    rig.accumulator.write_batch(BATCH, "other")
    assert rig.budget.used_bytes == 0


@pytest.mark.parametrize(
    ("options", "late"),
    [({}, False), ({"linger_s": None}, True), ({"one_of_many": True}, True)],
)
def test_the_deadline_counts_from_the_first_record_where_a_linger_bounds_that(options, late):
    """Else from the sealing, so that the deadlines of a producer come in order."""
    rig = Rig(**options)
    rig.write(b"a")
    rig.now += 7
    rig.accumulator.seal()
    assert rig.sealed[0].written_s == (57.0 if late else 50.0)


def test_an_end_that_came_from_outside_seals_at_the_next_tick():
    """The first error holds; what is open does not wait for its linger time."""
    rig = Rig(linger_s=60)
    delivery = rig.write(b"a")
    first = ClosedError("first")
    rig.accumulator.fail(first)
    rig.accumulator.fail(ClosedError("second"))
    rig.accumulator.end(ClosedError("third"))
    assert rig.tick(may_seal=False) is None
    assert [message.delivery for message in rig.sealed] == [delivery]
    for write in (lambda: rig.write(b"b"), lambda: rig.accumulator.write_batch(BATCH, "typed")):
        with pytest.raises(ClosedError) as caught:
            write()
        assert caught.value is first


def test_an_end_seals_and_a_drop_fails_what_is_open():
    """The records of a Message that is given up are told so; the next one is opened anew."""
    rig = Rig(linger_s=None)
    dropped, error = rig.write(b"a"), ClosedError("dropped")
    for _ in range(2):
        rig.accumulator.drop_open(error)
    assert dropped.exception(0) is error
    assert rig.budget.used_bytes == 0
    assert rig.write(b"b") is not dropped
    rig.accumulator.end(ClosedError("closed"))
    assert [row["value"] for row in rig.rows()] == [b"b"]
    with pytest.raises(ClosedError, match="closed"):
        rig.write(b"c")


def parked(rig):
    """Write a record and let time pass until the next one takes the time anew."""
    delivery = rig.write(b"a")
    while rig.tick(may_seal=False) is not None:
        rig.now += TICK_S
    return delivery


def test_an_end_waits_for_no_thread_that_is_in_a_call(monkeypatch):
    """After a moment it refuses what is written later, and leaves alone what that thread holds."""
    monkeypatch.setattr(accumulator_module, "END_WAIT_S", 0.01)
    rig = Rig(linger_s=None)
    delivery = parked(rig)
    held, done, raised = threading.Event(), threading.Event(), []

    def wake():
        held.set()
        done.wait(60)

    def write():
        try:
            rig.write(b"b")
        except ClosedError as exc:
            raised.append(exc)

    rig.accumulator._on_wake = wake
    thread = threading.Thread(target=write)
    thread.start()
    held.wait(60)
    error = ClosedError("closed")
    rig.accumulator.end(error)
    rig.accumulator.drop_open(ClosedError("dropped"))
    assert rig.tick(may_seal=True) == TICK_S
    assert (rig.accumulator.open_records, delivery.done()) == (1, False)
    done.set()
    thread.join()
    assert raised == [error]
    assert delivery.exception(0) is error
    with pytest.raises(ClosedError, match="closed"):
        rig.write(b"c")
    assert (rig.budget.used_bytes, rig.sealed) == (0, [])


@pytest.mark.parametrize("how", ["record", "batch"])
@pytest.mark.parametrize("what", ["ends it", "raises"])
def test_a_write_that_cannot_go_on_gives_its_memory_back(how, what):
    """Whatever comes between the taking of memory and the record."""
    rig = Rig()
    error = ClosedError("closed")

    def clock():
        if what == "raises":
            raise KeyboardInterrupt
        rig.accumulator.end(error)
        return rig.now

    rig.accumulator._clock = clock
    with pytest.raises(ClosedError if what == "ends it" else KeyboardInterrupt):
        rig.write(b"a") if how == "record" else rig.accumulator.write_batch(BATCH, "typed")
    assert (rig.budget.used_bytes, rig.sealed) == (0, [])


def test_many_threads_lose_nothing():
    """Threads that write and seal at the same time get each record into its own Message once."""
    rig = Rig(buffer_bytes=64 << 20)
    written = [[] for _ in range(4)]

    def work(number):
        for count in range(3_000):
            value = b"%d-%d" % (number, count)
            written[number].append((value, rig.write(value, b"key" if count % 3 else None)))
            if count % 500 == 0:
                rig.accumulator.seal()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.accumulator.seal()
    found = {row["value"]: m.delivery for m in rig.sealed for row in rows_of(m)}
    assert sum(message.records for message in rig.sealed) == len(found) == 12_000
    assert all(found[value] is delivery for entries in written for value, delivery in entries)


KEYS = st.none() | st.binary(max_size=20)
HEADERS = st.none() | st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=4
)
TIMES = st.none() | st.integers(0, 2**40)
WRITES = st.tuples(st.just("write"), st.none() | st.binary(max_size=600), KEYS, HEADERS, TIMES)
# Those with a key alone, and those with nothing but a value, are written in ways of their own.
PLAIN = st.tuples(st.just("write"), st.binary(max_size=600), KEYS, st.none(), st.none())
STEPS = st.lists(
    st.one_of(
        WRITES,
        PLAIN,
        PLAIN,
        st.tuples(st.just("tick"), st.booleans(), st.floats(0, 0.03)),
        st.tuples(st.just("seal")),
    ),
    max_size=60,
)


@settings(max_examples=20)
@given(STEPS, st.sampled_from([None, 0.0, 0.05]), st.sampled_from([None, "lz4", "zstd"]))
def test_any_mix_of_records_comes_out_as_it_went_in(steps, linger_s, compression):
    """Each record is in the Message of its delivery, once, in order, with its time; sizes hold."""
    rig = Rig(linger_s=linger_s, compression=compression, message_bytes=1_500)
    written, samples = [], {round(rig.now * 1e6)}
    for step in steps:
        if step[0] == "write":
            _, value, key, headers, timestamp = step
            delivery = rig.write(value, key, headers, timestamp)
            written.append((delivery, value, key, headers, timestamp, rig.now))
        elif step[0] == "tick":
            rig.now += step[2]
            samples.add(round(rig.now * 1e6))
            rig.tick(may_seal=step[1])
        else:
            with suppress(RequestTimeoutError):  # without a linger time, waiting seals
                written[-1][0].result(0) if written and linger_s is None else rig.accumulator.seal()
            assert rig.accumulator.open_records == 0
        assert rig.budget.used_bytes <= rig.budget.limit_bytes
    rig.accumulator.seal()
    found = [(message.delivery, row) for message in rig.sealed for row in rows_of(message)]
    assert len(found) == len(written)
    for (delivery, row), (given_to, value, key, headers, timestamp, now) in zip(
        found, written, strict=True
    ):
        assert delivery is given_to
        assert (row["value"], row["key"], row["headers"]) == (value, key, headers)
        stamp = micros(row["timestamp"])
        assert stamp == timestamp if timestamp is not None else stamp in samples
        assert timestamp is not None or stamp <= round(now * 1e6)
    assert all(message.size_bytes <= 1_500 for message in rig.sealed)
    assert rig.budget.used_bytes == sum(message.size_bytes for message in rig.sealed)


def write_some(rig, written):
    """Write records that tell their keys, headers and times, in all ways, over several Messages."""
    for number in range(8):
        text = str(number).encode()
        value = text * 200 if number > 2 else text
        with_headers = {"headers": {"h": text}, "timestamp": number} if number in {2, 6} else {}
        key = None if number in {3, 5} else text
        written.append((number, rig.write(value, key, **with_headers)))
    rig.accumulator.seal()


def delivered_by(rig, where):
    """How often each record came under which delivery, with all that was given with it."""
    found = Counter()
    for message in rig.sealed:
        for row in rows_of(message):
            number = int(row["value"][:1])
            text = str(number).encode()
            assert row["key"] == (None if number in {3, 5} else text), where
            assert row["headers"] == ([("h", text)] if number in {2, 6} else None), where
            time_us = number if number in {2, 6} else 51_000_000 if number == 9 else 50_000_000
            assert micros(row["timestamp"]) == time_us, where
            found[number, id(message.delivery)] += 1
    return found


def kept_bytes(rig):
    """Bytes of the budget that no sealed Message holds."""
    return rig.budget.used_bytes - sum(message.size_bytes for message in rig.sealed)


def ids(written):
    """Numbers and deliveries of what was written."""
    return Counter((number, id(delivery)) for number, delivery in written)


def test_rows_that_are_not_encoded_keep_no_memory(monkeypatch):
    """What was set aside for them is free again."""

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr("memq.client.producer.accumulator.encode_message", fails)
    rig = Rig()
    with pytest.raises(MemoryError):
        rig.accumulator.write_batch(BATCH, "default")
    assert rig.budget.used_bytes == 0


@pytest.mark.parametrize("linger_s", [0.01, None])
@pytest.mark.parametrize("what", ["raises", "writes", "closes"])
def test_a_handler_anywhere_in_a_write(linger_s, what):
    """Wherever a signal's handler comes: no record is damaged or doubled, and no other is lost."""
    steps, left, refused = 0, 0, 0
    error = KeyboardInterrupt if linger_s else TimeoutError

    def handler():
        nonlocal refused
        if what == "raises":
            raise error
        try:
            if what == "closes":
                rig.accumulator.end(ClosedError("closed"))
            else:
                written.append((8, rig.write(b"8", b"8")))
        except InvalidRequestError as exc:
            assert "set a flag" in str(exc)
            refused += 1

    while left <= 0:
        steps += 1
        where = f"at step {steps}"
        rig, written = Rig(linger_s=linger_s, message_bytes=ENVELOPE_BYTES + 500), []
        try:
            left = interrupted_by(handler, lambda: write_some(rig, written), steps)  # noqa: B023
        except (error, MemqError) as exc:
            # What is no interrupt to Python may come as the cause of another error.
            assert isinstance(exc, error | ClosedError) or isinstance(exc.__context__, error), where
            left = 0
        assert rig.ready == len(rig.sealed), where
        if what != "closes":
            write_some(rig, written)
            rig.now += 1
            rig.tick(may_seal=True)
            woken = rig.woken
            written.append((9, rig.write(b"9", b"9")))
            assert rig.woken > woken, where  # to seal it in time
            rig.accumulator.end(ClosedError("closed"))
        if what != "closes" or left <= 0:
            with pytest.raises(ClosedError):
                rig.write(b"late", b"late")
            assert rig.accumulator.open_records == 0, where
        found, expected = delivered_by(rig, where), ids(written)
        assert found >= expected, where
        assert (found - expected).total() <= (left <= 0 and what != "writes"), where
        assert not any(delivery.done() for _, delivery in written), where
        assert abs(kept_bytes(rig)) <= (MESSAGE_BYTES if what == "raises" else 0), where
    assert steps > 100
    assert (0 < refused < steps) == (what == "writes")


def test_waiting_in_the_middle_of_a_write_is_refused():
    """A handler cannot wait for a Message that only the interrupted write can end."""
    for linger_s in (0.01, None):
        rig = Rig(linger_s=linger_s)
        delivery = rig.write(b"value")
        with rig.accumulator._lock:
            for call in (delivery.result, rig.accumulator.seal):
                with pytest.raises(InvalidRequestError, match="set a flag"):
                    call()


# -- records as callers give them -------------------------------------------------------


def test_bytes_like_values_are_copied():
    """What can change later is copied; bytes are kept as they are."""
    array = bytearray(b"abc")
    record = check_record(array, memoryview(b"key"), None, None)
    array[0] = 0
    assert (record.value, record.key) == (b"abc", b"key")


@pytest.mark.parametrize("headers", [{"é": b"12", "b": None}, [("é", b"12"), ("b", None)]])
def test_headers_are_a_mapping_or_pairs(headers):
    """Both forms give pairs, and the size counts names in UTF-8."""
    record = check_record(b"v", None, headers, None)
    assert record.headers == [("é", b"12"), ("b", None)]
    assert record.size_bytes == RECORD_BYTES + 1 + 2 * HEADER_BYTES + 3 + 2


def test_timestamps_are_microseconds():
    """Datetimes with any time zone and plain microseconds mean the same."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    expected = 1_767_323_045_678_901
    elsewhere = moment.astimezone(timezone(timedelta(hours=-7)))
    for each in (moment, elsewhere, expected):
        assert check_record(b"", None, None, each).timestamp_us == expected
    before = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert check_record(b"", None, None, before).timestamp_us == -1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("text", None, None, None), r"value\.encode\(\)"),
        ((1, None, None, None), "not int"),
        ((b"", "key", None, None), "a key must be bytes"),
        ((b"", None, "text", None), "headers must be"),
        ((b"", None, 5, None), "headers must be"),
        ((b"", None, {b"name": b""}, None), "header name must be str"),
        ((b"", None, {"name": "text"}, None), "value of header 'name'"),
        ((b"", None, {"\ud800": b""}, None), "not valid Unicode"),
        ((b"", None, None, 1.5), "not float"),
        ((b"", None, None, True), "not bool"),
        ((b"", None, None, 2**63), "64 bits"),
        ((b"", None, None, datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001
        ((b"",), "a schema of its own: use write_table"),
    ],
)
def test_wrong_types_are_told_with_the_way_out(arguments, text):
    """The error names what was given and how to give it."""
    with pytest.raises(InvalidRequestError, match=text):
        Rig(schema_id=None).write(*arguments)
