"""Messages advise what can be done: options, commands and names that there are, and that help.

Advice is found by its verb. What it names must exist; and a test must follow it, marked with
`follows`, or `advice_not_followed.toml` must say why none does. A new message with advice that has
neither fails here.
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from airflow_provider_memq.ranges import parse_key
from memq.cli.command import HeaderType, RangeType, parse_time
from memq.cli.main import cli
from memq.client.cluster import parse_bootstrap
from memq.client.connection import parse_address
from memq.core.topic import check_topic_name
from memq.core.units import parse_duration_ms, parse_size_bytes
from memq.errors import MemqError
from tests.advice import ROOT, advice, followed, follows, gives_advice
from tests.unit.project.test_docs import NAME, check_command, commands_in, known_names

if TYPE_CHECKING:
    from collections.abc import Iterator

REASONS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("advice_not_followed.toml").read_text()
)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
VARIABLE = re.compile(r"\bMEMQ_[A-Z_]+")
COMMAND = re.compile(r"`(memq [^`]+)`")
PLACEHOLDERS = {"GROUP", "TOPIC", "NAME", "FILE", "DATA_DIR", "N"}


def parts() -> list[str]:
    """What tests follow, and what has a reason."""
    return [*followed(), *(part for some in REASONS.values() for part in some)]


def covers(part: str, text: str) -> bool:
    """Whether it is this message of which a test or a reason names a part, or the whole."""
    return part == text if part in advice() else part in text


def test_every_advice_is_followed():
    """A test does what a message tells its reader to do; or there is a reason why none does."""
    assert [text for text in advice() if not any(covers(part, text) for part in parts())] == []


def test_what_is_followed_is_advised():
    """Tests and reasons are about messages that there are, and about one message each."""
    counts = {part: sum(covers(part, text) for text in advice()) for part in parts()}

    assert {part: count for part, count in counts.items() if count != 1} == {}


def options_of(command: click.Command) -> Iterator[str]:
    """The flags of a command and of those below it."""
    for each in getattr(command, "commands", {}).values():
        yield from options_of(each)
    for param in command.params:
        if isinstance(param, click.Option):
            yield from (*param.opts, *param.secondary_opts)


def spark_options() -> set[str]:
    """The flags of the programs for Spark, by their text: they are loaded with Spark."""
    programs = [
        *(ROOT / "memq" / "spark" / "apps").glob("*.py"),
        ROOT / "memq" / "spark" / "app.py",
    ]
    return {flag for path in programs for flag in OPTION.findall(path.read_text())}


def strange_options(text: str, path: Path) -> list[str]:
    """Options that a message names and that its reader cannot give."""
    theirs = path.is_relative_to(ROOT / "memq" / "spark") or "spark_apps" in path.parts
    known = {"--help"} | (spark_options() if theirs else set(options_of(cli)))
    return [flag for flag in OPTION.findall(text) if flag not in known]


def test_options_exist():
    """An option that a message names is one of a command; of a program, where Spark says it."""
    strange = {
        text: found
        for text, paths in advice().items()
        for path in paths
        if (found := strange_options(text, path))
    }
    assert strange == {}


def test_commands_exist():
    """A command in a message is whole: with its arguments, or words that stand for them."""
    shown = [command for text in advice() for command in COMMAND.findall(text)]

    assert len(shown) > 10
    for command in shown:
        for tokens in commands_in(command.replace("…", "VALUE")):
            check_command(tokens, complete=False)
            words = {token for token in tokens if token.isupper()} - {"VALUE"}
            assert words <= PLACEHOLDERS, command


def test_names_and_variables_exist():
    """What a message writes like an option is one; and so is a variable of the environment."""
    unknown = {
        name
        for text in advice()
        for name in re.findall(r"[A-Za-z_]+", text)
        if NAME.fullmatch(name) and name not in known_names()
    }
    variables = {name for text in advice() for name in VARIABLE.findall(text)}
    options = {flag.lstrip("-").replace("-", "_").upper() for flag in options_of(cli)}

    assert unknown <= FOREIGN
    assert {name for name in variables if name.removeprefix("MEMQ_") not in options} == set()


FOREIGN = {"containsNull", "large_string", "sortWithinPartitions", "valueContainsNull"}
"""Names of others that messages give."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no such thing; use another", True),
        ("it is full: delete some", True),
        ("not now, or raise the limit", True),
        ("Set it again", True),
        ("it was read again", False),
        ("the set is full", False),
    ],
)
def test_advice_is_seen(text, expected):
    """A clause in the imperative is advice, and other words are not."""
    assert gives_advice(text) is expected


def test_an_option_that_does_not_exist_is_seen():
    """The check finds it, and one of another program."""
    assert strange_options("use --nothing or --group", ROOT / "memq" / "cli" / "group.py") == [
        "--nothing"
    ]
    assert strange_options("use --manifest", ROOT / "memq" / "cli" / "group.py") == ["--manifest"]
    assert strange_options("use --manifest", ROOT / "memq" / "spark" / "plan.py") == []


# -- examples -------------------------------------------------------------------------------


def click_value(kind: click.ParamType, text: str) -> object:
    """What an argument of a command means."""
    return kind.convert(text, None, None)


EXAMPLES = {
    "range": (lambda text: click_value(RangeType(), text), [r"like (\S+)$"]),
    "header": (lambda text: click_value(HeaderType(), text), [r"like (\S+)$"]),
    "time": (
        lambda text: parse_time(text, now=datetime.now(UTC)),
        [r"like (\S+Z),", r"or (\w+) for so long"],
    ),
    "2025-06-30T12:00:00": (
        lambda text: parse_time(text, now=datetime.now(UTC)),
        [r"write (\S+Z) for", r"such as (\S+)$"],
    ),
    "": (parse_bootstrap, [r"like '(\S+)'$"]),
    "address": (parse_address, [r"like '(\S+)'$"]),
    "duration": (parse_duration_ms, [r'"(500ms)"', r'"(7d)"$']),
    "size": (parse_size_bytes, [r'"(512B)"', r'"(2GiB)"$']),
    "key": (parse_key, [r"like (\S+):"]),
}


@follows(
    "is not a range of offsets; write it like 0:100-200",
    "is no header; write it like source=web-1",
    "is not a time; write it like 2025-06-30T12:00:00Z",
    "has no time zone; write …Z for UTC, or its offset, such as …+02:00",
    "names no broker; write it like 'broker-1:6367,broker-2:6367'",
    "is not an address; write it like 'broker-1:6367'",
    "… is not a …; write it like …",
    "… is no range; write it like 00000:000000000005-000000000009:",
)
@pytest.mark.parametrize("wrong", EXAMPLES)
def test_examples_in_errors_are_taken(wrong):
    """What an error shows as an example is understood by what has refused something else."""
    parse, patterns = EXAMPLES[wrong]
    with pytest.raises((MemqError, click.UsageError)) as refused:
        parse(wrong)
    text = getattr(refused.value, "message", str(refused.value))
    for pattern in patterns:
        parse(re.search(pattern, text)[1])


@follows("topic name … is not valid: use 1 to … of letters")
def test_a_valid_name_is_what_the_error_describes():
    """Of its letters, and as long as it says."""
    with pytest.raises(MemqError, match="use 1 to 200 of letters"):
        check_topic_name("no name")
    for name in ("a", "Az09._-", "x" * 200):
        check_topic_name(name)
