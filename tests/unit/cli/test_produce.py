"""Lines become LogMessages, and what becomes of these is counted."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.json_rows import Rows
from memq.cli.main import main
from memq.cli.produce import (
    Same,
    Tally,
    _send_lines,
    _send_rows,
    _Watched,
    read_lines,
)
from memq.client.producer.delivery import Delivery, StoredAt
from memq.errors import (
    DeliveryTimeoutError,
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    SchemaMismatchError,
)

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


# -- what was written is counted, and what was not acked is an error ------------------------


STORED = StoredAt("topic", 0, 1, "batch", 0, 0, duplicate=False)


def delivery(outcome=None):
    """A delivery that ended so, or has not ended."""
    made = Delivery()
    if outcome is not None:
        made.settle(outcome)
    return made


def test_failure():
    """The first failure is told, with how many records were not acked."""
    tally = Tally()
    tally.add(delivery(DeliveryTimeoutError("too late")), 2)
    tally.add(delivery(STORED), 5)
    tally.add(delivery(MemqError("another")), 1)
    tally.finish()

    with pytest.raises(MemqError, match="not acked: 3 of 8 records: too late"):
        tally.check()


@given(st.lists(st.integers(0, 4), max_size=30))
def test_each_record_counts_to_its_message(messages):
    """Whichever Message takes it, also in turn; those that have ended are counted meanwhile."""
    deliveries = [delivery() for _ in range(5)]
    tally = Tally()
    for message in messages:
        tally.add(deliveries[message], 1)
    assert tally._open == {deliveries[n]: messages.count(n) for n in set(messages)}
    for each in deliveries:
        each.settle(STORED)
    tally.add(delivery(), 1)
    assert (tally.acked, tally.records) == (len(messages), len(messages) + 1)


# -- what a line, or a row, becomes ---------------------------------------------------------

NOTHING = Same(None, [], None)


class Writer:
    """Takes what is written; a table as one Message, whose numbers must not be odd."""

    max_value_bytes = 100

    def __init__(self):
        self.written = []

    def write(self, *arguments):
        self.written.append(arguments)
        return delivery(STORED)

    def conformed(self, table, **_):
        for number in table["number"].to_pylist():
            if number % 2:
                kind = MessageTooLargeError if number > 100 else SchemaMismatchError
                raise kind(f"{number} is odd")
        return table.to_batches(max_chunksize=2)

    def write_table(self, batch):
        self.written.append(batch["number"].to_pylist())
        return [delivery(STORED)]


def test_a_line_without_a_key_is_named_by_its_number():
    """Lines before it are sent."""
    writer, tally = Writer(), Tally()
    with pytest.raises(InvalidRequestError, match="line 3 has no key separator"):
        _send_lines(writer, io.BufferedReader(io.BytesIO(b"a:1\nb:2\nc")), b":", NOTHING, tally)
    assert [value for value, *_ in writer.written] == [b"1", b"2"]
    assert tally.records == 2


def numbers(*values):
    """Rows of these numbers."""
    return pa.table({"number": pa.array(values, pa.int64())})


@pytest.mark.parametrize(("bad", "error"), [(1, SchemaMismatchError), (101, MessageTooLargeError)])
@pytest.mark.parametrize("position", range(4))
def test_rows_before_one_that_does_not_fit_are_sent(position, bad, error):
    """It is named by its place in the input, and nothing after it is sent."""
    values = [0, 2, 4, 6]
    values[position] = bad
    parts = [Rows(numbers(8, 10, 12), [1, 2, 3]), Rows(numbers(*values), [5, 6, 8, 9])]
    parts.append(Rows(numbers(14), [10]))
    writer, tally = Writer(), Tally()
    with pytest.raises(error, match=f"^line {[5, 6, 8, 9][position]}: {bad} is odd"):
        _send_rows(writer, parts, NOTHING, "line", tally)
    sent = [number for part in writer.written for number in part]
    assert sent == [8, 10, 12, *values[:position]]
    tally.collect()
    assert (tally.records, tally.acked) == (len(sent), len(sent))


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ([], ""),
        (["--key-separator", ":"], ""),
        (["--key-separator", ":", "--key", ""], "--key-separator and --key do not go together"),
        (["--key-separator", ":", "--format", "json"], "--key-separator and --format json do not"),
        (["--key-separator", ":", "--format", "csv"], "it is for --format lines"),
        (["--key", "k", "--format", "json"], ""),
        (["--delimiter", ";"], "--delimiter and --format lines do not"),
        (["--null", "NA", "--format", "json"], "it is for --format csv"),
        (["--null", ""], "it is for --format csv"),
        (["--delimiter", r"\t", "--null", "NA", "--format", "csv"], ""),
        *((["--format", "csv", "--delimiter", each], "one ASCII") for each in (";;", "ä", '"')),
        *((["--format", "csv", "--delimiter", each], "one ASCII") for each in (r"\n", r"\x0d")),
    ],
)
def test_options_that_go_together(arguments, refused, capsys):
    """Each is refused where it has no meaning; else a broker is looked for."""
    code = main(["produce", "t", "-b", "no-address", *arguments])
    said = capsys.readouterr().err
    assert (code, refused in said) == (2 if refused else 1, True)


def test_what_is_read_is_told():
    """However it is read, each byte once."""
    told = []
    stream = io.BufferedReader(io.BytesIO(b"ab\ncdefgh"))
    watched = io.BufferedReader(_Watched(stream, told.append), 4)
    assert (watched.readline(), watched.read(2), watched.read()) == (b"ab\n", b"cd", b"efgh")
    assert sum(told) == 9
