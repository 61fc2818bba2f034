"""`memq export`: formats, files, folders, and what a kill leaves."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from memq import Producer, read_range
from tests.integration.cli.processes import TIMEOUT_S

NOON = datetime(2025, 6, 30, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SMALL = ("--file-bytes", "1KiB")  # a file for each Batch

KILLED = """
import sys
from tests.fakes.crashing import CrashPoint
CrashPoint.parse(sys.argv[1]).arm(None, None)
from memq.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def clicks(broker, topic):
    """A topic with six Batches of two minutes each; some bytes are no text."""
    fill(broker, topic, range(6))
    return topic


def fill(broker, topic, batches):
    """Publish Batches; a value is the minute of its record."""
    with Producer(broker.address, topic=topic) as producer:
        for number in batches:
            for minute in (2 * number, 2 * number + 1):
                key = b"\xff" if minute == 3 else b'key, "%d"' % minute
                producer.write(
                    b"%d" % minute, key, {"n": b"\xfe", "m": None}, timestamp=NOON + minute * MINUTE
                )
            producer.flush()


def run(memq, *arguments):
    """What an export says at its end."""
    return json.loads(memq("export", *arguments, "-o", "json"))


def files(folder):
    """The files of an export, without what only it reads."""
    return sorted(each for each in folder.iterdir() if each.name[0] not in "._")


def values(folder):
    """The values in the Parquet files of a folder, in their order."""
    tables = [parquet.read_table(each) for each in files(folder)]
    return [int(value) for value in pa.concat_tables(tables)["value"].to_pylist()]


# -- formats --------------------------------------------------------------------------------


def test_formats_hold_what_was_written(memq, clicks, broker, tmp_path):
    """Parquet and Arrow give back the very table; the texts hold the same values."""
    expected = read_range(broker.address, topic=clicks)
    done = {}
    for form in ("parquet", "arrow", "csv", "jsonl"):
        path = tmp_path / f"all.{form}"
        done[form] = run(memq, clicks, path)
        assert done[form]["written_bytes"] == path.stat().st_size
        assert (done[form]["records"], done[form]["batches"], done[form]["files"]) == (12, 6, 1)

    assert parquet.read_table(tmp_path / "all.parquet").equals(expected)
    assert (
        parquet.ParquetFile(tmp_path / "all.parquet").metadata.row_group(0).column(0).compression
        == "ZSTD"
    )
    assert pa.ipc.open_file(tmp_path / "all.arrow").read_all().equals(expected)
    table = csv.read_csv(tmp_path / "all.csv")
    assert table["value"].to_pylist() == list(range(12))
    assert table["key"][0].as_py() == 'key, "0"'
    assert table["key"][3].as_py() == '{"base64":"/w=="}'
    assert json.loads(table["headers"][0].as_py()) == [["n", {"base64": "/g=="}], ["m", None]]


def test_json_lines_are_those_of_consume(memq, clicks, tmp_path):
    """A record is the same JSON as `memq consume` prints, with all columns or with a few."""
    shown = memq("consume", clicks, "--from-beginning", "--exit-at-end", "--format", "json")
    run(memq, clicks, tmp_path / "all.jsonl", "--metadata")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]

    memq("topic", "create", "again-exported")
    memq("produce", "again-exported", "--format", "json", "--input", tmp_path / "all.jsonl")
    for line in lines:
        assert line.pop("batch")
    assert lines == [json.loads(line) for line in shown.splitlines()]
    run(memq, clicks, tmp_path / "few.jsonl", "--columns", "value, key")
    assert (tmp_path / "few.jsonl").read_text().splitlines()[3] == (
        '{"value":"3","key":{"base64":"/w=="}}'
    )


# -- what is exported -----------------------------------------------------------------------


def test_times_and_ranges(memq, clicks, tmp_path):
    """Times are exact, a range is those Batches, and nothing is a file without rows."""
    times = ("--from", "2025-06-30T12:03Z", "--to", "2025-06-30T14:08+02:00")
    done = run(memq, clicks, tmp_path / "a", *times)
    assert values(tmp_path / "a") == [3, 4, 5, 6, 7]
    assert (done["records"], done["batches"]) == (5, 3)
    run(memq, clicks, tmp_path / "b", "--range", "0:1-3")
    assert values(tmp_path / "b") == [2, 3, 4, 5]
    done = run(memq, clicks, tmp_path / "c", "--from", "1s")
    assert (done["records"], done["files"], values(tmp_path / "c")) == (0, 1, [])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["there.csv"], "there.csv exists; delete it, or name another file"),
        (["full"], "full holds mine; name a folder that is new or empty"),
        (["none/x.csv"], "none/x.csv cannot be written: No such file or directory"),
        (["x", "--range", "0:4-9"], "offsets 4 to 8 of .* retained are offsets 0"),
        (["x", "--columns", "no"], "no column 'no'; there are key, value, headers, timestamp"),
    ],
)
def test_refusals(memq, clicks, tmp_path, arguments, expected):
    """What cannot be done is refused in one line, and leaves no file."""
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    before = sorted(tmp_path.rglob("[!.]*.*"))
    target, *options = arguments

    said = memq("export", clicks, tmp_path / target, *options, code=1)

    assert re.search(expected, said)
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("[!.]*.*")) == before
    assert (tmp_path / "there.csv").read_text() == "mine"


# -- kills -------------------------------------------------------------------------------


def kill_at(point, broker, *arguments):
    """Run an export that is killed at a call."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, point, "export", *map(str, arguments)],
        env=os.environ | {"MEMQ_BOOTSTRAP": broker.address},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_a_killed_folder_does_not_look_whole(memq, clicks, broker, tmp_path):
    """It lacks `_SUCCESS`, and is refused until somebody has deleted it."""
    folder = tmp_path / "all"
    arguments = [clicks, folder, *SMALL]
    kill_at("os.replace:after:2", broker, *arguments)
    assert values(folder) == [0, 1, 2, 3]
    assert not (folder / "_SUCCESS").exists()
    assert "is running, or was interrupted: delete it then" in memq("export", *arguments, code=1)
    shutil.rmtree(folder)

    done = run(memq, *arguments)

    assert values(folder) == list(range(12))
    assert (done["records"], done["files"]) == (12, 6)
    assert (folder / "_SUCCESS").exists()


def test_a_killed_file_is_not_there(memq, clicks, broker, tmp_path):
    """A file alone is there whole or not at all; what a kill left is in nobody's way."""
    path = tmp_path / "all.parquet"
    kill_at("os.replace:before:1", broker, clicks, path)
    assert [each.name for each in tmp_path.iterdir()] == [".all.parquet.tmp"]

    run(memq, clicks, path)

    assert parquet.read_table(path).num_rows == 12
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_made_meanwhile_stays(memq, clicks, tmp_path, monkeypatch):
    """An export of one file replaces none, though another program makes it while this one runs."""
    target, sync = tmp_path / "x.csv", os.fsync

    def late(fd):
        target.write_text("mine")
        sync(fd)

    monkeypatch.setattr(os, "fsync", late)
    assert "x.csv exists; delete it" in memq("export", clicks, target, code=1)
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


def test_a_run_that_comes_as_another_ends_leaves_the_file(memq, clicks, tmp_path, monkeypatch):
    """What another run has written gets its name while this one waits for the lock of it."""
    target, hidden, lock = tmp_path / "x.csv", tmp_path / ".x.csv.tmp", fcntl.flock
    hidden.write_text("whole")

    def late(fd, how):
        hidden.replace(target)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert "another export is writing" in memq("export", clicks, target, code=1)
    assert target.read_text() == "whole"
