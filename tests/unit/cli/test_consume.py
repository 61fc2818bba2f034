"""What `memq consume` waits for, commits and gives up, without a broker."""

import io
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from memq.cli import consume
from memq.cli.consume import (
    LOOK_AGAIN_S,
    Left,
    Printer,
    Source,
    Waiting,
    _ended,
    _made_since,
    _parse_offset,
    _print_batches,
    commit,
)
from memq.cli.main import main
from memq.cli.selection import BatchSelection
from memq.errors import (
    ConfigError,
    CorruptDataError,
    InvalidRequestError,
    RequestTimeoutError,
    StorageError,
    UnavailableError,
)


class Some:
    """A Batch of so many LogMessages."""

    def __init__(self, offset=0, partition=0, lines=(b"x",)):
        self.offset, self.partition, self.lines = offset, partition, list(lines)

    def __len__(self):
        return len(self.lines)

    def slice(self, start, count):
        return Some(self.offset, self.partition, self.lines[start : start + count])


class Scripted:
    """A consumer that answers as it is told; an error is raised."""

    def __init__(self, polls=(), lags=(), commits=(), assignment=(0,)):
        self.polls, self.lags, self.commits = list(polls), list(lags), list(commits)
        self.asked, self.committed = 0, []
        self.assignment = list(assignment)
        self.positions = {}

    def poll(self, _timeout_s):
        return self._next(self.polls)

    def lag(self):
        self.asked += 1
        return self._next(self.lags)

    def commit(self, offsets):
        self.committed.append(dict(offsets))
        self._next(self.commits)

    def position(self, partition):
        at = self.positions[partition]
        if isinstance(at, Exception):
            raise at
        return at

    def _next(self, answers):
        answer = answers.pop(0) if answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer


GONE = [UnavailableError("refused"), RequestTimeoutError("no answer")]
AWAY = StorageError("503")
BAD = CorruptDataError("damaged")
UP = "there are answers again; going on"


# -- waiting --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [*GONE, AWAY], ids=type)
def test_an_outage_is_told_once_and_ends_with_a_batch(said, error):
    """Whatever does not answer is waited for, and what came last is the reason that is told."""
    waiting, last = Waiting(None), type(error)("still")
    consumer = Scripted([error, last, Some()])
    for reason in (error, last):
        assert waiting.poll(consumer) is None
        assert waiting.down is reason
        assert waiting.brokers_down == (error is not AWAY)
    assert waiting.poll(consumer) is not None
    assert (waiting.down, waiting.brokers_down) == (None, False)
    assert said == [f"waiting, as there is no answer: {error}", UP]
    assert consumer.asked == 0


@pytest.mark.parametrize("error", GONE, ids=type)
def test_brokers_that_answer_again_end_an_outage_without_a_batch(said, error):
    """With nothing to read a broker is asked, and errors from before its answer are old."""
    waiting, batch = Waiting(None), Some()
    waiting.poll(Scripted([error]))
    for unsure in (Scripted([None, error], [None]), Scripted([None], [error])):
        assert waiting.poll(unsure) is None
        assert waiting.down is error  # it was raised before the broker answered, or after
        assert unsure.asked == 1
    assert waiting.poll(Scripted([None, None], [None])) is None
    assert waiting.down is None
    assert said == [f"waiting, as there is no answer: {error}", UP]
    waiting.poll(Scripted([error]))
    assert waiting.poll(Scripted([None, batch], [None])) is batch
    assert waiting.down is None


def test_what_will_not_pass_ends_it(said):
    """An error that another try would meet again is raised, and nothing is said of waiting."""
    for answers in ([BAD], [None, BAD]):
        waiting = Waiting(None)
        waiting.down = GONE[0] if len(answers) > 1 else None
        with pytest.raises(CorruptDataError):
            waiting.poll(Scripted(answers))
    assert said == []


def test_a_timeout_counts_from_the_last_batch(clock, said):
    """Each Batch begins it anew, also one that came after an outage; an error does not."""
    waiting, quiet = Waiting("2s"), Scripted()
    clock.now_s += 1.999
    assert not waiting.is_over(quiet, unread=True)
    waiting.poll(Scripted([Some()]))
    clock.now_s += 1.999
    assert not waiting.is_over(quiet, unread=False)
    waiting.poll(Scripted([GONE[0]]))
    waiting.poll(Scripted([None, Some()]))
    clock.now_s += 1.5
    waiting.poll(Scripted([None]))
    assert not waiting.is_over(quiet, unread=False)
    waiting.poll(Scripted([AWAY]))
    clock.now_s += 0.5
    with pytest.raises(RequestTimeoutError, match=r"^nothing came for 2s \(--timeout\): 503$") as e:
        waiting.is_over(quiet, unread=False)
    assert e.value.__cause__ is AWAY
    assert quiet.asked == 0


@pytest.mark.parametrize("unread", [False, True])
def test_a_timeout_where_nothing_came_is_an_end_only_if_brokers_answer(clock, unread):
    """They are asked."""
    for answer, fine in ((None, True), (GONE[0], False)):
        waiting = Waiting("2s")
        clock.now_s += 2
        consumer = Scripted(lags=[answer])
        if fine and not unread:
            assert waiting.is_over(consumer, unread=unread)
        else:
            expected = "not all is read that there was at the start" if fine else "refused"
            with pytest.raises(RequestTimeoutError, match=expected):
                waiting.is_over(consumer, unread=unread)
        assert consumer.asked == 1


# -- how much -------------------------------------------------------------------------------


class Out(io.BytesIO):
    """A stdout that says what was flushed, beside a stderr that may be a terminal."""

    flushed = b""
    at_terminal = False

    def flush(self):
        self.flushed = self.getvalue()


@pytest.fixture
def out(monkeypatch):
    """What is printed."""
    buffer = Out()
    stderr = SimpleNamespace(isatty=lambda: buffer.at_terminal)
    streams = SimpleNamespace(stdout=SimpleNamespace(buffer=buffer), stderr=stderr)
    monkeypatch.setattr(consume, "sys", streams)
    return buffer


def printer(selection=None, messages=None, batches=None):
    """A printer of lines as they are."""
    lines = SimpleNamespace(of=lambda batch: [each + b"\n" for each in batch.lines])
    return Printer(lines, selection or BatchSelection(), Left(messages, batches))


def test_a_batch_is_written_once_all_of_it_is_flushed(out):
    """One that a reader did not take is none; one of which nothing is printed is one."""
    made = printer(BatchSelection(skipped={(0, 1): 2, (0, 2): 1}))
    made.write(Some(1, lines=[b"a", b"b", b"c"]))
    assert (out.flushed, made.written) == (b"c\n", {0: 2})
    made.write(Some(2))
    assert (out.flushed, made.written) == (b"c\n", {0: 3})
    out.flush = lambda: (_ for _ in ()).throw(BrokenPipeError())
    with pytest.raises(BrokenPipeError):
        made.write(Some(3))
    assert made.written == {0: 3}


@pytest.mark.parametrize("is_member", [False, True])
def test_past_the_end_only_a_member_writes(out, is_member):
    """It would commit a Batch that it was handed, and nobody would write it."""
    consumer = Scripted([Some(2, lines=[b"past"]), Some(0, 1, [b"last"])], assignment=[0, 1])
    consumer.positions = {0: 2, 1: 0}
    made = printer(BatchSelection(stop={0: 2, 1: 1}))
    made.written = consumer.positions
    _print_batches([Source(consumer, Waiting(None), made)], iter(()), is_member=is_member)
    assert out.flushed == (b"past\nlast\n" if is_member else b"last\n")


@pytest.mark.parametrize(
    ("error", "said_of_it"),
    [(None, []), (GONE[0], ["the last commit failed, and lines may come again: refused"])],
)
def test_what_is_written_is_committed_before_an_error(said, error, said_of_it):
    """Of the partitions that are still its own; that it fails is told."""
    consumer = Scripted(commits=[error], assignment=[0, 1])
    commit(consumer, {0: 2, 7: 3})
    assert (consumer.committed, said) == ([{0: 2}], said_of_it)


@pytest.mark.parametrize(
    ("messages", "batches", "printed"),
    [(3, None, b"x\ny\nx\n"), (None, 2, b"x\ny\nx\ny\n"), (9, 1, b"x\ny\n"), (1, 1, b"x\n")],
)
def test_how_much_is_printed(out, messages, batches, printed):
    """A Batch of which nothing is printed does not count, and the last one is cut."""
    made = printer(None, messages, batches)
    for batch in (Some(lines=[b"x", b"y"]), Some(lines=[]), Some(lines=[b"x", b"y"])):
        if not made.is_done:
            made.write(batch)
    assert made.is_done
    assert out.flushed == printed


@pytest.mark.parametrize(
    ("positions", "is_end"),
    [
        ({0: 5, 1: 3}, True),
        ({0: 6, 1: 3}, True),
        ({0: 5, 1: 2}, False),
        ({0: 4, 1: 3}, False),
        ({}, False),
        ({0: 5, 1: InvalidRequestError("not assigned")}, False),
    ],
)
def test_the_end_is_that_of_all_partitions(positions, is_end):
    """Not before there is one, not while one has just gone, and at the offset itself."""
    consumer = Scripted(assignment=positions)
    consumer.positions = positions
    assert _ended(consumer, {0: 5, 1: 3}) == is_end


# -- several topics -------------------------------------------------------------------------


def test_topics_take_turns(out):
    """One that always has something does not keep another one waiting; what is read is counted
    over both.
    """
    busy = Scripted([Some(at, lines=[b"busy"]) for at in range(9)])
    late = Scripted([None, Some(0, lines=[b"late"])])
    left = Left(messages=4)
    sources = []
    for consumer in (busy, late):
        made = printer()
        made._left = left
        sources.append(Source(consumer, Waiting(None), made))
    _print_batches(sources, iter(()), is_member=False)
    assert out.flushed == b"busy\nbusy\nlate\nbusy\n"


def test_a_topic_that_is_made_later_is_read(out):
    """It joins the others, which go on."""
    made = printer(None, 2)
    first = Source(Scripted([None, Some(lines=[b"first"])]), Waiting(None), made)
    later = printer()
    later._left = made._left
    second = Source(Scripted([Some(lines=[b"second"])]), Waiting(None), later)
    _print_batches([first], iter([[second]]), is_member=False)
    assert sorted(out.flushed.split()) == [b"first", b"second"]


def test_a_quiet_topic_ends_nothing_while_another_is_not(clock, out):
    """A timeout is one of all topics together."""

    class Slow(Scripted):
        def poll(self, timeout_s):
            clock.now_s += 1.5
            return super().poll(timeout_s)

    busy, quiet = Slow([Some(lines=[b"x"])] * 5), Scripted()
    made = printer()
    sources = [Source(each, Waiting("2s"), made) for each in (quiet, busy)]
    _print_batches(sources, iter(()), is_member=False)
    assert out.flushed == b"x\n" * 5


def test_topics_are_looked_up_seldom(clock):
    """After some minutes; an outage of the brokers is no reason to end."""
    answers = [UnavailableError("away"), {"a", "b"}, {"a", "b"}, BAD]

    def find():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = _made_since(find, {"a"})
    assert next(made) == []
    assert len(answers) == 4
    for expected in ([], ["b"], []):
        clock.now_s += LOOK_AGAIN_S
        assert next(made) == expected
    clock.now_s += LOOK_AGAIN_S
    with pytest.raises(CorruptDataError):
        next(made)


# -- usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--range 0:1-2 --tail 1", 2),
        ("--from-beginning --from 1h", 2),
        ("--group g --max-messages 1", 2),
        ("--group g --partition 0", 2),
        ("--print-key --format json", 2),
        ("-f %v -J", 2),
        ("-o beginning --tail 1", 2),
        ("-o 5 --group g", 2),
        ("-K : --format csv", 2),
        ("-o beginning -e -c 5 -p 0 -f %v", 1),
        ("-o s@1 -o e@2 -K :", 1),
        ("--from 1h --to 1h --partition 0 --max-messages 1", 1),
        ("--group g --from-beginning --exit-at-end --print-key", 1),
    ],
)
def test_options_that_go_together(capsys, flags, code):
    """Others are refused before a broker is looked for, naming both."""
    assert main(["consume", "t", "-b", "no-address", *flags.split()]) == code
    assert ("do not go together" in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("beginning", {"from_beginning": True}),
        ("end", {"from_beginning": False}),
        ("17", {"offset": 17}),
        ("-17", {"tail": 17}),
        ("s@1750000000000", {"since": datetime(2025, 6, 15, 15, 6, 40, tzinfo=UTC)}),
        ("e@2025-06-30T12:00Z", {"until": datetime(2025, 6, 30, 12, tzinfo=UTC)}),
        ("@0", {"since": datetime(1970, 1, 1, tzinfo=UTC)}),
    ],
)
def test_offsets_as_kcat_has_them(text, meaning):
    """Words, numbers from the beginning or the end, and times."""
    assert _parse_offset(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "x", "-0", "--1", "1.5", "s@", "s@x", "x@1", "-9999999999", "s@999999999999999"]
)
def test_an_offset_that_is_none(text):
    """The error shows all forms."""
    with pytest.raises(ConfigError, match=r"is no offset|is not a time"):
        _parse_offset(text)
