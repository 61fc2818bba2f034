"""The `memq` command against a real broker."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from memq import Producer
from memq.cli.main import main
from memq.testing.broker import BrokerProcess

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker for all tests here."""
    with BrokerProcess(tmp_path_factory.mktemp("data")) as process:
        yield process


@pytest.fixture
def memq(broker, monkeypatch, capfdbinary):
    """Runs a command that must end with `code`; returns what it printed."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)

    def run(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        captured = capfdbinary.readouterr()
        if code == 0:
            return captured.out
        return captured.err.decode()

    return run


@pytest.fixture
def topic(memq, request):
    """A topic of the test's own, whose Batches and producers close soon."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name)
    memq("topic", "create", name, "--batch-age", "20ms", "--no-audited")  # a report takes 0.5 s
    return name


@pytest.fixture
def lines(tmp_path):
    """A file with a thousand lines, some of them no text."""
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"line %d \xff\x00\n" % number for number in range(1_000)))
    return path


def start(*arguments, **options):
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "memq", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def end(process, data=None):
    """Exit code, output and errors of a process that ends, when it was given all its input."""
    out, err = process.communicate(data, timeout=TIMEOUT_S)
    return process.returncode, out, err.decode()


def committed(memq, group):
    """The stored offsets of a group."""
    return [
        row["current_offset"] for row in json.loads(memq("group", "describe", group, "-o", "json"))
    ]


# -- produce and consume --------------------------------------------------------------------


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

    memq("produce", topic, "--input", path, "--key-separator", "=", "--timestamp", "2025-01-02")

    read = memq("consume", topic, "--from-beginning", "--exit-at-end", "--format", "json")
    found = [json.loads(line) for line in read.splitlines()]
    assert [(line["key"], line["value"]) for line in found] == [("a", "1"), ("b", "2=3")]
    assert found[0]["timestamp"] == "2025-01-02T00:00:00.000000Z"
    assert [line["position"] for line in found] == [0, 1]


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
        memq("produce", topic, "--input", lines, "--producer-id", "me", "--timestamp", "2025-01-02")

    read = memq("consume", topic, "--from-beginning", "--exit-at-end")
    assert read == lines.read_bytes()


def test_line_that_is_too_long(memq, topic, tmp_path):
    """A line that no Message can hold is an error; those before it are sent and counted."""
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" + b"x" * (5 << 20) + b"\n")

    assert "does not fit" in memq("produce", topic, "--input", path, code=1)

    assert memq("consume", topic, "--from-beginning", "--exit-at-end") == b"short\n"


def test_lines_that_are_not_acked(tmp_path, monkeypatch):
    """When acks do not come, the command says how many lines are concerned and ends with 1."""
    with BrokerProcess(tmp_path) as broker:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
        assert main(["topic", "create", "slow", "--batch-age", "10m", "--dedup-window", "1h"]) == 0
        producing = start("produce", "slow", "--delivery-timeout", "500ms")
        code, out, err = end(producing, b"one\ntwo\n")

    assert code == 1
    assert out.split()[2:8] == [b"records", b"2", b"acked", b"0", b"failed", b"2"]
    assert err.startswith("memq: error: 2 of 2 records were not acked: ")


def test_interrupted_producer(topic, broker):
    """What was written before an interruption is sent and counted."""
    producing = start("produce", topic, "-b", broker.address)
    consuming = start("consume", topic, "--from-beginning", "-b", broker.address)
    producing.stdin.write(b"line\n" * 10)
    producing.stdin.flush()
    for _ in range(10):
        assert consuming.stdout.readline() == b"line\n"

    producing.send_signal(signal.SIGINT)

    code, out, err = end(producing)
    assert (code, err) == (130, "")
    assert out.split()[2:6] == [b"records", b"10", b"acked", b"10"]
    consuming.kill()
    end(consuming)


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
    assert "0:0-3 is" in memq("consume", topic, "--range", "0:2-4", code=1)
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


def test_interrupted_group(memq, topic, lines, broker):
    """What was written before an interruption is committed."""
    memq("produce", topic, "--input", lines)
    arguments = ["consume", topic, "--group", topic, "--from-beginning", "-b", broker.address]
    consuming = start(*arguments)
    for _ in range(2):  # with the second Batch begun, the first is written for certain
        for line in lines.read_bytes().splitlines(keepends=True):
            assert consuming.stdout.readline() == line
        memq("produce", topic, "--input", lines)

    consuming.send_signal(signal.SIGINT)

    assert end(consuming)[0] == 130
    assert committed(memq, topic)[0] >= 1


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


def test_cut_batch_is_not_committed(memq, topic, lines):
    """A Batch of which --max-messages printed a part comes again, whole."""
    memq("produce", topic, "--input", lines)
    arguments = ["consume", topic, "--group", topic, "--from-beginning"]

    assert len(memq(*arguments, "--max-messages", 10).splitlines()) == 10

    assert memq(*arguments, "--exit-at-end") == lines.read_bytes()


# -- topics ---------------------------------------------------------------------------------


def test_topic_life(memq):
    """A topic is made, shown, changed and deleted."""
    memq("topic", "create", "rides", "--read-partitions", "4", "--no-audited", "--batch-age", "1s")
    rows = json.loads(memq("topic", "list", "-o", "json"))
    [row] = [row for row in rows if row["topic"] == "rides"]
    assert (row["read_partitions"], row["audited"], row["batch_age_ms"]) == (4, False, 1_000)

    memq("topic", "alter", "rides", "--batch-age", "2s", "--audited")

    shown = dict(
        line.split(maxsplit=1) for line in memq("topic", "describe", "rides").decode().splitlines()
    )
    assert (shown["batch_age"], shown["audited"], shown["retention"]) == ("2s", "true", "7d")
    assert shown["schema"].startswith("key: binary, value: binary, ")
    assert "exists" in memq("topic", "create", "rides", code=1)
    assert "nothing to change" in memq("topic", "alter", "rides", code=2)
    memq("topic", "delete", "rides")
    for command in (["describe", "rides"], ["delete", "rides"], ["alter", "rides", "--audited"]):
        assert "rides" in memq("topic", *command, code=1)


def test_typed_topic(memq, tmp_path):
    """A schema comes from a file, may grow, and rows are shown as JSON."""
    path = tmp_path / "rides.parquet"
    parquet.write_table(pa.table({"id": [1]}), path)
    memq("topic", "create", "typed", "--schema", path)
    wider = tmp_path / "wider.parquet"
    parquet.write_table(pa.table({"id": [1], "tip": [0.5]}), wider)

    memq("topic", "alter", "typed", "--schema", wider)

    row = json.loads(memq("topic", "describe", "typed", "-o", "json"))
    assert row["typed"]
    assert [(field["name"], field["type"]) for field in row["schema"]] == [
        ("id", "int64"),
        ("tip", "double"),
    ]
    assert "schema" in memq("produce", "typed", "--input", path, code=1)


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


# -- offsets and groups ---------------------------------------------------------------------


def test_offsets(memq, topic, lines):
    """Start, end and watermark of each partition, and the offset of a time."""
    memq("produce", topic, "--input", lines)

    [row] = json.loads(memq("offsets", topic, "--at", "1h", "-o", "json"))

    assert (row["partition"], row["start"], row["end"], row["at"]) == (0, 0, 1, 0)
    assert row["watermark"].endswith("Z")
    table = memq("offsets", topic).decode().splitlines()
    assert table[0].split() == ["TOPIC", "PARTITION", "START", "END", "WATERMARK"]


def test_lag(memq, topic, lines):
    """A group's lag is what it has not committed."""
    memq("produce", topic, "--input", lines)
    memq("consume", topic, "--group", topic, "--from-beginning", "--exit-at-end")
    memq("produce", topic, "--input", lines)

    table = memq("group", "describe", topic).decode().splitlines()
    listed = json.loads(memq("group", "list", "--topic", topic, "-o", "json"))

    assert table[0].split()[3:6] == ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert table[1].split() == [topic, topic, "0", "1", "2", "1", "-", "-"]
    assert listed == [{"group": topic, "topic": topic, "members": 0}]


def test_members_are_shown(memq, topic, lines, broker):
    """A live member stands beside its partitions, and keeps the group from being reset."""
    memq("produce", topic, "--input", lines)
    consuming = start("consume", topic, "--group", topic, "--from-beginning", "-b", broker.address)
    consuming.stdout.readline()

    [row] = json.loads(memq("group", "describe", topic, "-o", "json"))
    refused = memq("group", "reset-offsets", topic, topic, "--to-earliest", "--execute", code=1)

    assert row["client"] == "memq consume"
    assert row["consumer_id"]
    assert "member" in refused
    consuming.stdout.close()
    consuming.kill()
    consuming.wait(TIMEOUT_S)
    consuming.stdin.close()
    consuming.stderr.close()


def test_reset(memq, topic, lines):
    """A reset is shown, and done when it is asked for."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)
    memq("consume", topic, "--group", topic, "--from-beginning", "--exit-at-end")

    memq("group", "reset-offsets", topic, topic, "--to-earliest")
    assert committed(memq, topic) == [3]
    memq("group", "reset-offsets", topic, topic, "--shift-by", "-1", "--execute")
    assert committed(memq, topic) == [2]
    memq("group", "reset-offsets", topic, topic, "--to-datetime", "1h", "--execute")
    assert committed(memq, topic) == [0]
    memq("group", "reset-offsets", topic, topic, "--to-offset", "99", "--execute")
    assert committed(memq, topic) == [3]
    assert "give one of" in memq("group", "reset-offsets", topic, topic, code=2)
    assert "no partition 5" in memq(
        "group", "reset-offsets", topic, topic, "--to-latest", "--partition", "5", code=1
    )


def test_forgotten_group(memq, topic):
    """A group can be made by a reset, and is gone once it was deleted."""
    memq("group", "reset-offsets", "planned", topic, "--to-earliest", "--execute")
    assert committed(memq, "planned") == [0]

    memq("group", "delete", "planned", topic)

    assert "no group 'planned'" in memq("group", "describe", "planned", code=1)
    assert "planned" in memq("group", "delete", "planned", topic, code=1)


# -- Batches --------------------------------------------------------------------------------


def test_batches_of_a_topic(memq, topic, lines):
    """Batches are listed by offset, and sound ones are verified."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)

    rows = json.loads(memq("batch", "list", topic, "--last", "2", "-o", "json"))
    assert [(row["offset"], row["records"]) for row in rows] == [(1, 1_000), (2, 1_000)]
    verified = json.loads(memq("batch", "verify", topic, "-o", "json"))
    assert (verified["batches"], verified["records"], verified["damaged"]) == (3, 3_000, [])
    verified = json.loads(memq("batch", "verify", topic, "--range", "0:1-2", "-o", "json"))
    assert verified["batches"] == 1
    assert memq("batch", "cat", rows[0]["uri"]).count(b"\n") == 1_000


def test_damaged_topic(memq, topic, lines, capfdbinary):
    """A changed byte and a lost object are found and named, and nothing else."""
    for _ in range(3):
        memq("produce", topic, "--input", lines)
    rows = json.loads(memq("batch", "list", topic, "-o", "json"))
    changed, lost, _ = (Path(row["uri"].removeprefix("file://")) for row in rows)
    with changed.open("r+b") as file:
        file.seek(600)
        file.write(b"?")
    lost.unlink()

    assert main(["batch", "verify", topic]) == 1

    captured = capfdbinary.readouterr()
    damaged = captured.out.decode().splitlines()[1:3]
    assert damaged[0].startswith("0            0         Message at byte")
    assert damaged[1].startswith("0            1         no object")
    assert captured.err == b"memq: error: 2 of 3 Batches are damaged\n"


# -- bench ----------------------------------------------------------------------------------


def test_bench(memq):
    """Each benchmark prints its figures and what they depend on."""
    made = json.loads(
        memq("bench", "produce", "load", "--records", 5_000, "--value-bytes", 100, "-o", "json")
    )
    read = json.loads(memq("bench", "consume", "load", "--each", "-o", "json"))
    both = json.loads(memq("bench", "e2e", "load", "--rate", 2_000, "--seconds", 0.5, "-o", "json"))

    assert (made["records"], read["records"], both["records"]) == (5_000, 5_000, 1_000)
    for row in (made, both):
        assert 0 < row["latency_p50_ms"] <= row["latency_p99_ms"] <= row["latency_p100_ms"]
        assert (row["linger_ms"], row["batch_age_ms"], row["acks"]) == (10, 200, "all")
    for row in (made, read, both):
        assert row["records_per_s"] > 0
        assert row["cpus"] == len(os.sched_getaffinity(0))


# -- broker ---------------------------------------------------------------------------------


def test_dev(tmp_path):
    """`memq dev` says where it is, and the commands that it says to try do work."""
    serving = start("dev", "--data-dir", tmp_path, "--port", "0", "--admin-port", "0")
    try:
        welcome = []
        while not welcome or not welcome[-1].startswith("memq consume"):
            welcome.append(serving.stderr.readline().decode().strip())
        assert f"data    {tmp_path}" in welcome
        produce, consume = (shlex.split(line.partition("memq ")[2]) for line in welcome[-2:])

        assert end(start(*produce), b"one\ntwo\n")[0] == 0
        assert end(start(*consume)) == (0, b"one\ntwo\n", "")
    finally:
        serving.send_signal(signal.SIGINT)
        assert end(serving)[0] == 0


def test_settings(tmp_path):
    """A flag wins over a variable, a variable over the file, the file over the default."""
    config = tmp_path / "broker.toml"
    config.write_text(
        f'data_dir = "{tmp_path}/data"\nbroker_id = "file"\ncluster_id = "file"\nhost = "file"\n'
        'port = 0\nadmin_port = 0\n[topics.made]\nbatch_age = "3s"\n'
    )
    variables = os.environ | {"MEMQ_CLUSTER_ID": "variable", "MEMQ_HOST": "variable"}
    serving = start(
        "broker", "--config", config, "--host", "127.0.0.1", "-o", "json", env=variables
    )
    place = json.loads(serving.stdout.readline())
    try:
        assert place["data_dir"] == f"{tmp_path}/data"
        assert place["pid"] == serving.pid
        assert place["admin"].startswith("http://127.0.0.1:")
        read = start("topic", "list", "-o", "json", "-b", place["address"])
        assert '"batch_age_ms": 3000' in end(read)[1].decode()
    finally:
        serving.terminate()
        assert end(serving)[0] == 0


def test_port_that_is_taken(broker, tmp_path):
    """A broker that cannot start says why in one line."""
    port = broker.address.rpartition(":")[2]

    code, out, err = end(start("dev", "--data-dir", tmp_path, "--port", port))

    assert (code, out) == (1, b"")
    assert err.startswith(f"memq: error: cannot listen on 127.0.0.1:{port}")
    assert "Traceback" not in err


def test_token(tmp_path, monkeypatch, capsys):
    """A broker that asks for a token is reached with it, from a flag or a variable."""
    with BrokerProcess(tmp_path, token="secret") as broker:
        assert main(["topic", "list", "-b", broker.address]) == 1
        assert "memq: error:" in capsys.readouterr().err
        assert main(["topic", "list", "-b", broker.address, "--token", "secret"]) == 0
        monkeypatch.setenv("MEMQ_TOKEN", "secret")
        assert main(["topic", "list", "-b", broker.address]) == 0


def test_no_broker(capsys):
    """Where nobody listens the error comes soon and says what to do."""
    assert main(["topic", "list", "-b", "127.0.0.1:1"]) == 1

    assert "start one with `memq dev`" in capsys.readouterr().err
