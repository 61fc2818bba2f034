"""The commands of `docs/migration.md`, from one broker to another, in the order of the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from memq.testing.broker import BrokerProcess
from tests.integration.project.test_examples import blocks_of

TIMEOUT_S = 120
TOKEN = "of-the-cluster"  # noqa: S105 - it protects nothing


@pytest.fixture
def brokers(tmp_path):
    """The old broker and one that stands for the cluster, as profiles in the file of a user."""
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
        yield old, new


@pytest.fixture
def shell(brokers, tmp_path):
    """Runs lines as a user's shell would, and gives what they print."""

    def run(lines):
        done = subprocess.run(
            ["bash", "-c", f'memq() {{ {sys.executable} -m memq "$@"; }}\nset -eu\n{lines}'],
            cwd=tmp_path,
            env=os.environ | {"MEMQ_CONFIG": str(tmp_path / "memq.toml")},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_topic_moves_as_the_guide_says(shell):
    """What the old broker had is read there to its end, and what came after at the cluster."""
    make, typed, ends, lag, audit, group, copy = blocks_of("docs/migration.md", "sh")
    shell(
        """
        memq topic create clicks --profile old
        memq topic create orders --profile old --schema 'id:int64,name:string?'
        seq 5 | sed 's/.*/k&:&/' | memq produce clicks --key-separator : --header a=b --profile old
        """
    )

    assert "memq" not in shell(make)
    assert "id:int64,name:string?" in shell(typed)
    shell("seq 6 8 | memq produce clicks --profile new")
    before = shell(
        "memq consume clicks --group reports --from-beginning --exit-at-end --profile old"
    )
    assert shell(ends).splitlines()[1].split()[:4] == ["clicks", "0", "0", "1"]
    assert shell(lag).splitlines()[1].split()[:5] == ["reports", "clicks", "0", "0", "0"]
    assert shell(audit).splitlines()[-1] == "clean"
    assert shell(group).splitlines()[0] == "3"
    assert before.split() == ["1", "2", "3", "4", "5"]

    shell(copy)
    old, new = (
        [
            [record[name] for name in ("key", "value", "headers", "timestamp")]
            for record in map(json.loads, shell(command).splitlines())
        ]
        for command in (
            "memq consume clicks --from-beginning --exit-at-end --format json --profile old",
            "memq consume clicks-before --from-beginning --exit-at-end --format json --profile new",
        )
    )
    assert old == new
    assert old[0][:3] == ["k1", "1", [["a", "b"]]]
