"""`memq topic delete`, `memq group delete` and resets: what is asked, and what is gone then."""

import json

import pytest

from memq import AdminClient
from memq.cli import group, topic
from memq.errors import CorruptDataError
from tests.integration.cli.processes import broker_folder, committed


@pytest.fixture
def asked(monkeypatch):
    """Questions that were asked; each is answered by calling `asked.answer`."""

    class Asked(list):
        answer = staticmethod(lambda: None)

    def confirm(question, *, yes):
        found.append(question)
        found.answer()

    found = Asked()
    for module in (topic, group):
        monkeypatch.setattr(module, "confirm", confirm)
    return found


@pytest.fixture
def filled(memq, topic, lines):
    """A topic with one Batch, and a group that has read it."""
    memq("produce", topic, "--input", lines)
    memq("group", "reset-offsets", topic, topic, "--to-latest", "--execute")
    return topic


def test_a_topic_is_asked_about_and_deleted(memq, filled, asked):
    """The question says what would be gone; stdout has what is gone and nothing else."""
    (row,) = json.loads(memq("topic", "delete", filled, "-o", "json"))

    assert asked == [f"Delete topic {filled} with 1 Batch in 1 partition?"]
    assert (row["topic"], row["partitions"], row["batches"]) == (filled, 1, 1)
    assert len(row["topic_id"]) == 16
    assert "no topic" in memq("topic", "describe", filled, code=1)
    assert "no topic" in memq("topic", "delete", filled, code=1)
    assert len(asked) == 1


def test_only_the_topic_that_was_asked_about_is_deleted(memq, filled, asked, broker):
    """One of its name that was made during the question stays; one that is gone by then is gone."""
    with AdminClient(broker.address) as admin:

        def recreated():
            admin.delete_topic(filled)
            admin.create_topic(filled)

        asked.answer = recreated
        assert "recreated" in memq("topic", "delete", filled, code=1)
        asked.answer = lambda: admin.delete_topic(filled)
        memq("topic", "delete", filled)
    assert "no topic" in memq("topic", "describe", filled, code=1)


def test_a_damaged_topic_can_be_deleted(memq, filled, asked, monkeypatch):
    """Its Batches cannot be counted, which is told."""

    def fail(*_):
        raise CorruptDataError("a page")

    monkeypatch.setattr(AdminClient, "offsets", fail)
    assert json.loads(memq("topic", "delete", filled, "-o", "json"))[0]["batches"] is None
    assert asked == [f"Delete topic {filled} with damaged Batches in 1 partition?"]


def test_a_group_is_asked_about_and_deleted(memq, filled, asked):
    """The question says where it has offsets, and they are shown once they are gone."""
    (row,) = json.loads(memq("group", "delete", filled, filled, "-o", "json"))

    assert asked == [f"Delete group {filled} of topic {filled} with its offsets, in 1 partition?"]
    assert row == {"group": filled, "topic": filled, "partition": 0, "deleted_offset": 1}
    assert f"no group '{filled}'" in memq("group", "delete", filled, filled, code=1)
    assert len(asked) == 1


def test_a_damaged_group_is_deleted_and_set_again(memq, broker, filled, asked):
    """Its offsets cannot be read, which is said, and are not needed for that."""
    (file,) = broker_folder(broker).glob(f"queue/topics/{filled}*/groups/*")
    file.write_bytes(b"garbage")
    assert "memq group delete" in memq("consume", filled, "--group", filled, code=1)
    assert json.loads(memq("group", "delete", filled, filled, "-o", "json")) == []
    assert asked == [f"Delete group {filled} of topic {filled} with its offsets, damaged?"]
    memq("group", "reset-offsets", filled, filled, "--to-earliest", "--execute")
    assert committed(memq, filled) == [0]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ([], 2, "give one of --to-earliest"),
        (["--to-offset", "0", "--shift-by", "0"], 2, "give one of"),
        (["--to-latest", "--partition", "3"], 1, "no partition 3; it has 0 to 0"),
    ],
)
def test_a_reset_that_is_refused(memq, filled, flags, code, said):
    """Nothing is stored of it."""
    command = ["group", "reset-offsets", filled, filled, *flags, "--execute"]
    assert said in memq(*command, code=code)
    assert committed(memq, filled) == [1]


@pytest.mark.parametrize(
    ("flags", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-offset", "0"], 0),
        (["--shift-by", "0", "--partition", "0"], 1),
        (["--shift-by", "-1"], 0),
        (["--to-datetime", "1h"], 0),
    ],
)
def test_a_reset_is_done_only_when_asked_to(memq, filled, flags, offset):
    """What is shown is what is, or would be, done; by each rule, also with the number 0."""
    command = ["group", "reset-offsets", filled, filled, *flags, "-o", "json"]
    (shown,) = json.loads(memq(*command))
    assert (shown["current_offset"], shown["new_offset"]) == (1, offset)
    assert committed(memq, filled) == [1]
    assert json.loads(memq(*command, "--execute")) == [shown]
    assert committed(memq, filled) == [offset]
