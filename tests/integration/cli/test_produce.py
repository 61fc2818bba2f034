"""`memq produce`, and what comes of it."""

import json
import subprocess
import sys
from subprocess import PIPE

import pytest

from memq import read_range
from memq.cli.main import main
from memq.testing.broker import BrokerProcess
from tests.integration.cli.processes import ENDS, end, start

TIMESTAMP = "2025-01-02T00:00Z"
NUMBERS = range(10**12, 10**12 + 80_000)  # as text more than is read at a time


def test_lines_come_back(memq, topic, lines):
    """What was produced is consumed, byte by byte."""
    counts = json.loads(memq("produce", topic, "--input", lines, "-o", "json"))

    assert (counts["records"], counts["acked"], counts["failed"]) == (1_000, 1_000, 0)
    read = memq("consume", topic, "--from-beginning", "--exit-at-end")
    assert read == lines.read_bytes()


def test_longest_line(memq, broker, tmp_path):
    """A line that just fits is sent, with a key in it too, and as JSON that escapes each byte."""
    memq("topic", "create", "longest", "--message-bytes", "64KiB", "--batch-age", "20ms")
    most, path = 64_811, tmp_path / "line"
    for line, *options in (
        (b"x" * most,),
        (b"key\t" + b"x" * (most - 3), "--key-separator", r"\t"),
        (b'{"value":"%s"}' % (rb"\u0078" * 64_000), "--format", "json"),
    ):
        path.write_bytes(line)
        memq("produce", "longest", "--input", path, *options)

    read = memq("consume", "longest", "--from-beginning", "--exit-at-end")
    assert [len(line) for line in read.splitlines()] == [most, most - 3, 64_000]


def test_lines_that_are_not_acked(tmp_path, monkeypatch):
    """When acks do not come, the command says how many lines are concerned and ends with 1."""
    with BrokerProcess(tmp_path) as broker:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
        assert main(["topic", "create", "slow", "--batch-age", "10m", "--dedup-window", "1h"]) == 0
        producing = start("produce", "slow", "--delivery-timeout", "500ms")
        code, out, err = end(producing, b"one\ntwo\n")

    assert code == 1
    assert out.split()[2:8] == [b"records", b"2", b"acked", b"0", b"failed", b"2"]
    assert err.startswith("memq: error: not acked: 2 of 2 records: ")


@pytest.mark.parametrize("how", ENDS)
def test_interrupted_producer(topic, broker, how):
    """What was written before an interruption is sent and counted."""
    producing = start("produce", topic, "-b", broker.address)
    consuming = start("consume", topic, "--from-beginning", "-b", broker.address)
    producing.stdin.write(b"line\n" * 10)
    producing.stdin.flush()
    for _ in range(10):
        assert consuming.stdout.readline() == b"line\n"

    producing.send_signal(how)

    code, out, err = end(producing)
    assert (code, err) == (ENDS[how], "")
    assert out.split()[2:6] == [b"records", b"10", b"acked", b"10"]
    consuming.kill()
    end(consuming)


# -- JSON and CSV ---------------------------------------------------------------------------


def give(tmp_path, text):
    """A file with this text."""
    path = tmp_path / "input"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def consumed(memq, topic):
    """What JSON says of every LogMessage, without where it was."""
    read = memq("consume", topic, "--from-beginning", "--exit-at-end", "--format", "json")
    found = [json.loads(line) for line in read.splitlines()]
    return [
        {name: line[name] for name in ("key", "value", "headers", "timestamp")} for line in found
    ]


def test_reader_that_has_gone_hides_no_error(topic, broker, tmp_path):
    """What is wrong with the input is said, by the exit code too, though nobody reads stdout."""
    (tmp_path / "bad").write_bytes(b'{"value": "a"}\nbad\n')
    arguments = ["produce", topic, "--format", "json", "-b", broker.address]
    with start(*arguments, "--input", tmp_path / "bad") as producing:
        producing.stdout.close()
        assert b"line 2: JSON is malformed" in producing.stderr.read()
    assert producing.returncode == 1


def test_closed_outputs_are_nothing(memq, topic, broker):
    """Lines are sent though nobody can read the counts; consume says that it cannot."""
    shell = f'exec "$0" -m memq "$@" -b {broker.address} >&-'
    code, _, err = end(start_shell(shell, "produce", topic), b"a\n")
    assert (code, err) == (0, "")
    code, _, err = end(start_shell(shell, "consume", topic, "--from-beginning"))
    assert (code, "stdout is closed" in err) == (1, True)
    assert memq("consume", topic, "--from-beginning", "--exit-at-end") == b"a\n"


def start_shell(shell, *words):
    """A line of a shell in a process of its own."""
    command = ["sh", "-c", shell, sys.executable, *words]
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)


@pytest.mark.parametrize("key", ["k", ""])
def test_key_and_headers_for_all(memq, topic, tmp_path, key):
    """--key and --header hold for each line."""
    memq("produce", topic, "--input", give(tmp_path, "a\nb\n"), "--key", key, "--header", "x=1=2")

    found = [(line["key"], line["value"], line["headers"]) for line in consumed(memq, topic)]

    assert found == [(key, value, [["x", "1=2"]]) for value in "ab"]
    assert "write it like source=web-1" in memq("produce", topic, "--header", "x", code=2)


def test_rows_of_a_typed_topic(memq, tmp_path):
    """JSON objects and CSV become rows, a mistake in them is named, and counts are exact."""
    schema = "id:int64,at:timestamp[us, tz=UTC]?,city:string?,tags:list<string>?"
    memq("topic", "create", "rides", "--schema", schema, "--batch-age", "20ms")
    arguments = ["produce", "rides", "-o", "json", "--input"]

    made = memq(*arguments, give(tmp_path, '{"id":1,"tags":["a"]}\n{"id":2}\n'), "--format", "json")
    assert json.loads(made)["acked"] == 2
    csv = "city;id;at\nOslo;3;2025-01-02T03:00:00+02:00\n;4;\n"
    made = memq(*arguments, give(tmp_path, csv), "--format", "csv", "--delimiter", ";")
    assert json.loads(made)["acked"] == 2
    for form, text, said in (
        ("json", '{"id":5}\n{"id":"x"}\n', "line 2: Expected `int`, got `str` - at `$.id`"),
        ("csv", "id,city\n6,Lima\nx,Lima\n", "row 3, column 'id': Failed to parse string: 'x'"),
        ("csv", 'id\n7\n""\n', "row 3: topic 'rides' expects column 'id' as int64"),
        ("csv", "id,city\n8,Lima\n,Oslo\n", "row 3: topic 'rides' expects column 'id' as int64"),
        ("lines", "a\n", "has a schema of its own (id, at, city, tags); its rows are given with"),
    ):
        refusal = memq(*arguments, give(tmp_path, text), "--format", form, code=1)
        assert said in refusal

    rows = [line["value"] for line in consumed(memq, "rides")]

    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 7, 8]
    assert rows[0] == {"id": 1, "at": None, "city": None, "tags": ["a"]}
    assert rows[2] == {"id": 3, "at": "2025-01-02T01:00:00.000000Z", "city": "Oslo", "tags": None}


@pytest.mark.parametrize("form", ["json", "csv"])
def test_sending_rows_again_is_harmless(memq, broker, form):
    """With a producer id of its own the same rows are published once, however they arrive."""
    topic = f"again-{form}"
    memq("topic", "create", topic, "--schema", "id:int64,timestamp:timestamp[us]")
    line = (lambda number: f'{{"id":{number}}}') if form == "json" else str
    text = "\n".join(["id"] * (form == "csv") + [line(number) for number in NUMBERS])
    options = ["--format", form, "--producer-id", "me", "--timestamp", TIMESTAMP]
    for step in (77_777, 1 << 22):
        producing = start("produce", topic, *options, "-b", broker.address)
        for at in range(0, len(text), step):
            producing.stdin.write(text[at : at + step].encode())
            producing.stdin.flush()
        code, out, err = end(producing)
        assert (code, out.split()[2:6], err) == (0, [b"records", b"80000", b"acked", b"80000"], "")

    assert read_range(broker.address, topic=topic)["id"].to_pylist() == list(NUMBERS)
