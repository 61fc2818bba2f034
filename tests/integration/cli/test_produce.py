"""`memq produce`, and what comes of it."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import suppress

import pytest

from memq.cli.main import main
from memq.core.keys import partition_of
from memq.testing.broker import BrokerProcess
from tests.integration.cli.processes import ENDS, TIMEOUT_S, end, start

TIMESTAMP = "2025-01-02T00:00Z"


def test_lines_come_back(memq, topic, lines):
    """What was produced is consumed, byte by byte."""
    counts = json.loads(memq("produce", topic, "--input", lines, "-o", "json"))

    assert (counts["records"], counts["acked"], counts["failed"]) == (1_000, 1_000, 0)
    read = memq("consume", topic, "--from-beginning", "--exit-at-end")
    assert read == lines.read_bytes()


@pytest.mark.parametrize("option", ["--acks=0", "--acks=1", "--compression=zstd", "--linger=0ms"])
def test_ways_to_produce(memq, topic, lines, option):
    """However lines are sent, all of them arrive."""
    memq("produce", topic, "--input", lines, option)

    read = memq("consume", topic, "--from-beginning", "--max-messages", 1_000)
    assert sorted(read.splitlines()) == sorted(lines.read_bytes().splitlines())


def test_lines_flow(memq, topic, broker):
    """A line is sent when it comes, not when the input ends."""
    producing = start("produce", topic, "-b", broker.address)
    consuming = start("consume", topic, "--from-beginning", "-b", broker.address)
    producing.stdin.write(b"first\n")
    producing.stdin.flush()

    assert consuming.stdout.readline() == b"first\n"

    consuming.send_signal(signal.SIGINT)
    assert end(consuming) == (130, b"", "")
    assert end(producing)[0] == 0


def test_keys_and_json(memq, topic, tmp_path):
    """A key is split off, and JSON says all about a LogMessage."""
    path = tmp_path / "lines"
    path.write_bytes(b"a=1\nb=2=3")

    memq("produce", topic, "--input", path, "--key-separator", "=", "--timestamp", TIMESTAMP)

    read = memq("consume", topic, "--from-beginning", "--exit-at-end", "--format", "json")
    found = [json.loads(line) for line in read.splitlines()]
    assert [(line["key"], line["value"]) for line in found] == [("a", "1"), ("b", "2=3")]
    assert found[0]["timestamp"] == "2025-01-02T00:00:00.000000Z"
    assert [line["position"] for line in found] == [0, 1]


@pytest.mark.parametrize("schema", [[], ["--schema", "id:int64,name:string?,raw:binary?"]])
def test_what_consume_printed_can_be_produced(memq, topic, tmp_path, schema):
    """JSON lines that one topic was printed as become the same LogMessages or rows of another."""
    first, second = f"{topic}-first", f"{topic}-second"
    lines = tmp_path / "lines"
    if schema:
        lines.write_bytes(b'{"id":1,"name":"a"}\n{"id":2,"raw":{"base64":"/w=="}}\n')
    else:
        lines.write_bytes(b'{"value":"a","key":"k","headers":[["h","1"]]}\n{"value":null}\n')
    for name in (first, second):
        memq("topic", "create", name, *schema)

    memq("produce", first, "--input", lines, "--format", "json")
    printed = memq("consume", first, "--from-beginning", "--exit-at-end", "--format", "json")
    lines.write_bytes(printed)
    memq("produce", second, "--input", lines, "--format", "json")

    again = memq("consume", second, "--from-beginning", "--exit-at-end", "--format", "json")
    said = ("key", "value", "headers", "timestamp")
    before, after = (
        [[json.loads(line)[name] for name in said] for line in each.splitlines()]
        for each in (printed, again)
    )
    assert len(before) == 2
    assert after == before


def test_lines_are_placed_by_their_key(memq, tmp_path):
    """Lines of a key are in one read partition, in their order, and each is counted once."""
    memq(
        "topic", "create", "carts", "--ordering", "producer", "--batch-age", "20ms", "--no-audited",
        "--write-partitions", 3, "--read-partitions", 3,
    )  # fmt: skip
    path = tmp_path / "lines"
    path.write_text("".join(f"k{number % 7}={number}\n" for number in range(2_000)))

    keyed = ("--key-separator", "=", "--partition-by", "key")
    counts = json.loads(memq("produce", "carts", "--input", path, *keyed, "-o", "json"))

    assert (counts["records"], counts["acked"], counts["failed"]) == (2_000, 2_000, 0)
    read = memq("consume", "carts", "--from-beginning", "--exit-at-end", "--format", "json")
    found = {}
    for record in map(json.loads, read.splitlines()):
        assert partition_of(record["key"].encode(), 3) == record["partition"]
        found.setdefault(record["key"], []).append(int(record["value"]))
    assert found == {f"k{key}": [*range(key, 2_000, 7)] for key in range(7)}


def test_a_wrong_key_column_is_refused(memq, topic, lines):
    """What cannot be a key is an error that names what can."""
    error = memq("produce", topic, "--input", lines, "--partition-by", "value", code=1)

    assert "choose none or one of key" in error


def test_line_without_key(memq, topic, tmp_path):
    """A line that has no key ends the command, and names itself."""
    path = tmp_path / "lines"
    path.write_bytes(b"a=1\nb\n")

    assert "line 2 has no key" in memq(
        "produce", topic, "--input", path, "--key-separator", "=", code=1
    )


def test_sending_again_is_harmless(memq, topic, lines):
    """With a producer id of its own the same lines are published once."""
    for _ in range(2):
        memq("produce", topic, "--input", lines, "--producer-id", "me", "--timestamp", TIMESTAMP)

    read = memq("consume", topic, "--from-beginning", "--exit-at-end")
    assert read == lines.read_bytes()


def test_line_that_is_too_long(memq, topic, tmp_path):
    """A line that no Message can hold is an error; those before it are sent and counted."""
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" + b"x" * (5 << 20) + b"\n")

    refusal = memq("produce", topic, "--input", path, code=1)

    assert "line 2 has more than the 4193579 bytes" in refusal
    assert "`memq topic alter`" in refusal

    assert memq("consume", topic, "--from-beginning", "--exit-at-end") == b"short\n"


def test_line_without_end(memq, broker):
    """A line from a pipe is refused as soon as the topic's Messages cannot hold it."""
    memq("topic", "create", "endless", "--message-bytes", "64KiB", "--batch-age", "20ms")
    producing = start("produce", "endless", "-b", broker.address)
    pump = threading.Thread(target=write_until_refused, args=[producing.stdin, b"x" * 65_536])
    producing.stdin.write(b"short\n")
    pump.start()

    _, err = producing.stdout.read(), producing.stderr.read().decode()

    assert "line 2 has more than the 64811 bytes" in err
    assert producing.wait(TIMEOUT_S) == 1
    pump.join(TIMEOUT_S)
    producing.stdout.close()
    producing.stderr.close()
    read = memq("consume", "endless", "--from-beginning", "--exit-at-end")
    assert read == b"short\n"


def write_until_refused(pipe, block):
    """Write for as long as somebody reads."""
    with suppress(BrokenPipeError), pipe:
        while True:
            pipe.write(block)


def test_longest_line(memq, broker, tmp_path):
    """A line that just fits is sent, also with a key and its separator in it."""
    memq("topic", "create", "longest", "--message-bytes", "64KiB", "--batch-age", "20ms")
    plain, keyed = tmp_path / "plain", tmp_path / "keyed"
    plain.write_bytes(b"x" * 64_811)
    keyed.write_bytes(b"key\t" + b"x" * 64_808)

    memq("produce", "longest", "--input", plain)
    memq("produce", "longest", "--input", keyed, "--key-separator", r"\t")

    read = memq("consume", "longest", "--from-beginning", "--exit-at-end")
    assert [len(line) for line in read.splitlines()] == [64_811, 64_808]


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
