"""Lines become LogMessages, and what becomes of these is counted."""

from __future__ import annotations

import io
import random
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.produce import Tally, read_lines, split_key
from memq.client.producer.delivery import Delivery, StoredAt
from memq.errors import DeliveryTimeoutError, InvalidRequestError, MemqError, MessageTooLargeError

# -- lines are read in blocks ---------------------------------------------------------------


class Trickle(io.RawIOBase):
    """A stream that gives some bytes at a time, as a terminal or a pipe does."""

    def __init__(self, data, sizes):
        self._data = io.BytesIO(data)
        self._sizes = iter(sizes)
        self.given = 0

    def readable(self):
        """It is."""
        return True

    def readinto(self, buffer):
        """The next few bytes."""
        count = self._data.readinto(memoryview(buffer)[: next(self._sizes, len(buffer))])
        self.given += count
        return count


def lines_of(data, sizes=()):
    """All lines of a stream that arrives in pieces of these sizes."""
    stream = io.BufferedReader(Trickle(data, sizes))
    return [line for block in read_lines(stream, max_line_bytes=1 << 20) for line in block]


@given(st.binary().map(lambda data: data.replace(b"x", b"\n")), st.lists(st.integers(1, 9)))
def test_every_line_once(data, sizes):
    """However the bytes arrive, the lines are those of the data; an end without newline counts."""
    wanted = data.split(b"\n")

    assert lines_of(data, sizes) == (wanted if wanted[-1] else wanted[:-1])


def test_lines_flow_as_they_come():
    """What has arrived is given out before more is asked for."""
    stream = io.BufferedReader(Trickle(b"a\nb\nc", [2, 3]))

    assert list(read_lines(stream, max_line_bytes=9)) == [[b"a"], [b"b"], [b"c"]]


def test_endless_line():
    """A stream without newlines does not fill memory."""
    trickle = Trickle(b"x" * 200, [10] * 20)

    with pytest.raises(MessageTooLargeError, match="line 1 has more than the 100 bytes"):
        list(read_lines(io.BufferedReader(trickle), max_line_bytes=100))

    assert trickle.given == 110


def test_key():
    """The first separator ends the key; a line without one is named."""
    assert split_key(b"k::v::w", b"::", 1) == (b"k", b"v::w")
    with pytest.raises(InvalidRequestError, match="line 7 has no key separator ':'"):
        split_key(b"value", b":", 7)


# -- what was written is counted, and what was not acked is an error ------------------------


STORED = StoredAt("topic", 0, 1, "batch", 0, 0, duplicate=False)


def delivery(outcome=None):
    """A delivery that ended so, or has not ended."""
    made = Delivery()
    if outcome is not None:
        made.settle(outcome)
    return made


def test_all_acked():
    """Records count as acked when their Message is."""
    tally = Tally()
    late = delivery()

    tally.add(delivery(STORED), 3)
    tally.add(late, 2)

    assert repr(tally) == "<Tally [3 of 5 records acked | 1 open]>"
    late.settle(STORED)
    tally.finish()
    tally.check()
    assert (tally.records, tally.acked) == (5, 5)


def test_what_has_ended_is_not_kept():
    """Deliveries are let go of in order as they end, so that memory stays bounded."""
    tally = Tally()

    for _ in range(1_000):
        tally.add(delivery(STORED), 1)

    assert repr(tally) == "<Tally [1000 of 1000 records acked | 0 open]>"


def test_an_interruption_between_any_two_steps():
    """Wherever an interruption falls, what was counted as written is counted as acked later."""
    missed = 0
    previous = signal.signal(signal.SIGALRM, _interrupt)
    try:
        for _ in range(2_000):
            tally = Tally()
            stored = [delivery(STORED) for _ in range(64)]
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 5e-5))
                for each in stored:
                    tally.add(each, 1)
                while True:  # the signal comes
                    pass
            except KeyboardInterrupt:
                tally.collect()
            missed += (tally.acked, tally._open) != (tally.records, {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert missed == 0


def _interrupt(*_):
    raise KeyboardInterrupt


def test_failure():
    """The first failure is told, with how many records were not acked."""
    tally = Tally()
    tally.add(delivery(DeliveryTimeoutError("too late")), 2)
    tally.add(delivery(STORED), 5)
    tally.add(delivery(MemqError("another")), 1)
    tally.finish()

    with pytest.raises(MemqError, match="not acked: 3 of 8 records: too late"):
        tally.check()


def test_what_never_ended():
    """A record whose outcome is open is not taken for acked."""
    tally = Tally()

    tally.add(delivery(), 4)
    tally.collect()

    assert (tally.records, tally.acked) == (4, 0)
