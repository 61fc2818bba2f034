"""The session of `docs/first-ten-minutes.md`, replayed as it stands, command by command.

`$ ` begins a command, `> ` goes on with it, and what follows up to the next command is what it
prints. In that, `…` stands for anything within a line, and a line that is only `…` for any number
of lines. A command that prints no error must succeed. `memq dev` runs on, in a terminal of its own,
until `^C`.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.ports import free_ports

PAGE = Path(__file__).parents[3] / "docs" / "first-ten-minutes.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 280  # a backstop, below that of pytest
PORTS = (6367, 6368)
"""Of a broker as the page has them; here others are used, and shown as these."""
ERROR = re.compile(r"^(memq: error: |NOT CLEAN)", re.MULTILINE)
INTERRUPT = "^C"


class Step(NamedTuple):
    """A command, or an interrupt, and what it is to print."""

    command: str
    expected: str


def steps_of(block: str) -> list[Step]:
    """The commands of a block with what they print."""
    steps: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ ") or line == INTERRUPT:
            steps.append(Step(line.removeprefix("$ "), ""))
        elif line.startswith("> ") and not steps[-1].expected:
            steps[-1] = Step(f"{steps[-1].command}\n{line.removeprefix('> ')}", "")
        else:
            steps[-1] = Step(steps[-1].command, f"{steps[-1].expected}{line}\n")
    return steps


def pattern_of(expected: str) -> re.Pattern[str]:
    """What matches an output that is expected."""
    lines = [
        r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r" *\n"
        for line in expected.splitlines()
    ]
    return re.compile("".join(lines))


class Terminals:
    """A shell for the commands, and a place where `memq dev` runs until it is interrupted.

    Args:
        folder: where the commands run, and the home folder.
    """

    def __init__(self, folder: Path) -> None:
        self.ports = free_ports(2)
        known = {name: value for name, value in os.environ.items() if not name.startswith("MEMQ_")}
        known.pop("XDG_CONFIG_HOME", None)
        environment = known | {
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "MEMQ_PORT": str(self.ports[0]),
            "MEMQ_ADMIN_PORT": str(self.ports[1]),
            "MEMQ_BOOTSTRAP": f"127.0.0.1:{self.ports[0]}",
            "BASH_ENV": str(folder / "variables"),  # what a command sets, the next ones know
        }
        self._options = {
            "cwd": folder,
            "env": environment,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        self.broker: subprocess.Popen[bytes] | None = None

    def __enter__(self):
        return self

    def __exit__(self, *exc: object) -> None:
        if self.broker is not None:
            self.broker.kill()
            self.broker.communicate()

    def run(self, command: str) -> tuple[str, int]:
        """What a command prints, and its exit code."""
        kept = f'{command}\ncode=$?; declare -p lost > "$BASH_ENV" 2>/dev/null; exit $code'
        done = subprocess.run(["bash", "-c", kept], timeout=TIMEOUT_S, check=False, **self._options)
        return self._as_on_the_page(done.stdout), done.returncode

    def serve(self, command: str, expected: str) -> None:
        """Let a broker print what is expected; it runs on."""
        self.broker = subprocess.Popen(["bash", "-c", f"exec {command}"], **self._options)
        shown = b""
        while not pattern_of(expected).fullmatch(self._as_on_the_page(shown)):
            line = self.broker.stdout.readline()
            assert line, f"it ended:\n{shown.decode()}"
            shown += line

    def interrupt(self) -> None:
        """Press Ctrl-C where the broker runs."""
        self.broker.send_signal(signal.SIGINT)
        self.broker.communicate(timeout=TIMEOUT_S)
        assert self.broker.returncode == 0
        self.broker = None

    def _as_on_the_page(self, shown: bytes) -> str:
        text = shown.decode(errors="replace")
        for here, there in zip(self.ports, PORTS, strict=True):
            text = text.replace(f":{here}", f":{there}")
        return text


@pytest.mark.skipif(shutil.which("jq") is None, reason="the session uses jq")
def test_session(tmp_path):
    """Every command of the page does what the page shows."""
    steps = [step for block in BLOCK.findall(PAGE.read_text()) for step in steps_of(block)]
    assert len(steps) > 20

    with Terminals(tmp_path) as terminals:
        for command, expected in steps:
            if command == INTERRUPT:
                terminals.interrupt()
            elif command.startswith("memq dev"):
                terminals.serve(command, expected)
            else:
                printed, code = terminals.run(command)
                told = f"$ {command}\n{printed}\n(exit code {code}), in place of\n{expected}"
                assert pattern_of(expected).fullmatch(printed), told
                assert code == 0 or ERROR.search(printed), told
