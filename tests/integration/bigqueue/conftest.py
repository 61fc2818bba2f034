"""Python programs run as processes of their own, as users of the big queue."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.fixture
def start():
    """Start a program; it is killed at the end of the test if it still runs."""
    started = []

    def run(program: str, *arguments: object) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
