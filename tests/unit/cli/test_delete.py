"""What `memq topic delete`, `memq group delete` and a reset ask and do, in which order."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from memq.cli import group, topic
from memq.cli.main import main
from memq.core.wire.messages import PartitionOffsets
from memq.errors import (
    CorruptDataError,
    InvalidRequestError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)

OFFSETS = [PartitionOffsets(0, 2, 9, 4), PartitionOffsets(1, 5, 5, 5), PartitionOffsets(2, 0, 3, 1)]
INFO = SimpleNamespace(config=SimpleNamespace(read_partitions=3), incarnation="i7")


class Admin:
    """Answers as told, and remembers what was asked; an error is raised."""

    def __init__(self, **answers):
        self.answers = {
            "describe_topic": INFO,
            "offsets": OFFSETS,
            "committed": {2: 1, 0: 5},
            "delete_topic": None,
            "delete_group": None,
            "reset_offsets": None,
        } | answers
        self.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.asked.append(("closed",))

    def __getattr__(self, name):
        def ask(*arguments, **named):
            self.asked.append((name, *arguments, *named.items()))
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command with an admin client; exit code, stdout and stderr."""

    def go(admin, *arguments):
        for module in (topic, group):
            monkeypatch.setattr(module, "connect_admin", lambda *_: admin)
            monkeypatch.setattr(module, "confirm", lambda *args, **_: confirmed(admin, *args))
        code = main([*arguments, "-o", "json"])
        return code, *capsys.readouterr()

    def confirmed(admin, question):
        admin.asked.append(("confirm", question))
        if admin.answers.get("confirm") is not None:
            raise admin.answers["confirm"]

    return go


def test_a_topic_is_asked_about_and_that_one_is_deleted(run):
    """The incarnation that was asked about, after the answer, and no later one."""
    admin = Admin()
    code, out, _ = run(admin, "topic", "delete", "t")
    assert code == 0
    assert admin.asked == [
        ("describe_topic", "t"),
        ("offsets", "t"),
        ("confirm", "Delete topic t with 10 Batches in 3 partitions?"),
        ("delete_topic", "t", ("incarnation", "i7")),
        ("closed",),
    ]
    assert json.loads(out) == [{"topic": "t", "incarnation": "i7", "partitions": 3, "batches": 10}]


def test_a_topic_that_has_gone_meanwhile_is_gone(run):
    """Whoever deleted it; one that was recreated, or not reached, is an error."""
    assert run(Admin(delete_topic=UnknownTopicError("gone")), "topic", "delete", "t")[0] == 0
    for error in (TopicRecreatedError("another"), UnavailableError("away")):
        code, out, err = run(Admin(delete_topic=error), "topic", "delete", "t")
        assert (code, out, err) == (1, "", f"memq: error: {error}\n")


def test_a_damaged_topic_can_be_deleted(run):
    """Its Batches cannot be counted, which is told; another error ends it before the question."""
    admin = Admin(offsets=CorruptDataError("a page"))
    code, out, err = run(admin, "topic", "delete", "t")
    assert (code, err) == (0, "memq: a page\n")
    assert ("confirm", "Delete topic t with damaged Batches in 3 partitions?") in admin.asked
    assert json.loads(out)[0]["batches"] is None
    for name in ("describe_topic", "offsets"):
        admin = Admin(**{name: UnavailableError("away")})
        assert run(admin, "topic", "delete", "t")[0] == 1
        assert [each for each, *_ in admin.asked if each in ("confirm", "delete_topic")] == []


@pytest.mark.parametrize(
    ("command", "deleted"),
    [(("topic", "delete", "t"), "delete_topic"), (("group", "delete", "g", "t"), "delete_group")],
)
def test_whoever_says_no_deletes_nothing(run, command, deleted):
    """Nothing is asked of the brokers after that."""
    admin = Admin(confirm=InvalidRequestError("nothing was changed"))
    code, out, _ = run(admin, *command)
    assert (code, out) == (1, "")
    assert deleted not in [name for name, *_ in admin.asked]


def test_a_group_is_asked_about_with_its_offsets(run):
    """What was deleted is shown by partition; damaged offsets are deleted as well."""
    admin = Admin()
    code, out, _ = run(admin, "group", "delete", "g", "t")
    assert code == 0
    assert admin.asked == [
        ("committed", "g", "t"),
        ("confirm", "Delete group g of topic t with its offsets, in 2 partitions?"),
        ("delete_group", "g", "t"),
        ("closed",),
    ]
    assert [(row["partition"], row["deleted_offset"]) for row in json.loads(out)] == [
        (0, 5),
        (2, 1),
    ]
    admin = Admin(committed=CorruptDataError("a file"))
    code, out, err = run(admin, "group", "delete", "g", "t")
    assert (code, json.loads(out), err) == (0, [], "memq: a file\n")
    assert ("confirm", "Delete group g of topic t with its offsets, damaged?") in admin.asked
    assert ("delete_group", "g", "t") in admin.asked


def test_a_group_without_offsets_is_not_asked_about(run):
    """It is not there, or has live members: the broker says which."""
    admin = Admin(committed={}, delete_group=InvalidRequestError("has live members"))
    code, _, err = run(admin, "group", "delete", "g", "t")
    assert (code, err) == (1, "memq: error: has live members\n")
    assert "confirm" not in [name for name, *_ in admin.asked]
    assert run(Admin(committed=UnavailableError("away")), "group", "delete", "g", "t")[0] == 1


RESET = ("group", "reset-offsets", "g", "t")


@pytest.mark.parametrize("execute", [False, True])
def test_a_reset_is_done_only_when_asked_to(run, execute):
    """What is shown is what is, or would be, done; only of the partitions that were named."""
    admin = Admin()
    flags = ["--execute"] if execute else []
    code, out, err = run(
        admin, *RESET, "--to-latest", "--partition", "0", "--partition", "2", *flags
    )
    assert code == 0
    rows = [
        (each["partition"], each["current_offset"], each["new_offset"], each["log_end_offset"])
        for each in json.loads(out)
    ]
    assert rows == [(0, 5, 9, 9), (2, 1, 3, 3)]
    done = [each for each in admin.asked if each[0] == "reset_offsets"]
    assert done == ([("reset_offsets", "g", "t", {0: 9, 2: 3})] if execute else [])
    assert ("nothing was changed" in err) == (not execute)


@pytest.mark.parametrize(
    ("flags", "new"),
    [
        (["--to-earliest"], {0: 2, 1: 5, 2: 0}),
        (["--to-offset", "0"], {0: 2, 1: 5, 2: 0}),
        (["--to-offset", "4", "--partition", "2"], {2: 3}),
        (["--to-datetime", "2025-06-30T12:00Z"], {0: 4, 1: 5, 2: 1}),
        (["--shift-by", "0", "--partition", "0"], {0: 5}),
        (["--shift-by", "-1", "--partition", "2"], {2: 0}),
    ],
)
def test_where_a_reset_goes(run, flags, new):
    """Each rule by its flag, also with the number 0."""
    admin = Admin()
    assert run(admin, *RESET, *flags, "--execute")[0] == 0
    assert ("reset_offsets", "g", "t", new) in admin.asked
    moment = next(each[2] for each in admin.asked if each[0] == "offsets")
    assert (moment is None) == ("--to-datetime" not in flags)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ([], 2, "give one of --to-earliest"),
        (["--to-earliest", "--to-latest"], 2, "give one of"),
        (["--to-offset", "0", "--shift-by", "0"], 2, "give one of"),
        (["--to-latest", "--partition", "3"], 1, "no partition 3; it has 0 to 2"),
        (["--to-latest", "--partition", "0", "--partition", "9"], 1, "no partition 9"),
        (["--shift-by", "1"], 1, "partition 1 has no stored offset"),
    ],
)
def test_a_reset_that_is_refused(run, flags, code, said):
    """Nothing is stored of it."""
    admin = Admin()
    ended, out, err = run(admin, *RESET, *flags, "--execute")
    assert (ended, out) == (code, "")
    assert said in err
    assert "reset_offsets" not in [name for name, *_ in admin.asked]
