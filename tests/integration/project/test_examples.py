"""The examples in the documents run as they are printed, against brokers of their own."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from memq import AdminClient
from memq.testing.broker import BrokerProcess

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/clients.md", "docs/kafka.md", "docs/testing.md")
TIMEOUT_S = 280  # a backstop, below that of pytest
TOKEN = "of-the-cluster"  # noqa: S105 - it protects nothing
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


def run(*command: str, folder: Path = ROOT, **variables: str) -> str:
    """Run a command that knows its broker as a reader's shell would; returns what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(lines: str, **options) -> str:
    """Run lines of a page in a shell that has the command; returns what they print."""
    memq = f'memq() {{ {sys.executable} -m memq "$@"; }}'
    return run("bash", "-c", f"{memq}\nset -euo pipefail\n{lines}", **options)


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example_runs(broker, example):
    """Every Python example of the pages runs to its end without a warning."""
    run(sys.executable, "-W", "error", "-c", example, MEMQ_BOOTSTRAP=broker.address)


def test_readme_commands_run(broker):
    """The command lines of the README give back the million lines that they sent, and are clean."""
    (block,) = [block for block in blocks_of("README.md", "") if "memq produce" in block]

    printed = shell(block, MEMQ_BOOTSTRAP=broker.address)

    assert "1000000\n" in printed  # the last line read, and the number acked
    assert "\n1\n2\n3\n" in printed  # of the exact range
    assert printed.rstrip().endswith("clean")


def test_commands_for_kafka_users_run(broker):
    """The commands beside Kafka's run one after the other, as somebody would try them."""
    printed = shell("".join(blocks_of("docs/kafka.md", "")), MEMQ_BOOTSTRAP=broker.address)

    assert "user-1" in printed
    assert "clean" in printed
    with AdminClient(broker.address) as admin:
        assert "clicks" not in {info.config.name for info in admin.list_topics()}


@pytest.fixture
def profiles(tmp_path):
    """A user's profiles of an old broker, and of one that stands for the cluster."""
    with (
        BrokerProcess(tmp_path / "old") as old,
        BrokerProcess(tmp_path / "new", token=TOKEN) as new,
    ):
        (tmp_path / "memq.token").write_text(TOKEN)
        config = tmp_path / "memq.toml"
        config.write_text(
            f'[profiles.old]\nbootstrap = "{old.address}"\n'
            f'[profiles.new]\nbootstrap = "{new.address}"\ntoken_file = "memq.token"\n'
        )
        config.chmod(0o600)
        yield {"folder": tmp_path, "MEMQ_CONFIG": str(config)}


def test_a_topic_moves_as_the_guide_says(profiles):
    """What the old broker had is read there to its end, and what came after at the cluster."""
    told = partial(shell, **profiles)
    make, typed, ends, lag, audit, group, copy = blocks_of("docs/migration.md", "sh")
    told(
        """
        memq topic create clicks --profile old
        memq topic create orders --profile old --schema 'id:int64,name:string?'
        seq 5 | sed 's/.*/k&:&/' | memq produce clicks --key-separator : --header a=b --profile old
        """
    )

    assert "memq" not in told(make)
    assert "id:int64,name:string?" in told(typed)
    told("seq 6 8 | memq produce clicks --profile new")
    before = told(
        "memq consume clicks --group reports --from-beginning --exit-at-end --profile old"
    )
    assert told(ends).splitlines()[1].split()[:4] == ["clicks", "0", "0", "1"]
    assert told(lag).splitlines()[1].split()[:5] == ["reports", "clicks", "0", "0", "0"]
    assert told(audit).splitlines()[-1] == "clean"
    assert told(group).splitlines()[0] == "3"
    assert before.split() == ["1", "2", "3", "4", "5"]

    told(copy)
    old, new = (
        [
            [record[name] for name in ("key", "value", "headers", "timestamp")]
            for record in map(json.loads, told(command).splitlines())
        ]
        for command in (
            "memq consume clicks --from-beginning --exit-at-end --format json --profile old",
            "memq consume clicks-before --from-beginning --exit-at-end --format json --profile new",
        )
    )
    assert old == new
    assert old[0][:3] == ["k1", "1", [["a", "b"]]]
