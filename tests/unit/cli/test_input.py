"""Lines are read in blocks."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.input import read_lines, split_key
from memq.errors import InvalidRequestError, MessageTooLargeError


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
    return [line for block in read_lines(stream) for line in block]


@given(st.binary().map(lambda data: data.replace(b"x", b"\n")), st.lists(st.integers(1, 9)))
def test_every_line_once(data, sizes):
    """However the bytes arrive, the lines are those of the data; an end without newline counts."""
    wanted = data.split(b"\n")

    assert lines_of(data, sizes) == (wanted if wanted[-1] else wanted[:-1])


def test_lines_flow_as_they_come():
    """What has arrived is given out before more is asked for."""
    stream = io.BufferedReader(Trickle(b"a\nb\nc", [2, 3]))

    assert list(read_lines(stream)) == [[b"a"], [b"b"], [b"c"]]


def test_endless_line():
    """A stream without newlines does not fill memory."""
    trickle = Trickle(b"x" * 200, [10] * 20)

    with pytest.raises(MessageTooLargeError, match="longer than 100 bytes"):
        list(read_lines(io.BufferedReader(trickle), max_line_bytes=100))

    assert trickle.given == 110


def test_key():
    """The first separator ends the key; a line without one is named."""
    assert split_key(b"k::v::w", b"::", 1) == (b"k", b"v::w")
    with pytest.raises(InvalidRequestError, match="line 7 has no key separator ':'"):
        split_key(b"value", b":", 7)
