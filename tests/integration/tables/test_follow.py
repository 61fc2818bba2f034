"""`memq table follow`: a table has each record of a topic once, whatever happens meanwhile."""

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from threading import Event, Thread

import pytest

from memq.cli import table_put
from memq.cli.main import main
from memq.client.topic import SyncTopicClient
from memq.core.ranges import OffsetRange
from memq.core.units import iso_ms
from memq.tables.check import check_table
from memq.tables.iceberg import IcebergTable
from tests.integration.cli.processes import TIMEOUT_S, start
from tests.integration.tables.lake import catalog_options
from tests.integration.tables.topic_lake import ROWS, TopicLake


@pytest.fixture
def lake(broker, tmp_path):
    return TopicLake(broker.address, tmp_path, partitions=2)


def command(lake, *more):
    options = ",".join(f"{name}={value}" for name, value in catalog_options(lake.folder).items())
    target = f"local:lake.{lake.topic}"
    where = ("--bootstrap", lake.address, "--catalog-options", options)
    return ["table", "follow", lake.topic, target, *where, "--every", "100ms", *more]


def values(lake):
    return sorted(lake.table.load().scan().to_arrow()["n"].to_pylist())


def wait_for(condition):
    """Ask until it is true."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def has(lake, count):
    """Whether the table has so many rows."""
    with contextlib.suppress(Exception):
        return len(values(lake)) >= count
    return False


@contextlib.contextmanager
def following(lake, *more):
    """The command, in a process of its own."""
    process = start(*command(lake, *more))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def caught_up(lake):
    """Bring in what is left; nothing is missing or twice."""
    assert main(command(lake, "--until-caught-up")) == 0
    assert check_table(lake.table) == (lake.written, [])
    assert values(lake) == list(range(lake.written))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_published_comes_soon(lake, number):
    """Records come as they are published; a signal ends it, with all commits whole."""
    with following(lake, "-o", "json") as process:
        for batches in (1, 3):
            lake.produce(batches)
            wait_for(lambda: has(lake, lake.written))
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + number
    ranges = [json.loads(line) for line in out.splitlines()]
    assert sum(each["records"] for each in ranges) == lake.written == 4 * ROWS
    assert err == b""
    caught_up(lake)


def test_killed_many_times_under_load(lake):
    """With SIGKILL at any moment, and two of them at a time: no record is missing or twice."""
    ended = Event()

    def produce():
        while not ended.is_set():
            lake.produce(1)

    producing = Thread(target=produce)
    producing.start()
    try:
        for number in range(5):
            with following(lake), following(lake, "--max-bytes", "1MiB"):
                before = len(lake.table.ranges()) if number else 0
                wait_for(lambda before=before: _grown(lake, before))
                time.sleep(number * 0.03)  # so that it falls into different steps
    finally:
        ended.set()
        producing.join()
    caught_up(lake)


def _grown(lake, before):
    with contextlib.suppress(Exception):
        return len(lake.table.ranges()) > before
    return False


DYING = """
import os, sys
from memq.cli.main import main
from memq.cli.table import FollowOptions
from memq.tables.iceberg import IcebergTable
real = IcebergTable.commit
def commit(*arguments):
    if sys.argv[1] == "after":
        real(*arguments)
    os._exit(9)
IcebergTable.commit = commit
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_commit(lake, when):
    """What dies right before or right after the catalog took a commit is gone on with."""
    lake.produce(3)
    words = command(lake, "--until-caught-up")
    done = subprocess.run([sys.executable, "-c", DYING, when, *words], check=False)
    assert done.returncode == 9
    assert len(lake.table.ranges()) == (when == "after")
    caught_up(lake)


def test_a_catalog_that_is_away(lake):
    """It is waited for, and said once; then all is brought in."""
    lake.produce(1)
    with following(lake) as process:
        wait_for(lambda: has(lake, ROWS))
        held = sqlite3.connect(lake.folder / "catalog.db", isolation_level=None)
        held.execute("begin exclusive")
        lake.produce(2)
        said = process.stderr.readline().decode()
        held.execute("rollback")
        held.close()
        assert said.startswith("memq: waiting, and trying again: ")
        assert process.stderr.readline() == b"memq: going on\n"
        wait_for(lambda: has(lake, lake.written))
    caught_up(lake)


def test_other_programs_put_ranges_in(lake, monkeypatch):
    """A range that another program puts in meanwhile, whole or in part, is not put in again."""
    lake = TopicLake(lake.address, lake.folder)
    lake.produce(6)
    real, others = IcebergTable.commit, [(2, 4), (0, 1)]

    def commit(self, base, given):
        if others and given.job != "test":
            lake.put(*others.pop())
        real(self, base, given)

    monkeypatch.setattr(IcebergTable, "commit", commit)
    caught_up(lake)
    jobs = {each.job for each in lake.table.ranges()}
    assert jobs == {"test", "memq table follow"}


def test_a_topic_that_gains_a_column(lake):
    """Rows with the new column have it in the table, though it was followed before."""
    lake.produce(1)
    with following(lake):
        wait_for(lambda: has(lake, ROWS))
        lake.grow()
        lake.produce(2)
        wait_for(lambda: has(lake, lake.written))
    caught_up(lake)
    scores = lake.table.load().scan().to_arrow().sort_by("n")["score"].to_pylist()
    assert scores == [None] * ROWS + [n / 2 for n in range(ROWS, lake.written)]


def test_a_batch_with_a_column_that_is_not_known_yet(lake, monkeypatch):
    """It is left for the next round: its column would be lost."""
    lake.produce(1)
    rounds = []
    real = table_put._settled

    def settled(table, reader, *arguments):
        found = real(table, reader, *arguments)
        rounds.append(found)
        if len(rounds) == 1:
            reader._client.schema_ids = frozenset()
        return found

    monkeypatch.setattr(table_put, "_settled", settled)
    caught_up(lake)
    assert len(rounds) == 2


def test_a_topic_that_is_recreated(lake):
    """Its offsets mean something else: that ends it, also while there is none of that name, and the
    next run puts the new one in.
    """
    lake.produce(1)
    with following(lake) as process:
        wait_for(lambda: has(lake, ROWS))
        lake.recreate()
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert re.search(b"was deleted and recreated|no topic", err)
    lake.produce(1)
    assert main(command(lake, "--until-caught-up")) == 0
    assert values(lake) == [*range(ROWS), *range(1_000, 1_000 + ROWS)]


def test_from_a_time_on(lake, capsys):
    """What was published before is left out, also by another run of the same command."""
    lake.produce(3)
    with SyncTopicClient(lake.address, lake.topic) as client:
        whole = [OffsetRange(each.partition, each.start, each.end) for each in client.offsets()]
        last_ms = max(each.timestamp_ms for each in client.batches(whole))
    begun = iso_ms(last_ms + 1)
    for _ in range(2):
        lake.produce(1)
        assert main(command(lake, "--until-caught-up", "--start", begun)) == 0
    assert values(lake) == list(range(3 * ROWS, 5 * ROWS))
    assert main(command(lake, "--start", "2h")) == 2
    assert "give a time that stays" in capsys.readouterr().err


def test_snapshots_that_are_forgotten(lake):
    """What is in the table is known without them, and nothing is put in twice."""
    for _ in range(2):
        lake.produce(2)
        follow(lake, keep_snapshots_ms=0)
        assert len(lake.table.load().metadata.snapshots) == 1
    caught_up(lake)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_during_a_commit(lake, monkeypatch, signals):
    """The commit ends, and no other is begun; a second signal does not wait for it."""
    lake = TopicLake(lake.address, lake.folder)
    lake.produce(3)
    real = IcebergTable.commit

    def commit(*arguments):
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        real(*arguments)

    monkeypatch.setattr(IcebergTable, "commit", commit)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        follow(lake)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert len(lake.table.ranges()) == (signals == 1)


def follow(lake, **options):
    """Follow in this process, each Batch as a range of its own, up to what is published now."""
    rows = {"every_ms": 100, "max_bytes": 1, "until_caught_up": True} | options
    table_put.follow_topic(lake.table, lake.topic, lake.address, **rows)
