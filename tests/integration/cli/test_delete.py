"""`memq topic delete` and `memq group delete`: they ask, and say what was deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.advice import follows
from tests.integration.cli.processes import TIMEOUT_S, broker_folder


def answered(answer, broker, *arguments):
    """Exit code, output and question of a command whose stdin is a terminal."""
    ours, terminal = os.openpty()
    os.write(ours, answer.encode())
    try:
        done = subprocess.run(
            [sys.executable, "-m", "memq", *arguments, "-b", broker.address],
            stdin=terminal,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    finally:
        os.close(ours)
        os.close(terminal)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture
def filled(memq, topic, lines):
    """A topic with one Batch, and a group that has read it."""
    memq("produce", topic, "--input", lines)
    memq("group", "reset-offsets", "reports", topic, "--to-latest", "--execute")
    return topic


def test_a_topic_is_deleted_when_the_answer_is_yes(broker, memq, filled):
    """The question says what would be gone; stdout has what is gone and nothing else."""
    code, out, asked = answered("y\n", broker, "topic", "delete", filled, "-o", "json")

    assert asked == f"Delete topic {filled} with 1 Batch in 1 partition? [y/N] "
    (row,) = json.loads(out)
    assert (code, row["topic"], row["partitions"], row["batches"]) == (0, filled, 1, 1)
    assert len(row["incarnation"]) == 16
    assert "no topic" in memq("topic", "describe", filled, code=1)


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"], ids=["no", "enter", "Ctrl-D"])
def test_nothing_is_deleted_when_the_answer_is_another(broker, memq, filled, answer):
    """No, Enter and Ctrl-D leave everything as it was, with exit code 1."""
    for command in (["topic", "delete", filled], ["group", "delete", "reports", filled]):
        code, out, asked = answered(answer, broker, *command)
        assert (code, out) == (1, b"")
        assert asked.endswith("? [y/N] memq: error: nothing was changed\n")
    memq("topic", "describe", filled)
    assert b"reports" in memq("group", "list", filled)


@follows("… There is no terminal to ask at: add --yes")
def test_without_a_terminal_nobody_can_be_asked(memq, filled):
    """The command is refused, and the way out it names works."""
    for command in (["group", "delete", "reports", filled], ["topic", "delete", filled]):
        said = memq(*command, code=2)
        assert "There is no terminal to ask at: add --yes" in said
        memq(*command, "--yes")
    assert "no topic" in memq("topic", "describe", filled, code=1)


def test_a_closed_stdin_is_no_terminal(broker, filled):
    """`<&-` is refused as a pipe is."""
    command = f"exec {sys.executable} -m memq topic delete {filled} -b {broker.address} <&-"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, check=False, timeout=TIMEOUT_S
    )

    assert done.returncode == 2
    assert b"add --yes" in done.stderr


def test_a_group_is_deleted_when_the_answer_is_yes(broker, memq, filled):
    """The question says where it has offsets; the table shows them once they are gone."""
    code, out, asked = answered("yes\n", broker, "group", "delete", "reports", filled)

    expected = f"Delete group reports of topic {filled} with its offsets, in 1 partition? [y/N] "
    assert (code, asked) == (0, expected)
    assert out.decode().splitlines()[1].split() == ["reports", filled, "0", "1"]
    assert b"reports" not in memq("group", "list", filled)


def test_a_damaged_group_is_not_deleted_unasked(broker, memq, filled):
    """The question says that the offsets are damaged; without a yes they are left."""
    (file,) = broker_folder(broker).glob(f"queue/topics/{filled}*/groups/reports*")
    file.write_bytes(b"garbage")

    code, _, asked = answered("n\n", broker, "group", "delete", "reports", filled)

    question = f"Delete group reports of topic {filled} with its offsets, damaged? [y/N] "
    assert asked.endswith(f"{question}memq: error: nothing was changed\n")
    assert "add --yes" in memq("group", "delete", "reports", filled, code=2)
    assert (code, file.read_bytes()) == (1, b"garbage")


def test_what_is_not_there_is_said_without_a_question(broker, memq, topic):
    """A group and a topic that do not exist."""
    code, _, said = answered("y\n", broker, "group", "delete", "nobody", topic)
    assert (code, said) == (1, f"memq: error: no group 'nobody' for topic '{topic}'\n")
    code, _, said = answered("y\n", broker, "topic", "delete", "nothing")
    assert code == 1
    assert said.startswith("memq: error: no topic 'nothing' here")
