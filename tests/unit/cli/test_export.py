"""What `memq export` takes for a file or a folder, asks for, and says when it is interrupted."""

from __future__ import annotations

import json

import pytest

from memq.cli import export_job
from memq.cli.export import _target
from memq.cli.export_job import Outcome
from memq.cli.main import main
from memq.client.read_plan import Selection
from memq.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [
        ("x.csv", None, (True, "csv")),
        ("x.CSV", "csv", (True, "csv")),
        ("x.ndjson", None, (True, "jsonl")),
        ("x.feather", "arrow", (True, "arrow")),
        ("a.b/x.parquet", None, (True, "parquet")),
        ("there.csv", None, (True, "csv")),  # which is refused later: it exists
        ("new", None, (False, "parquet")),
        ("new", "jsonl", (False, "jsonl")),
        ("folder", "csv", (False, "csv")),
        ("folder.csv", None, (False, "parquet")),
        ("folder.csv", "arrow", (False, "arrow")),
        ("v1.2", None, (False, "parquet")),
        ("x.csv", "arrow", "is to be a file of csv, not arrow"),
        ("there.csv", "jsonl", "is to be a file of csv"),
        ("there", None, "is a file, and its name says no format"),
        ("there.txt", "csv", "is a file, and its name says no format"),
        ("x.txt", None, "looks like a file"),
        ("v1.3", "csv", "looks like a file"),
        ("-", None, "looks like a file"),
    ],
)
def test_a_file_or_a_folder(tmp_path, monkeypatch, name, form, expected):
    """By the name, but what is there is what it is; the format is that of the name."""
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "folder.csv", "v1.2"):
        (tmp_path / folder).mkdir()
    for file in ("there", "there.csv", "there.txt"):
        (tmp_path / file).touch()
    target = tmp_path / name
    if isinstance(expected, tuple):
        assert _target(target, form) == expected
        return
    with pytest.raises(ConfigError, match=expected):
        _target(target, form)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs the command with an export that ends so; code, stdout, stderr and what was asked."""

    def go(outcome, target, *arguments):
        asked = []

        def export(kind):
            def begin(path, job):
                asked.append((kind, path, job))
                if isinstance(outcome, BaseException):
                    raise outcome
                return outcome

            return begin

        for kind in ("export_file", "export_folder"):
            monkeypatch.setattr(export_job, kind, export(kind))
        code = main(["export", "t", str(tmp_path / target), *arguments])
        return code, *capsys.readouterr(), asked

    return go


@pytest.mark.parametrize(("target", "kind"), [("x.csv", "export_file"), ("x", "export_folder")])
def test_an_interruption(run, tmp_path, target, kind):
    """Only a folder can be gone on with, which is told."""
    code, out, err, asked = run(KeyboardInterrupt(), target)
    assert (code, out) == (130, "")
    expected = f"{tmp_path / target}: not whole yet; the same command goes on\n"
    assert err == (expected if kind == "export_folder" else "")
    assert [each for each, *_ in asked] == [kind]


def test_what_is_asked_for(run):
    """Each flag is in the request as it was written, and in what is read as what it means."""
    flags = ["--from", "1970-01-01T00:00:01Z", "--to", "1970-01-01T00:00:02Z", "--metadata"]
    flags += ["--columns", "key, value", "--format", "csv", "--file-bytes", "1KiB"]
    code, _, _, ((_, _, job),) = run(Outcome(), "x", *flags)
    asked = job.request
    assert code == 0
    assert (asked.topic, asked.format, asked.columns) == ("t", "csv", ["key", "value"])
    assert (asked.start, asked.end) == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z")
    assert (asked.start_us, asked.end_us) == (1_000_000, 2_000_000)
    assert (asked.metadata, asked.range, job.file_bytes) == (True, "", 1_024)
    assert (job.selection.start_time.timestamp(), job.selection.end_time.timestamp()) == (1, 2)
    code, _, _, ((_, _, job),) = run(Outcome(), "x", "--range", "3:4-9")
    assert job.request.range == "3:4-9"
    assert job.selection == Selection(partition=3, start=4, end=9)
    assert (job.request.start, job.request.start_us, job.request.columns) == ("", None, None)
    for flags in (["--columns", "a,b,a"], ["--from", "1h", "--to", "2h"]):
        code, _, _, asked = run(Outcome(), "x", *flags)
        assert (code, asked) == (1, [])


def test_what_is_told_at_the_end(run, tmp_path):
    """All that was exported; a table leaves out what is whole."""
    done = Outcome(records=5, files=2, resumed_files=1)
    _, out, *_ = run(done, "x", "-o", "json")
    told = json.loads(out)
    assert (told["topic"], told["format"], told["target"]) == ("t", "parquet", str(tmp_path / "x"))
    assert (told["records"], told["files"], told["resumed_files"]) == (5, 2, 1)
    assert told["incomplete_before"] is None
    assert "incomplete_before" not in run(done, "x")[1]
    late = done._replace(incomplete_before="2025-06-30T12:00:00.000Z")
    assert "2025-06-30T12:00:00.000Z" in run(late, "x")[1]
