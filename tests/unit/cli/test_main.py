"""The command as a whole: help, errors, exit codes."""

import re
import subprocess
import sys

import click
import pytest

from memq.cli.main import cli, main


def commands(group=cli, path=()):
    """Every command with its path, groups among them."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_help(path, capsys):
    """Each command says what it does; each that is no group shows an example of itself."""
    assert main([*path, "--help"]) == 0

    text = capsys.readouterr().out
    command = dict(commands())[path]
    assert text.startswith(f"Usage: {' '.join(('memq', *path))} ")
    assert "...\n" not in text.partition("Commands:")[2], "a summary is cut"
    if not isinstance(command, click.Group):
        assert f"  memq {' '.join(path)}" in text.partition("Example")[2]


@pytest.mark.parametrize("path", [path for path, _ in commands() if path], ids=" ".join)
def test_every_option_is_a_variable(path, capsys):
    """The help of each option names its variable, which is that of its flag."""
    main([*path, "--help"])

    shown = re.findall(r"env var: ([A-Z0-9_]+)", " ".join(capsys.readouterr().out.split()))
    options = [each for each in dict(commands())[path].params if isinstance(each, click.Option)]
    assert len(shown) == len(options)
    for option, variable in zip(options, shown, strict=True):
        assert option.help
        flag = max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
        assert variable in {
            f"MEMQ_{flag}",
            "_".join(("MEMQ", *path, flag)).upper().replace("-", "_"),
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "No such command 'nosuch'. (see memq --help)"),
        (["dev", "--port", "99999"], "port = 99999: must be at most 65535 (see memq dev --help)"),
        (["broker", "--config", "/nowhere"], "'/nowhere' does not exist. (see memq broker --help)"),
        (["consume", "t", "--tail"], "requires an argument. (see memq consume --help)"),
        (["consume", "t", "--max-batches", "x"], "Invalid value for '--max-batches' (env"),
        (["consume", "--nosuch", "t"], "No such option '--nosuch'"),
        (["consume", "t", "--range", "0:6-2"], "'0:6-2' ends before it starts"),
        (["produce"], "Missing argument 'TOPIC'. (see memq produce --help)"),
        (["produce", "t", "--producer-id", "p"], "--producer-id needs --timestamp"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    """Wrong usage is one line on stderr and exit code 2."""
    assert main(arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("memq: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 1), (click.Abort(), 130)],
    ids=repr,
)
def test_ends(error, code, capsys, monkeypatch):
    """Neither an interruption nor an error of the system shows a traceback."""

    @click.command()
    def failing():
        raise error

    monkeypatch.setitem(cli.commands, "failing", failing)

    assert main(["failing"]) == code

    assert "Traceback" not in capsys.readouterr().err


LIGHT = {"click", "memq", "msgspec", "typing_extensions"}
"""Packages that may be loaded before it is known what a command is to do."""

SLOW = {"asyncio", "email", "importlib.metadata", "ssl", "tabulate"}
"""Of the standard library; each takes longer than all of `memq.cli`."""


@pytest.mark.parametrize(
    "arguments", [["consume", "--help"], ["produce", "t", "--nothing"]], ids=" ".join
)
def test_help_and_wrong_usage_load_nothing_heavy(arguments):
    """Help and a mistyped flag answer at once: neither Arrow nor asyncio nor a client is loaded."""
    code = f"""
import sys
from memq.cli.main import main
main({arguments!r})
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stderr.splitlines()[-1].split())
    packages = {name.partition(".")[0] for name in loaded}

    assert {each for each in packages - sys.stdlib_module_names if each[0] != "_"} <= LIGHT
    assert loaded & SLOW == set()
    assert loaded & {"memq.client.connection", "memq.broker.server", "memq.core.format"} == set()
