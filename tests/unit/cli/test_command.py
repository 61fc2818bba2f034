"""Flags are made from the tables of options, and values mean what they say."""

from __future__ import annotations

import io
import json
import socket
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import click
import hypothesis
import pytest
from click.testing import CliRunner
from hypothesis import strategies as st

from memq.broker.config import BROKER_OPTIONS
from memq.cli import command as command_module
from memq.cli.command import (
    RangeType,
    TimeType,
    check_reachable,
    confirm,
    parse_separator,
    parse_time,
    table_options,
)
from memq.cli.serve import broker, dev
from memq.client.start import time_us
from memq.core.options import Option
from memq.core.ranges import OffsetRange
from memq.core.topic import TOPIC_OPTIONS
from memq.core.units import iso_ms, iso_us
from memq.errors import ConfigError, UnavailableError

# -- flags are made from the tables of options ----------------------------------------------


TABLE = (
    Option("duration", "5s", 1, 10_000, name="wait_time", doc="How long to wait."),
    Option("text", "red", choices=("red", "blue"), name="color", doc="Which one."),
    Option("flag", default=False, name="loud", doc="Whether to shout."),
    Option("text", "", name="name", doc="Any name."),
    Option("duration", None, 1, 10_000, name="patience", doc="Longest wait."),
)


def run(*arguments, variables=None, **options):
    """What a command with the table is given."""

    @click.command()
    @table_options(TABLE, variable_prefix="MEMQ_", **options)
    def command(given):
        click.echo(json.dumps(given))

    return CliRunner(env={"COLUMNS": "200"} | (variables or {})).invoke(command, arguments)


def given(*arguments, **variables):
    """The options that were given."""
    result = run(*arguments, variables=variables)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_only_what_was_given_is_given():
    """An option that nobody gave is left to what stands behind it."""
    assert given() == {}
    assert given("--wait-time", "1s", "--loud") == {"wait_time": "1s", "loud": "true"}
    assert given("--no-loud", "--name", "") == {"loud": "false", "name": ""}


def test_two_tables():
    """A command may have options of two tables."""

    @click.command()
    @table_options(TABLE[:2], variable_prefix="MEMQ_")
    @table_options(TABLE[2:], show_default=False)
    def command(given):
        click.echo(json.dumps(given))

    result = CliRunner().invoke(command, ["--loud", "--color", "blue"])

    assert json.loads(result.output) == {"color": "blue", "loud": "true"}


def test_flag_wins_over_variable():
    """A variable counts where there is no flag."""
    assert given(MEMQ_COLOR="blue", MEMQ_LOUD="true") == {"color": "blue", "loud": "true"}
    assert given("--color", "red", "--no-loud", MEMQ_COLOR="blue", MEMQ_LOUD="true") == {
        "color": "red",
        "loud": "false",
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--wait-time", "11s"], "must be at most 10s"),
        (["--wait-time", "soon"], "is not a duration"),
        (["--color", "green"], "must be one of red, blue"),
    ],
)
def test_bad_value_is_wrong_usage(arguments, reason):
    """The table checks a value before anything is done."""
    result = run(*arguments)

    assert result.exit_code == 2
    assert reason in result.output


def test_bad_variable_is_wrong_usage():
    """A variable is checked like a flag, and the error names it."""
    result = run(variables={"MEMQ_COLOR": "green"})

    assert result.exit_code == 2
    assert "MEMQ_COLOR" in result.output


def test_help_shows_default_and_variable():
    """Help says all that there is to know about an option."""
    text = " ".join(run("--help").output.split()).replace("no- ", "no-")

    assert "--wait-time DURATION How long to wait. [env var: MEMQ_WAIT_TIME; default: 5s]" in text
    assert "--color [red|blue] Which one. [env var: MEMQ_COLOR; default: red]" in text
    assert "--loud / --no-loud Whether to shout. [env var: MEMQ_LOUD; default: no-loud]" in text
    assert "--name TEXT Any name. [env var: MEMQ_NAME]" in text
    assert "--patience DURATION Longest wait. [env var: MEMQ_PATIENCE]" in text


def test_help_without_defaults():
    """Where leaving out an option means no change, no default is shown."""
    assert "default" not in run("--help", show_default=False).output


@pytest.mark.parametrize("command", [dev, broker], ids=lambda command: command.name)
def test_broker_options_are_all_there(command):
    """Every row of the table is a flag and the variable that the reference promises."""
    flags = {option.name: option for option in command.params}

    for row in BROKER_OPTIONS:
        assert f"--{row.name.replace('_', '-')}" in flags[row.name].opts
        assert flags[row.name].envvar == f"MEMQ_{row.name.upper()}"


def test_range():
    """An offset range is a partition and two offsets, the second not included."""
    convert = RangeType().convert

    assert convert("2:5-9", None, None) == OffsetRange(2, 5, 9)
    for text in ("", "5-9", "0:9", "a:1-2", "0:1-2x", "-1:0-1"):
        with pytest.raises(click.BadParameter, match="like 0:100-200"):
            convert(text, None, None)


def test_time():
    """A time has its zone; anything else is wrong usage."""
    assert TimeType().convert("1970-01-01T00:00:01Z", None, None).timestamp() == 1
    with pytest.raises(click.BadParameter, match="not a time"):
        TimeType().convert("soon", None, None)


def test_topic_options_are_all_there():
    """`topic create` has every option of a topic, and `alter` too."""
    from memq.cli.topic import alter, create

    for command in (create, alter):
        assert {row.name for row in TOPIC_OPTIONS} <= {option.name for option in command.params}


# -- times are written in iso 8601, or as so long ago ---------------------------------------


NOW = datetime(1970, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T02:00:00.250+02:00", 250),
        ("1970-01-02 00:00Z", 86_400_000),
        ("1970-01-01 00:01-01:00", 3_660_000),
        ("15m", 2_700_000),
        ("1.5s", 3_598_500),
    ],
)
def test_parse(text, time_ms):
    """A time has any zone; a duration counts back from now."""
    assert time_us(parse_time(text, NOW)) == time_ms * 1_000


@pytest.mark.parametrize("text", ["", "yesterday", "12", "2025-13-01", "-5m", "9999999999d"])
def test_parse_refuses(text):
    """What is no time is refused with an example of one."""
    with pytest.raises(ConfigError, match="2025-06-30T12:00:00Z, or 15m"):
        parse_time(text, NOW)


@pytest.mark.parametrize("text", ["2025-06-30", "2025-06-30T00:00", "20250630T000000"])
def test_time_without_zone(text):
    """A time that leaves its zone to be guessed is refused, with both ways to write it."""
    with pytest.raises(ConfigError, match=r"no time zone; write 2025-06-30T00:00:00Z .*\+02:00"):
        parse_time(text, NOW)


@hypothesis.given(st.datetimes(timezones=st.just(UTC)))
def test_round_trip(moment):
    """What is printed is read as the same time, over the whole calendar."""
    assert parse_time(iso_us(time_us(moment)), NOW) == moment
    assert moment - parse_time(iso_ms(time_us(moment) // 1_000), NOW) < timedelta(milliseconds=1)


def test_beyond_the_calendar():
    """Any 64 bits can be printed, since anybody can send them as a timestamp."""
    assert iso_us(1_500_000) == "1970-01-01T00:00:01.500000Z"
    assert iso_us(2**63 - 1) == f"{2**63 - 1} microseconds since 1970"


# -- separators are written with escapes ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        (":", b":"),
        (r"\t", b"\t"),
        (r"\0", b"\0"),
        (r"\n", b"\n"),
        (r"\\", b"\\"),
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


@pytest.mark.parametrize("text", ["\\", r"\q", r"\x1", r"a\xzz", r"\\\d"])
def test_unknown_escape(text):
    """A backslash that begins nothing known is refused, with what there is."""
    with pytest.raises(ConfigError, match=r"means nothing; there are \\t, \\n, \\0, \\xNN"):
        parse_separator(text)


def test_separator_of_nothing():
    """A separator without a character would be everywhere."""
    with pytest.raises(ConfigError, match="at least one character"):
        parse_separator("")


@hypothesis.given(st.binary(min_size=1))
def test_any_bytes_are_a_separator(separator):
    """Every separator can be written."""
    assert parse_separator("".join(f"\\x{byte:02x}" for byte in separator)) == separator


# -- the way to the brokers -----------------------------------------------------------------


class Network:
    """Machines that listen from some time on; each try takes a second."""

    def __init__(self, monkeypatch, **listens_from_s):
        self.at = {f"{name}": at for name, at in listens_from_s.items()}
        self.now_s, self.tried, self.slept, self.closed = 50.0, [], [], 0
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep)
        monkeypatch.setattr(command_module, "time", clock)
        monkeypatch.setattr(command_module, "socket", SimpleNamespace(create_connection=self._try))

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds

    def _try(self, address, timeout_s):
        host, port = address
        self.tried.append((host, port, timeout_s))
        if self.now_s - 50 < self.at.get(host, 1e9):
            self.now_s += 1
            raise self.error(host)
        return SimpleNamespace(close=self._close)

    def _close(self):
        self.closed += 1

    @staticmethod
    def error(host):
        """Why it cannot be reached."""
        if host == "slow":
            return TimeoutError("timed out")
        if host == "nobody":
            return socket.gaierror(-2, "Name or service not known")
        return ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize("first", ["refuses", "slow", "nobody"])
def test_one_broker_that_listens_is_enough(monkeypatch, first):
    """Whatever becomes of those before it; its connection is closed, and none is made after it."""
    network = Network(monkeypatch, fine=0)
    check_reachable(f"{first}:1,fine:2,other:3")
    assert network.tried == [(first, 1, 3.0), ("fine", 2, 3.0)]
    assert (network.closed, network.slept) == (1, [])


def test_a_broker_that_was_started_just_now_is_waited_for(monkeypatch):
    """All are tried again, for some seconds."""
    network = Network(monkeypatch, b=2.5)
    check_reachable("a:1,b:2")
    assert [host for host, *_ in network.tried] == ["a", "b", "a", "b"]
    assert network.slept == [0.1]


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("a", "Connection refused"),
        ("slow", "timed out"),
        ("nobody", "Name or service not known"),
    ],
)
def test_where_no_broker_listens(monkeypatch, host, reason):
    """It ends in its time, with the last reason and what to do."""
    network = Network(monkeypatch)
    with pytest.raises(UnavailableError) as raised:
        check_reachable(f"{host}:1", timeout_s=2.2)
    assert str(raised.value) == (
        f"no broker at {host}:1: {reason}; start one with `memq dev`, or name another with "
        "--bootstrap"
    )
    assert isinstance(raised.value.__cause__, OSError)
    assert len(network.tried) == 3  # at 0, 1.1 and 2.2 seconds
    with pytest.raises(ConfigError):
        check_reachable("a:b:c")


# -- asking first ---------------------------------------------------------------------------


class Answers(io.StringIO):
    """A stdin that may be a terminal."""

    def __init__(self, text, *, terminal=True):
        super().__init__(text)
        self.isatty = lambda: terminal


@pytest.mark.parametrize("answer", ["y\n", "yes\n", " YES \n", "Y\n"])
def test_yes_goes_on(monkeypatch, capsys, answer):
    """The question stands on stderr, for the result is alone on stdout."""
    monkeypatch.setattr(sys, "stdin", Answers(answer))
    confirm("Delete it?", yes=False)
    assert capsys.readouterr() == ("", "Delete it? [y/N] ")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "no\n", "yess\n", "ye\n", "\ny\n"])
def test_anything_else_changes_nothing(monkeypatch, answer):
    """Also the end of the input, and Enter."""
    monkeypatch.setattr(sys, "stdin", Answers(answer))
    with pytest.raises(click.ClickException, match="nothing was changed"):
        confirm("Delete it?", yes=False)


@pytest.mark.parametrize("stdin", [None, Answers("y\n", terminal=False)], ids=["closed", "pipe"])
def test_without_a_terminal_only_the_flag_counts(monkeypatch, stdin):
    """What a script happens to have on its stdin is no answer."""
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(click.UsageError, match="add --yes"):
        confirm("Delete it?", yes=False)
    confirm("Delete it?", yes=True)
    assert stdin is None or stdin.tell() == 0
