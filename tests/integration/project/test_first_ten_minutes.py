"""The session of `docs/first-ten-minutes.md`, replayed as it stands, command by command.

`$ ` begins a command, `> ` goes on with it, and what follows up to the next command is what it
prints. In that, `…` stands for anything within a line, and a line that is only `…` for any number
of lines. A command that prints no error must succeed. `memq dev` runs on, in a terminal of its own,
until `^C`.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "first-ten-minutes.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 60
PORTS = (6367, 6368)
"""Of a broker as the page has them; here others are used, and shown as these."""
MARK = "=== exit code"
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
        self.ports = free_ports()
        self.folder = folder
        known = {name: value for name, value in os.environ.items() if not name.startswith("MEMQ_")}
        known.pop("XDG_CONFIG_HOME", None)
        self._environment = known | {
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "MEMQ_PORT": str(self.ports[0]),
            "MEMQ_ADMIN_PORT": str(self.ports[1]),
            "MEMQ_BOOTSTRAP": f"127.0.0.1:{self.ports[0]}",
        }
        self.broker: subprocess.Popen[bytes] | None = None
        read, self._commands = os.pipe()
        # Each command is read from its own place: programs that read stdin must not take the next.
        loop = (
            'while IFS= read -r -d "" command <&3; do eval "$command" </dev/null 3<&-; '
            f'printf "\\n{MARK} %s\\n" $?; done'
        )
        self._shell = self._start(
            ["bash", "--norc", "-c", f"exec 3<&{read}; {loop}"], pass_fds=[read]
        )
        os.close(read)

    def __enter__(self):
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._commands)
        for process in (self._shell, self.broker):
            if process is not None:
                process.kill()
                process.communicate()

    def run(self, command: str) -> tuple[str, int]:
        """What a command prints, and its exit code."""
        os.write(self._commands, command.encode() + b"\0")
        ended = re.compile(rf"\n?\n{MARK} (\d+)\n\Z|\A\n{MARK} (\d+)\n\Z")
        shown = self._read(self._shell, lambda text: ended.search(text) is not None)
        match = ended.search(shown)
        assert match is not None
        printed = shown[: match.start()]
        return printed and printed.rstrip("\n") + "\n", int(match[1] or match[2])

    def serve(self, command: str, expected: str) -> str:
        """What a broker prints until that is as expected; it runs on."""
        self.broker = self._start(["bash", "--norc", "-c", f"exec {command}"])
        return self._read(self.broker, lambda text: bool(pattern_of(expected).fullmatch(text)))

    def interrupt(self) -> None:
        """Press Ctrl-C where the broker runs."""
        assert self.broker is not None
        self.broker.send_signal(signal.SIGINT)
        self.broker.communicate(timeout=TIMEOUT_S)
        assert self.broker.returncode == 0
        self.broker = None

    def _start(self, command: list[str], **options) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,
        )

    def _read(self, process: subprocess.Popen[bytes], is_whole) -> str:
        """What a process prints, with the ports of the page, until it is whole."""
        shown, text = b"", ""
        deadline_s = time.monotonic() + TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not is_whole(text):
                assert selector.select(deadline_s - time.monotonic()), f"no more came:\n{text}"
                chunk = os.read(process.stdout.fileno(), 65_536)
                assert chunk, f"it ended:\n{text}"
                shown += chunk
                text = self._as_on_the_page(shown.decode(errors="replace"))
        return text

    def _as_on_the_page(self, text: str) -> str:
        for here, there in zip(self.ports, PORTS, strict=True):
            text = text.replace(f":{here}", f":{there}")
        return text


def free_ports() -> list[int]:
    """Two ports that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        return [each.getsockname()[1] for each in (one, two)]


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
