"""A range comes into a table in steps: what is done once, what again, and when it is given up."""

from types import SimpleNamespace

import msgspec
import pytest

from memq.errors import SchemaMismatchError, StorageError, TableConflictError
from memq.tables import commit
from memq.tables.commit import ATTEMPTS, CommitOutcome, TableState, Written, commit_range
from memq.tables.ledger import EMPTY, TopicRange

WANTED = TopicRange(topic="clicks", topic_id="a" * 16, partition=0, start=3, end=9)
WRITTEN = Written(msgspec.structs.replace(WANTED, records=7), ["a.parquet"])


class Table:
    """A table whose commits end as the test says, one after the other, and then well.

    An answer is an error; with it, whether the commit was taken all the same, or another one.
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        self.ledger, self.attempts = EMPTY, frozenset()
        self.done = []

    def look(self):
        self.done.append("look")
        return TableState(self.ledger, len(self.done), self.attempts)

    def take(self, given, attempt):
        self.ledger, self.attempts = given, self.attempts | {attempt}

    def commit(self, base, wanted):
        assert base == len(self.done), "a commit upon what was not looked at last"
        self.done.append("commit")
        assert wanted.ledger == self.ledger.plus(WRITTEN.range)
        assert (wanted.range, wanted.files, wanted.job) == (WRITTEN.range, WRITTEN.files, "job")
        error, becomes = self.answers.pop(0) if self.answers else (None, "taken")
        if becomes:
            self.take(wanted.ledger, wanted.attempt if becomes == "taken" else "another")
        if error is not None:
            raise error


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr(commit, "time", SimpleNamespace(sleep=found.append))
    return found


def put(table, write=None):
    def written():
        table.done.append("write")
        return write() if write else WRITTEN

    chance = SimpleNamespace(random=lambda: 1.0)
    return commit_range(table, WANTED, written, attempt="mine", job="job", runtime=chance)


REFUSED = TableConflictError("changed")


@pytest.mark.parametrize(
    ("answers", "commits", "committed"),
    [
        ([], 1, True),
        ([(REFUSED, "")] * 2, 3, True),
        ([(REFUSED, "taken")], 1, True),
        ([(REFUSED, ""), (StorageError("slow"), "taken")], 2, True),
        ([(REFUSED, "another's")], 1, False),
    ],
)
def test_a_commit_that_is_not_confirmed(waits, answers, commits, committed):
    """The table says whether it was taken; rows are written once, however often it is tried, and
    the waits between tries grow.
    """
    table = Table(*answers)

    assert put(table) == CommitOutcome(WRITTEN, committed)

    assert table.done.count("write") == 1
    assert table.done.count("commit") == commits
    assert table.done[:4] == ["look", "write", "look", "commit"]
    assert len(waits) == len(answers)
    assert waits == sorted({*waits})


def test_what_no_other_try_mends_is_told_at_once(waits):
    """Files that do not fit the table."""
    table = Table((SchemaMismatchError("no such column"), ""))
    with pytest.raises(SchemaMismatchError):
        put(table)
    assert table.done == ["look", "write", "look", "commit"]
    assert waits == []


def test_a_table_that_takes_nothing(waits):
    """It is given up, with the last error, after as many tries as are made; later it may take the
    range.
    """
    table = Table(*[(TableConflictError(f"try {n}"), "") for n in range(ATTEMPTS)])

    with pytest.raises(TableConflictError, match=f"in {ATTEMPTS} tries; .*: try {ATTEMPTS - 2}"):
        put(table)

    assert table.done.count("write") == 1
    assert table.done.count("commit") == len(waits) == ATTEMPTS - 1
    table.answers.clear()
    assert put(table) == CommitOutcome(WRITTEN, committed=True)
