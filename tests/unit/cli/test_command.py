"""Flags are made from the tables of options, and values mean what they say."""

import json
import os
import socket
import sys
from contextlib import nullcontext
from threading import Timer

import click
import pytest
from click.testing import CliRunner

from memq.cli.command import RangeType, check_reachable, confirm, parse_separator, table_options
from memq.core.options import Option
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, UnavailableError

# -- flags are made from the tables of options ----------------------------------------------


TABLE = (
    Option("duration", "5s", 1, 10_000, name="wait_time", doc="How long to wait."),
    Option("text", "red", choices=("red", "blue"), name="color", doc="Which one."),
    Option("flag", default=False, name="loud", doc="Whether to shout."),
    Option("text", "", name="name", doc="Any name."),
)


def run(*arguments):
    """What a command with the table is given."""

    @click.command()
    @table_options(TABLE, variable_prefix="MEMQ_")
    def command(given):
        click.echo(json.dumps(given))

    return CliRunner(env={"COLUMNS": "200"}).invoke(command, arguments)


def given(*arguments):
    """The options that were given."""
    return json.loads(run(*arguments).output)


def test_only_what_was_given_is_given():
    """An option that nobody gave is left to what stands behind it."""
    assert given() == {}
    assert given("--wait-time", "1s", "--loud") == {"wait_time": "1s", "loud": "true"}
    assert given("--no-loud", "--name", "") == {"loud": "false", "name": ""}


def test_a_bad_value_is_wrong_usage():
    """The table checks a value before anything is done."""
    result = run("--color", "green")

    assert result.exit_code == 2
    assert "must be one of red, blue" in result.output


def test_range():
    """An offset range is a partition and two offsets, the second not included."""
    convert = RangeType().convert

    assert convert("2:5-9", None, None) == OffsetRange(2, 5, 9)
    for text in ("", "5-9", "0:9", "a:1-2", "0:1-2x", "-1:0-1"):
        with pytest.raises(click.BadParameter, match="like 0:100-200"):
            convert(text, None, None)


# -- separators are written with escapes ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        (":", b":"),
        (r"\t\0\n", b"\t\0\n"),
        (r"\\t", rb"\t"),
        (r"\x1f\xFF", b"\x1f\xff"),
        (r"a\tb: é", "a\tb: é".encode()),
        ("\t", b"\t"),
        ("\udcff", b"\xff"),
    ],
)
def test_separator(text, separator):
    """What is hard to type is written as in C, and all else stands for itself."""
    assert parse_separator(text) == separator


@pytest.mark.parametrize("text", ["", r"\01", "\\", r"\q", r"\x1", r"a\xzz", r"\\\d"])
def test_unknown_escape(text):
    """A backslash that begins nothing known is refused, with what there is."""
    with pytest.raises(ConfigError, match=r"is no separator; write .* \\t, \\n, \\0, \\xNN or"):
        parse_separator(text)


# -- the way to the brokers -----------------------------------------------------------------


def test_one_broker_that_listens_is_enough():
    """Whatever becomes of those before it; one that was started just now is waited for."""
    with socket.create_server(("127.0.0.1", 0)) as refuses:
        nobody = f"127.0.0.1:{refuses.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as fine, socket.socket() as late:
        check_reachable(f"{nobody},127.0.0.1:{fine.getsockname()[1]}")
        late.bind(("127.0.0.1", 0))
        starting = Timer(0.2, late.listen)
        starting.start()
        check_reachable(f"{nobody},127.0.0.1:{late.getsockname()[1]}", timeout_s=60)
        starting.join()
    with pytest.raises(UnavailableError, match=f"no broker at {nobody}: Connection refused") as e:
        check_reachable(nobody, timeout_s=0.1)
    assert isinstance(e.value.__cause__, ConnectionRefusedError)


# -- asking first ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "is_yes"),
    [("y\n", True), (" YES \n", True), ("", False), ("\n", False), ("yess\n", False)],
)
def test_only_yes_goes_on(monkeypatch, capfd, answer, is_yes):
    """The question stands on stderr; any other answer, Enter and the end change nothing."""
    ours, terminal = os.openpty()
    os.write(ours, (answer or "\x04").encode())
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with nullcontext() if is_yes else pytest.raises(click.ClickException, match="nothing was"):
            confirm("Delete it?", yes=False)
    os.close(ours)
    assert capfd.readouterr() == ("", "Delete it? [y/N] ")


def test_without_a_terminal_only_the_flag_counts(monkeypatch, tmp_path):
    """What a script happens to have on its stdin is no answer."""
    (tmp_path / "answer").write_text("y\n")
    with (tmp_path / "answer").open() as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        with pytest.raises(click.UsageError, match="add --yes"):
            confirm("Delete it?", yes=False)
        confirm("Delete it?", yes=True)
        assert pipe.tell() == 0
