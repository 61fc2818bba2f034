"""Wrong input of every kind, to every argument of every command, is one line and no more."""

import click
import pytest

from memq.cli import command
from memq.cli.main import main
from tests.unit.cli.test_main import commands

VALUES = ["", "9" * 30, "a b", "naïve \u2603", "x" * 5_000]
"""Empty, huge, no name, no ASCII, and very long."""

LONGEST = 2_000  # characters of an error; a path or a name may be most of it


@pytest.fixture
def given(topic, lines, tmp_path, memq):
    """What each command needs to do anything; none of it goes on for ever."""
    memq("produce", topic, "--input", lines)
    memq("group", "reset-offsets", "reports", topic, "--to-latest", "--execute")
    (tmp_path / "data").mkdir()
    return {
        "arguments": {
            "name": "reports",
            "topic": topic,
            "topics": topic,
            "path": topics_file(tmp_path),
            "target": topic,
            "data_dir": tmp_path / "data",
            "folder": tmp_path / "folder",
            "sources": "dags",
            "shell": "bash",
            "broker": "broker-1",
            "principal": "User:ann",
            "holder": "User:ann",
            "operation": "read",
            "resource": "topic",
            "file": tmp_path / "file",
        },
        "options": {
            "produce": ["--input", lines],
            "consume": ["--exit-at-end", "--from-beginning"],
            "group reset-offsets": ["--to-latest"],
            "group delete": [],
            "acl export": ["--storage", "s3://bucket"],
            "quota set": ["--requests", "10"],
            "acl add": ["--operation", "read", "--topic", "t"],
            "topic alter": ["--retention", "8d"],
            "topic trim": ["--before", "0"],
            "table follow": ["--until-caught-up"],
        },
    }


def topics_file(folder):
    """What `memq apply` reads."""
    path = folder / "topics.json"
    path.write_text("{}")
    return path


def arguments_of(path, each, given):
    """Sound arguments and options of a command."""
    names = [param.name for param in each.params if isinstance(param, click.Argument)]
    known = given["arguments"]
    if path[0] == "topic":
        known = known | {"name": known["topic"]}
    if path == ("export",):
        known = known | {"target": known["data_dir"] / "export"}
    return [known[name] for name in names], given["options"].get(" ".join(path), [])


def complaint(capfdbinary, words):
    """Runs a command; what is wrong with how it ended."""
    try:
        code = main([str(word) for word in words])
    except BaseException as exc:  # noqa: BLE001 - that is what must not be
        return f"{words}: {exc!r}"
    err = capfdbinary.readouterr().err.decode()
    if code in (0, 3):
        return None
    clean = err.startswith("memq: error: ") and err.count("\n") == 1 and len(err) < LONGEST
    return None if code in (1, 2) and clean else f"{words}: {code} {err[:500]}"


@pytest.mark.parametrize(
    ("path", "each"),
    [each for each in commands() if any(isinstance(p, click.Argument) for p in each[1].params)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_one_line(path, each, given, capfdbinary, monkeypatch):
    """Whatever stands in place of one value: done, or one line that says what is wrong."""
    monkeypatch.chdir(given["arguments"]["data_dir"])
    positional, options = arguments_of(path, each, given)
    found = []
    for place in range(len(positional)):
        for value in VALUES:
            wrong = [*positional[:place], value, *positional[place + 1 :]]
            found.append(complaint(capfdbinary, [*path, *options, "--", *wrong]))
    assert [text for text in found if text] == []


@pytest.mark.parametrize(
    "address", [*VALUES, "x:", ":1", "127.0.0.1:1", "127.0.0.1:99999", "[::1", "a b:1"]
)
def test_a_wrong_address_is_one_line(address, capfdbinary, monkeypatch):
    """Of no broker, or of none that could be."""
    monkeypatch.setattr(command, "REACH_S", 0.1)
    assert complaint(capfdbinary, ["topic", "list", f"--bootstrap={address}"]) is None
