"""`deploy/systemd/access-topic.sh`, which sends the access log to a topic."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memq import AdminClient, read_range

SCRIPT = Path(__file__).parents[3] / "deploy" / "systemd" / "access-topic.sh"
TOPIC = "access"


@pytest.fixture
def run(broker, tmp_path):
    """Runs the script; returns the log, its folder to itself."""
    folder = tmp_path / "log"
    folder.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MEMQ_BOOTSTRAP": broker.address}

    def once() -> Path:
        subprocess.run([SCRIPT, folder / "access.log"], check=True, env=environment, timeout=120)
        return folder / "access.log"

    return once


def stored(broker) -> list[str]:
    with AdminClient(broker.address) as admin:
        ends = [(each.partition, each.end) for each in admin.offsets(TOPIC)]
    return sorted(
        json.loads(value)["event"]
        for number, end in ends
        if end
        for value in read_range(broker.address, topic=TOPIC, partition=number, start=0, end=end)[
            "value"
        ].to_pylist()
    )


def test_each_line_is_sent_once(broker, run):
    """What was moved aside is sent by the next run, and once, also when the run before was cut off
    after it had sent it.
    """
    with AdminClient(broker.address) as admin:
        admin.create_topic(TOPIC, dedup_window="1d", batch_age="5ms")
    log = run()
    log.write_text('{"event": "a"}\n{"event": "b"}\n')
    run()
    assert not log.exists()
    assert stored(broker) == []
    [aside] = log.parent.iterdir()
    kept = shutil.copy(aside, log.parent.parent / aside.name)
    while int(aside.suffix[1:]) == int(time.time()):  # the name of the next one is another second
        pass
    log.write_text('{"event": "c"}\n')
    run()
    assert stored(broker) == ["a", "b"]
    shutil.copy(kept, aside)
    run()
    assert stored(broker) == ["a", "b", "c"]
    run()
    assert list(log.parent.iterdir()) == []
