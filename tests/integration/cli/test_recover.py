"""`memq recover`: what was acked comes back once, whatever of the queue is lost."""

import json
import shutil
from collections import Counter

import pytest

from memq import AdminClient, Consumer, Producer
from memq.cli.main import main
from memq.errors import MemqError
from memq.testing.broker import BrokerProcess

LINES = [b"line %d" % number for number in range(160)]


@pytest.fixture
def memq(capfdbinary):
    """Runs a command that must end with `code`; returns its output and its errors."""

    def run(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        captured = capfdbinary.readouterr()
        return captured.out.decode(), captured.err.decode()

    return run


def write(address, lines, topic="t"):
    """Write lines as a job that may run twice: the same Messages under the same names."""
    with Producer(address, topic=topic, producer_id="job") as producer:
        for start in range(0, len(lines), 20):
            for number, line in enumerate(lines[start : start + 20], start):
                producer.write(line, timestamp=number)
            producer.flush(timeout=30)


def read(address, topic="t", **options):
    """How often each line can be read."""
    found = Counter()
    with Consumer(address, topic=topic, **options) as consumer:
        while sum(found.values()) < len(LINES):
            batch = consumer.poll(timeout=10)
            assert batch is not None, f"{len(found)} lines came"
            found.update(message.value for message in batch)
        assert consumer.poll(timeout=0.2) is None
    return found


@pytest.fixture
def stopped(tmp_path):
    """A broker with LINES in a topic of several partitions, and a group in their midst; stopped."""
    with BrokerProcess(tmp_path) as running:
        with AdminClient(running.address) as admin:
            admin.create_topic("t", read_partitions=3, write_partitions=2, batch_age="5ms")
            admin.create_topic("other", batch_age="5ms")
        write(running.address, LINES)
        write(running.address, LINES, topic="other")
        with Consumer(running.address, topic="t", group="g", start="earliest") as consumer:
            for _ in range(3):
                consumer.poll(timeout=10)
            consumer.commit()
        assert running.terminate() == 0
        yield running


def topic_folder(stopped_dir, topic="t"):
    """The folder of a topic in the queue."""
    return next((stopped_dir / "queue/topics").glob(f"{topic}.*"))


REBUILT = {
    "queue": lambda data: shutil.rmtree(data / "queue"),
    "partition": lambda data: shutil.rmtree(topic_folder(data) / "1"),
}


@pytest.mark.parametrize("damage", list(REBUILT.values()), ids=list(REBUILT))
def test_what_is_lost_is_rebuilt(memq, stopped, tmp_path, damage):
    """Every acked record is read back once, also after the job runs again."""
    damage(tmp_path)
    refused = not (tmp_path / "queue").exists() or not any((tmp_path / "queue").iterdir())
    if refused:
        with pytest.raises(MemqError, match=r"queue is missing or empty, .* `memq recover") as said:
            stopped.restart()
        assert len([line for line in str(said.value).splitlines() if "memq: error" in line]) == 1
    shown, advice = memq("recover", tmp_path, "-o", "json")
    assert "nothing has changed. Add --execute" in advice
    assert memq("recover", tmp_path, "-o", "json")[0] == shown
    shown, advice = memq("recover", "--execute", tmp_path, "-o", "json")
    assert "set them with `memq group reset-offsets`" in advice
    outcomes = {row["topic"]: row for row in json.loads(shown)}
    assert outcomes["t"]["action"] == "rebuild"
    assert outcomes["t"]["records"] == len(LINES)
    assert outcomes["other"]["action"] == ("rebuild" if refused else "none")
    assert {row["action"] for row in json.loads(memq("recover", tmp_path, "-o", "json")[0])} == {
        "none"
    }

    stopped.restart()
    for topic in ("t", "other"):
        assert read(stopped.address, topic) == Counter(LINES)
    write(stopped.address, LINES)  # the job runs again
    assert read(stopped.address, group="g") == Counter(LINES)
