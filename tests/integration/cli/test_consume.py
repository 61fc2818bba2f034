"""`memq consume`: starts, ends, ranges and groups."""

from __future__ import annotations

import json
import os
import select
import signal

import pyarrow as pa
import pytest
from pyarrow import parquet

from memq import Producer
from tests.integration.cli.processes import ENDS, TIMEOUT_S, committed, end, start


def test_limit(memq, topic, lines):
    """So many LogMessages are printed and no more, in either format."""
    memq("produce", topic, "--input", lines)

    assert len(memq("consume", topic, "--from-beginning", "--max-messages", 7).splitlines()) == 7
    read = memq("consume", topic, "--from-beginning", "--max-messages", 7, "--format", "json")
    assert len(read.splitlines()) == 7


def test_range(memq, topic, lines, tmp_path):
    """A range is exactly these Batches, whenever it is read."""
    for number in range(3):
        path = tmp_path / "one"
        path.write_text(f"batch {number}\n")
        memq("produce", topic, "--input", path)

    assert memq("consume", topic, "--range", "0:1-3") == b"batch 1\nbatch 2\n"
    assert memq("consume", topic, "--range", "0:1-1") == b""
    assert "retained are offsets 0 to 2" in memq("consume", topic, "--range", "0:2-4", code=1)
    assert "no partition 1" in memq("consume", topic, "--range", "1:0-1", code=1)
    assert "--range says all" in memq("consume", topic, "--range", "0:0-1", "--group", "g", code=2)


def test_empty_topic(memq, topic):
    """The end of an empty topic is found."""
    assert memq("consume", topic, "--from-beginning", "--exit-at-end") == b""


def test_new_lines_only(memq, topic, lines):
    """Without --from-beginning, what is there already is not read."""
    memq("produce", topic, "--input", lines)

    assert memq("consume", topic, "--exit-at-end") == b""


def test_group_goes_on(memq, topic, lines):
    """A group reads each line once over several runs."""
    arguments = ["consume", topic, "--group", topic, "--from-beginning", "--exit-at-end"]
    memq("produce", topic, "--input", lines)

    assert memq(*arguments) == lines.read_bytes()
    assert memq(*arguments) == b""
    memq("produce", topic, "--input", lines)
    assert memq(*arguments) == lines.read_bytes()


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
    """What was written before an interruption is committed, and the member is gone at once."""
    memq("produce", topic, "--input", lines)
    arguments = ["consume", topic, "--group", topic, "--from-beginning", "-b", broker.address]
    consuming = start(*arguments)
    for _ in range(2):  # with the second Batch begun, the first is written for certain
        for line in lines.read_bytes().splitlines(keepends=True):
            assert consuming.stdout.readline() == line
        memq("produce", topic, "--input", lines)

    consuming.send_signal(how)

    code, _, err = end(consuming)
    assert (code, err) == (ENDS[how], "")
    assert committed(memq, topic)[0] >= 1
    [listed] = json.loads(memq("group", "list", "--topic", topic, "-o", "json"))
    assert listed["members"] == 0


def test_members_share_a_topic(memq, lines, broker):
    """A member that joins takes over in the middle, and no line is read twice or missed."""
    memq("topic", "create", "shared", "--read-partitions", 2, "--write-partitions", 2)
    arguments = ["consume", "shared", "--group", "shared", "--from-beginning", "-b", broker.address]
    lines.write_bytes(b"line\n" * 10)
    first, second = start(*arguments), start(*arguments)

    rounds = 0
    waiting = [first.stdout, second.stdout]
    while waiting:
        assert (rounds := rounds + 1) < 100
        memq("produce", "shared", "--input", lines, "--linger", "0ms", "--message-bytes", "1KiB")
        heard, _, _ = select.select(waiting, [], [], 0)
        waiting = [each for each in waiting if each not in heard]
    for process in (first, second):
        process.send_signal(signal.SIGINT)

    read = end(first)[1] + end(second)[1]
    read += memq("consume", "shared", "--group", "shared", "--from-beginning", "--exit-at-end")
    assert read == b"line\n" * 10 * rounds


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


def test_batches_without_group(memq, topic, lines):
    """So many Batches are printed; or so many LogMessages, if these are fewer."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)
    arguments = ["consume", topic, "--from-beginning", "--max-batches", 2]

    assert memq(*arguments) == lines.read_bytes() * 2
    assert len(memq(*arguments, "--max-messages", 1_500).splitlines()) == 1_500
    assert len(memq(*arguments, "--max-messages", 2_500).splitlines()) == 2_000


def test_group_does_not_end_within_a_batch(memq, topic):
    """What would deliver the same lines for ever is refused before it begins, with the way out."""
    refusal = memq("consume", topic, "--group", topic, "--max-messages", 10, code=2)

    assert "give --max-batches, or leave out --group" in refusal
    assert memq("group", "list", "--topic", topic, "-o", "json") == b"[]\n"


def test_typed_rows(memq, tmp_path):
    """Rows of a typed topic are printed as JSON, and have no raw form."""
    path = tmp_path / "rides.parquet"
    rows = pa.table({"id": [1, 2], "name": ["a", None]})
    parquet.write_table(rows, path)
    memq("topic", "create", "rows", "--schema", path, "--batch-age", "20ms")
    with Producer(topic="rows") as producer:
        producer.write_table(rows)
    arguments = ["consume", "rows", "--from-beginning", "--exit-at-end"]

    read = memq(*arguments, "--format", "json").splitlines()

    assert [json.loads(line)["value"] for line in read] == rows.to_pylist()
    assert "--format json" in memq(*arguments, code=1)
