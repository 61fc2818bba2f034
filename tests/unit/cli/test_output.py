"""Tables are for people, JSON is for programs."""

import io

import pytest

from memq.cli.output import show_rows, write_whole

ROWS = [
    {"topic": "a", "size_bytes": 3 << 20, "age_ms": 1500, "members": ["x", "y"], "on": None},
    {"topic": "bb", "size_bytes": 10, "age_ms": 60_000, "members": [], "on": True},
]


def test_table_shows_sizes_for_the_eye(capsys):
    """A size has a unit in a table, a number is left as it is, and what is not there is a dash."""
    show_rows(ROWS, ["topic", "size_bytes", "age_ms", "members", "on"], "table")

    assert capsys.readouterr().out.splitlines() == [
        "TOPIC    SIZE     AGE     MEMBERS    ON",
        "a        3.0 MiB  1500ms  x, y       -",
        "bb       10 B     1m      -          true",
    ]


class Grudging(io.RawIOBase):
    """A file that takes three bytes at a time, until its reader goes away."""

    def __init__(self, most):
        self.taken = b""
        self._most = most

    def write(self, data):
        """Take a part, and say so."""
        if len(self.taken) >= self._most:
            raise BrokenPipeError
        self.taken += bytes(data[:3])
        return min(3, len(data))


def test_everything_is_written():
    """A file that takes a part is given the rest, and nothing is lost in silence."""
    out = Grudging(most=100)
    write_whole(out, b"0123456789")
    write_whole(out, b"")
    assert out.taken == b"0123456789"

    with pytest.raises(BrokenPipeError):
        write_whole(Grudging(most=6), memoryview(b"0123456789"))
