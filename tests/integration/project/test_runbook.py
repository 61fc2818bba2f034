"""Each command of `docs/runbook.md` works, at a broker with the topic and group of its examples."""

import re
import shutil

import pytest

from memq.broker.alerts import ALERTS
from tests.integration.project.test_first_ten_minutes import (
    BLOCK,
    PAGE,
    PORTS,
    Terminals,
    steps_of,
)

RUNBOOK = PAGE.with_name("runbook.md")
MOST_WORDS = 900


def test_each_alert_has_a_command():
    """Below the heading of each alert stand a meaning, a command and a next step, briefly."""
    text = RUNBOOK.read_text()
    assert len(text.split()) <= MOST_WORDS
    sections = dict(re.findall(r"^## (Memq\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == [each.name for each in ALERTS]
    for name, section in sections.items():
        before, _, after = section.partition("```console")
        assert len(before.split()) > 5, name
        assert steps_of(BLOCK.search(section)[1]), name
        assert after, name


@pytest.mark.skipif(shutil.which("curl") is None, reason="the runbook uses curl")
def test_commands(tmp_path):
    """Every command that it shows succeeds."""
    commands = {
        step.command: None
        for block in BLOCK.findall(RUNBOOK.read_text())
        for step in steps_of(block)
    }
    assert len(commands) >= 12
    with Terminals(tmp_path) as terminals:
        terminals.serve("memq dev", "…\n  MemQ is ready.\n…\n")
        for made in (
            "seq 10 | memq produce clicks",
            "memq consume clicks --group reports --exit-at-end --from-beginning",
            "memq topic alter clicks --no-audited",
        ):
            printed, code = terminals.run(made)
            assert code == 0, printed
        for command in [*commands, "memq debug bundle"]:
            here = command
            for port, own in zip(PORTS, terminals.ports, strict=True):
                here = here.replace(f":{port}", f":{own}")
            printed, code = terminals.run(here)
            # A broker that governs itself has no cluster to describe, and says so.
            governed = "governs itself" in printed and command == "memq cluster describe"
            assert code == 0 or governed, f"$ {command}\n{printed}\n(exit code {code})"
        assert (tmp_path / "memq-debug.tar.gz").exists()
