"""The examples in the documents run as they are printed, each against a broker of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memq import AdminClient
from memq.testing.broker import BrokerProcess

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/clients.md", "docs/kafka.md", "docs/testing.md")
TIMEOUT_S = 120
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str, language: str) -> list[str]:
    """The code blocks of a page in that language; "" for those without one."""
    blocks = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [block for found, block in blocks if found == language]


EXAMPLES = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks_of(page, "python"), 1)
]


@pytest.fixture
def broker(tmp_path):
    """A broker as `memq dev` runs it, but for its ports."""
    with BrokerProcess(tmp_path / "data", auto_create_topics=True) as process:
        yield process


def run(broker: BrokerProcess, *command: str) -> str:
    """Run a command that knows the broker as a reader's shell would; returns what it prints."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"MEMQ_BOOTSTRAP": broker.address},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example_runs(broker, example):
    """Every Python example of the pages runs to its end without a warning."""
    run(broker, sys.executable, "-W", "error", "-c", example)


def test_readme_commands_run(broker):
    """The command lines of the README give back the million lines that they sent, and are clean."""
    (block,) = [block for block in blocks_of("README.md", "") if "memq produce" in block]
    shell = f'memq() {{ {sys.executable} -m memq "$@"; }}\nset -euo pipefail\n{block}'

    printed = run(broker, "bash", "-c", shell)

    assert "1000000\n" in printed  # the last line read, and the number acked
    assert "\n1\n2\n3\n" in printed  # of the exact range
    assert printed.rstrip().endswith("clean")


def test_commands_for_kafka_users_run(broker):
    """The commands beside Kafka's run one after the other, as somebody would try them."""
    commands = "".join(blocks_of("docs/kafka.md", ""))
    shell = f'memq() {{ {sys.executable} -m memq "$@"; }}\nset -euo pipefail\n{commands}'

    printed = run(broker, "bash", "-c", shell)

    assert "user-1" in printed
    assert "clean" in printed
    with AdminClient(broker.address) as admin:
        assert "clicks" not in [info.config.name for info in admin.list_topics()]
