"""`memq consume`: starts, ends, ranges and groups."""

import json
import os

import pytest

from memq import Consumer, Producer
from memq.cli import consume as cli_consume
from tests.integration.cli.processes import ENDS, TIMEOUT_S, committed, end, start


def test_range(memq, topic, lines, tmp_path):
    """A range is exactly these Batches, whenever it is read."""
    for number in range(3):
        path = tmp_path / "one"
        path.write_text(f"batch {number}\n")
        memq("produce", topic, "--input", path)

    assert memq("consume", topic, "--range", "0:1-3") == b"batch 1\nbatch 2\n"
    assert memq("consume", topic, "--range", "0:1-1") == b""
    assert "retained are offsets 0 to 2" in memq("consume", topic, "--range", "0:2-4", code=1)
    two = ("--range", "0:0-1", "--range", "0:1-2")
    assert "give one range" in memq("consume", topic, *two, code=2)
    assert "no partition 1" in memq("consume", topic, "--range", "1:0-1", code=1)


@pytest.mark.parametrize("begin", [["--from-beginning"], []], ids=["earliest", "latest"])
def test_group_misses_nothing_between_runs(memq, topic, begin):
    """What comes while no member runs is read by the next, in every partition."""
    memq("topic", "create", name := f"{topic}-4", "--read-partitions", 4, "--write-partitions", 4,
         "--batch-age", "20ms", "--no-audited")  # fmt: skip
    arguments = ["consume", name, "--group", name, "--exit-at-end"]
    assert memq(*arguments, *begin) == b""

    with Producer(os.environ["MEMQ_BOOTSTRAP"], topic=name) as producer:
        for number in range(8):  # a Message each, and they take the write partitions in turn
            producer.write(b"%d" % number).result()

    assert [row["lag"] for row in json.loads(memq("lag", name, "-o", "json"))] == [8]
    assert sorted(memq(*arguments).split()) == [b"%d" % number for number in range(8)]
    assert committed(memq, name) == [2, 2, 2, 2]


@pytest.mark.parametrize("how", ENDS)
def test_interrupted_group(memq, topic, lines, broker, how):
    """A member is shown, and keeps the group from being reset. What was written before an
    interruption is committed, and the member is gone at once.
    """
    memq("produce", topic, "--input", lines)
    arguments = ["consume", topic, "--group", topic, "--from-beginning", "-b", broker.address]
    consuming = start(*arguments)
    for _ in range(2):  # with the second Batch begun, the first is written for certain
        for line in lines.read_bytes().splitlines(keepends=True):
            assert consuming.stdout.readline() == line
        memq("produce", topic, "--input", lines)

    [row] = json.loads(memq("group", "describe", topic, "-o", "json"))
    assert (row["client"], bool(row["consumer_id"])) == ("memq consume", True)
    reset = ("group", "reset-offsets", topic, topic, "--to-earliest", "--execute")
    assert "member" in memq(*reset, code=1)
    consuming.send_signal(how)

    code, _, err = end(consuming)
    assert (code, err) == (ENDS[how], "")
    assert committed(memq, topic)[0] >= 1
    [listed] = json.loads(memq("group", "list", topic, "-o", "json"))
    assert listed["members"] == 0


def test_reader_that_goes_away(memq, topic, tmp_path, broker):
    """`memq consume | head` ends with 0; a Batch that was not taken whole comes again."""
    path = tmp_path / "lines"
    path.write_bytes(b"line\n" * 1_000_000)  # more than a pipe holds
    memq("produce", topic, "--input", path, "--message-bytes", "4MiB", "--linger", "1s")
    arguments = ["consume", topic, "--group", topic, "--from-beginning", "-b", broker.address]

    consuming = start(*arguments)
    assert consuming.stdout.readline() == b"line\n"
    consuming.stdout.close()
    err = consuming.stderr.read()

    assert (consuming.wait(TIMEOUT_S), err) == (0, b"")
    consuming.stdin.close()
    consuming.stderr.close()
    read = memq("consume", topic, "--group", topic, "--from-beginning", "--exit-at-end")
    assert read.count(b"line\n") == 1_000_000


def test_group_ends_after_batches(memq, topic, lines):
    """A group that ends after so many Batches goes on with the next one."""
    arguments = ["consume", topic, "--group", topic, "--from-beginning"]
    for _ in range(3):
        memq("produce", topic, "--input", lines)

    for _ in range(3):
        assert memq(*arguments, "--max-batches", 1) == lines.read_bytes()
    assert memq(*arguments, "--exit-at-end") == b""


def test_timeout_where_nothing_comes(memq, topic, lines, broker):
    """A quiet topic ends --timeout in order; what was to be read in full does not."""
    memq("produce", topic, "--input", lines)
    arguments = ["consume", topic, "--timeout", "300ms"]
    assert memq(*arguments, "--from-beginning") == lines.read_bytes()
    with Consumer(broker.address, topic=topic, group=topic, start="earliest") as held:
        while not held.assignment:
            held.poll(0.1)
        said = memq(*arguments, "--group", topic, "--exit-at-end", code=1)
    assert "not all is read" in said


# -- where to begin, and what to leave out --------------------------------------------------


@pytest.fixture
def spread(memq, topic):
    """A topic with three Batches of ten lines in each of two partitions, written in turn."""
    name = f"{topic}-spread"
    memq("topic", "create", name, "--batch-age", "20ms", "--no-audited", "--read-partitions", 2)
    with Producer(topic=name) as producer:
        for number in range(6):
            for line in range(10):
                moment = 1_000_000 * (10 * number + line)
                delivery = producer.write(b"%d" % (10 * number + line), timestamp=moment)
            delivery.result()
    return name


def numbers(read):
    """The lines, as sorted numbers."""
    return sorted(map(int, read.split()))


def test_tail(memq, spread):
    """The last LogMessages over all partitions, by when they were published."""
    for count in (1, 5, 10, 25, 60, 1_000):
        read = memq("consume", spread, "--tail", count, "--exit-at-end")
        assert numbers(read) == list(range(60))[-count:]


def test_times(memq, spread):
    """LogMessages of some times are printed exactly, wherever they stand in their Batches."""
    begin, until = "1970-01-01T00:00:13Z", "1970-01-01T02:00:47+02:00"

    assert numbers(memq("consume", spread, "--from", begin, "--to", until)) == list(range(13, 47))
    assert numbers(memq("consume", spread, "--to", begin)) == list(range(13))
    read = memq("consume", spread, "--from", until, "--exit-at-end", "--format", "json")
    rows = [json.loads(line) for line in read.splitlines()]
    assert sorted(int(row["value"]) for row in rows) == list(range(47, 60))
    assert all(int(row["value"]) % 10 == row["position"] for row in rows)
    assert memq("consume", spread, "--from", until, "--to", until) == b""
    limited = memq("consume", spread, "--from", begin, "--to", until, "--max-messages", 3)
    assert len(limited.split()) == 3
    assert "end at" in memq("consume", spread, "--from", until, "--to", begin, code=1)
    assert "no time zone" in memq("consume", spread, "--from", "2025-01-02", code=2)


# -- formats --------------------------------------------------------------------------------


def test_rows_of_an_older_schema(memq, topic, tmp_path):
    """What is printed has the columns that there are now, and makes the same rows again."""
    schema = "id:int64,city:string?"
    memq("topic", "create", "grown", "--schema", schema, "--batch-age", "20ms")
    path = tmp_path / "rows"
    path.write_bytes(b'id,city\n1,Oslo\n2,\n3,""\n')
    memq("produce", "grown", "--format", "csv", "--input", path)
    memq("topic", "alter", "grown", "--schema", f"{schema},tags:list<string>?")
    arguments = ("grown", "--from-beginning", "--exit-at-end", "--format")

    path.write_bytes(memq("consume", *arguments, "json"))
    memq("produce", "grown", "--format", "json", "--input", path)

    rows = b'1,"Oslo",\n2,,\n3,"",\n'
    assert memq("consume", *arguments, "csv") == b'"id","city","tags"\n' + rows * 2


def test_as_users_of_kcat_type_it(memq, topic, tmp_path):
    """Keys, headers and places go in and come out with the short flags that they know."""
    path = tmp_path / "lines"
    path.write_text("a:1\nb:2\n")
    memq("produce", "-t", topic, "-K", ":", "-H", "from=here", "--input", path)
    memq("produce", "-t", topic, "-k", "c", "--input", path)

    shown = memq("consume", "-t", topic, "-o", "beginning", "-e", "-f", r"%t %p %o %k=%v %h\n")
    whole = (b"0 0 a=1 from=here", b"0 0 b=2 from=here", b"0 1 c=a:1 ", b"0 1 c=b:2 ")
    assert shown.splitlines() == [topic.encode() + b" " + each for each in whole]
    assert memq("consume", topic, "-o", "1", "-p", 0, "-c", 1, "-K", "=") == b"c=a:1\n"
    assert memq("consume", topic, "-o", "-1", "-e") == b"b:2\n"
    assert memq("consume", topic, "-o", "s@0", "-o", "e@1", "-e") == b""
    assert json.loads(memq("consume", topic, "-o", "-1", "-e", "-J"))["value"] == "b:2"
    assert "retained are offsets 0 to 1" in memq("consume", topic, "-o", "3", "-e", code=1)


def test_several_topics(memq, topic, tmp_path, lines):
    """By names and by patterns; JSON says which, and can be sent on."""
    path = tmp_path / "lines"
    for name in ("one", "two", "_own"):
        memq("topic", "create", f"{name}.{topic}", "--batch-age", "20ms", "--no-audited")
        path.write_text(f"{name} a\n{name} b\n")
        memq("produce", f"{name}.{topic}", "--input", path)
    everything = ("--from-beginning", "--exit-at-end")

    both = memq("consume", f"one.{topic}", f"two.{topic}", *everything)
    assert sorted(both.splitlines()) == [b"one a", b"one b", b"two a", b"two b"]
    assert sorted(memq("consume", f".*{topic}", *everything).splitlines()) == sorted(
        both.splitlines()
    )
    shown = memq("consume", f".*[.]{topic}", topic, *everything, "--json")
    assert {json.loads(line)["topic"] for line in shown.splitlines()} == {
        f"one.{topic}",
        f"two.{topic}",
    }
    path.write_bytes(shown)
    memq("produce", topic, "--format", "json", "--input", path)
    assert sorted(memq("consume", topic, *everything).splitlines()) == sorted(both.splitlines())
    grouped = ("consume", f"(one|two).{topic}", "--group", topic, *everything)
    assert sorted(memq(*grouped).splitlines()) == sorted(both.splitlines())
    assert memq(*grouped) == b""
    assert len(memq("consume", f"...[.]{topic}", "-c", 3, *everything).splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["a", "b", "--range", "0:0-1"], "are for one topic", 2),
        (["a.*", "--format", "csv"], "are for one topic", 2),
        (["nosuch.*"], "no topic matches 'nosuch.*'", 1),
        (["a", "b"], "no topic matches 'a'", 1),
        (["a("], "is no regular expression", 1),
    ],
)
def test_several_topics_that_cannot_be_read(memq, arguments, says, code):
    """The error names what cannot be."""
    assert says in memq("consume", *arguments, code=code)


def test_too_many_topics(memq, topic, monkeypatch):
    """Each is a consumer of its own: a pattern that matches more is refused."""
    monkeypatch.setattr(cli_consume, "MAX_TOPICS", 1)
    memq("topic", "create", f"{topic}-2")
    assert "2 topics match, and 1 is the limit" in memq("consume", f"{topic}.*", code=1)
