"""Lines become LogMessages, and what becomes of these is counted."""

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.json_rows import Rows
from memq.cli.main import main
from memq.cli.produce import _send_lines, _send_rows, read_lines
from memq.errors import InvalidRequestError, MessageTooLargeError, SchemaMismatchError

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


# -- what a line, or a row, becomes ---------------------------------------------------------


class Writer:
    """Takes what is written; a table as one Message, whose numbers must not be odd."""

    max_value_bytes = 100

    def __init__(self):
        self.written = []

    def write(self, value, key, **_):
        self.written.append((key, value))

    def conformed(self, table, **_):
        for number in table["number"].to_pylist():
            if number % 2:
                kind = MessageTooLargeError if number > 100 else SchemaMismatchError
                raise kind(f"{number} is odd")
        return table.to_batches(max_chunksize=2)

    def write_table(self, batch):
        self.written += batch["number"].to_pylist()


def test_a_line_without_a_key_is_named_by_its_number():
    """Lines before it are sent."""
    writer, lines = Writer(), io.BufferedReader(io.BytesIO(b"a:1\nb:2\nc"))
    with pytest.raises(InvalidRequestError, match="line 3 has no key separator"):
        _send_lines(writer, lines, b":", key=None)
    assert writer.written == [(b"a", b"1"), (b"b", b"2")]


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
    writer = Writer()
    with pytest.raises(error, match=f"^line {[5, 6, 8, 9][position]}: {bad} is odd"):
        _send_rows(writer, parts, "line")
    assert writer.written == [8, 10, 12, *values[:position]]


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ([], ""),
        (["--key-separator", ":"], ""),
        (["--key-separator", ":", "--key", ""], "--key-separator and --key do not go together"),
        (["--key-separator", ":", "--format", "json"], "--key-separator and --format json do not"),
        (["--key-separator", ":", "--format", "csv"], "it is for --format lines"),
        (["--key", "k", "--format", "json"], "give each line a key of its own"),
        (["--header", "a=b", "--format", "csv"], "give each line headers of its own"),
        (["--delimiter", ";"], "--delimiter and --format lines do not"),
        (["--null", ""], "it is for --format csv"),
        (["--delimiter", r"\t", "--null", "NA", "--format", "csv"], ""),
        *((["--format", "csv", "--delimiter", it], "one ASCII") for it in (";;", "ä", '"', r"\n")),
    ],
)
def test_options_that_go_together(arguments, refused, capsys):
    """Each is refused where it has no meaning; else a broker is looked for."""
    code = main(["produce", "t", "-b", "no-address", *arguments])
    said = capsys.readouterr().err
    assert (code, refused in said) == (2 if refused else 1, True)
