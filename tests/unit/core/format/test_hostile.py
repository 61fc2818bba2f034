from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hostile_sender_crashes_nothing(seed) -> None:
    """Thousands of damaged Messages, schemas and indexes, all with the right checksum."""
    script = Path(__file__).with_name("hostile.py")
    done = subprocess.run(  # in a process of its own: a crash there is a failure here
        [sys.executable, script, str(seed), "8000"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = dict(part.split("=") for part in done.stdout.split())
    assert sum(map(int, outcomes.values())) == 8000
    assert {"corrupt_data", "message_too_large", "schema_mismatch", "sound"} == outcomes.keys()
