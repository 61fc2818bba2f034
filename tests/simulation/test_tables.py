"""Two committers and a table, any step of which may be cut off: each range is in it once."""

import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from memq.core.ranges import Interval
from memq.errors import MemqError, RangeConflictError, TableConflictError
from memq.tables.commit import (
    Commit,
    CommitOutcome,
    CommitStep,
    TableState,
    TryCommit,
    Written,
    steps,
)
from memq.tables.ledger import EMPTY, Ledger, TopicRange

SEEDS = 400
CRASHES_AT_LEAST = 10_000
"""Of committers, over all seeds."""

CUTS = {0: [0, 3, 4, 9, 10, 16, 20], 1: [0, 5, 6, 12]}
"""Where the ranges of each read partition begin and end."""


class Snapshot(msgspec.Struct):
    """One of a table; those of other programs add nothing."""

    number: int
    parent: int
    commit: Commit | None = None


class ModelTable:
    """A table as catalogs promise it: a commit is taken whole, upon the state it names, or not."""

    def __init__(self):
        self.snapshots = [Snapshot(0, -1)]
        self.main = 0

    def lineage(self):
        number = self.main
        while number >= 0:
            yield self.snapshots[number]
            number = self.snapshots[number].parent

    def commits(self):
        return [each.commit for each in self.lineage() if each.commit is not None]

    def ledger(self) -> Ledger:
        commits = self.commits()
        return commits[0].ledger if commits else EMPTY

    def look(self):
        attempts = frozenset(each.commit.attempt for each in self.snapshots if each.commit)
        return TableState(self.ledger(), self.main, attempts)

    def take(self, base, commit=None):
        if base != self.main:
            return False
        self.snapshots.append(Snapshot(len(self.snapshots), self.main, commit))
        self.main = len(self.snapshots) - 1
        return True


@dataclass
class Committer:
    """Commits one range after the other; `doing` is what it is in the middle of."""

    name: str
    wanted: TopicRange | None = None
    attempt: str = ""
    doing: object = None
    step: object = None
    log: list = field(default_factory=list)

    def begin(self, wanted, attempt):
        self.wanted, self.attempt = wanted, attempt
        self.doing = steps(wanted, attempt, self.name)
        self.step = next(self.doing)

    def answer(self, value):
        try:
            self.step = self.doing.send(value)
        except StopIteration as done:
            self.doing = None
            return done.value
        except MemqError as exc:
            self.doing = None
            return exc
        return None


class World:
    """A table, its committers, and what goes wrong."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.table = ModelTable()
        self.committers = [Committer("one"), Committer("two")]
        self.in_flight = []  # commits that may still arrive
        self.counts = Counter()
        self.attempts = 0

    def chance(self, probability):
        return self.random.random() < probability

    def some_range(self):
        partition = self.random.choice(list(CUTS))
        cuts = CUTS[partition]
        at = self.random.randrange(len(cuts) - 1)
        start, end = cuts[at], cuts[at + 1]
        if self.chance(0.03):  # a range that was planned otherwise
            start, end = max(0, start - 1), end + 1
        return clicks(partition, start, end)

    def begin(self, committer, wanted):
        self.attempts += 1
        committer.begin(wanted, f"attempt-{self.attempts}")

    def run_one(self, committer, faults):
        """One step of a committer, which may be its last."""
        if faults and self.chance(0.12):
            return self.crash(committer)
        answer = self.do(committer, faults)
        if faults and self.chance(0.12):  # the step was done, and nobody learns of it
            return self.crash(committer)
        ended = committer.answer(answer)
        if ended is not None:
            self.judge(committer, ended)
        return None

    def crash(self, committer):
        committer.doing = None
        self.counts["crashes"] += 1

    def do(self, committer, faults):
        step = committer.step
        match step:
            case CommitStep.LOOK:
                return self.table.look()
            case CommitStep.WRITE:
                wanted = committer.wanted
                records = wanted.end - wanted.start
                file = f"{committer.attempt}.parquet"
                written = msgspec.structs.replace(wanted, records=records, crc_sum=wanted.start)
                return Written(written, [file])
            case TryCommit(base, commit):
                return self.commit(base, commit, faults)
        return None

    def commit(self, base, commit, faults):
        fault = self.random.choice(["", "", "lost answer", "late", "refused"]) if faults else ""
        self.counts[fault or "sent"] += 1
        if fault == "late":
            self.in_flight.append((base, commit))
        elif fault != "refused":
            taken = self.table.take(base, commit)
            if taken and not fault:
                return None
        return TableConflictError(fault or "the table has changed")

    def judge(self, committer, ended):
        """What a committer says must be so."""
        if isinstance(ended, RangeConflictError):
            self.counts["conflicts"] += 1
            held = self.table.ledger().partition("clicks", "a1", committer.wanted.partition)
            whole = [Interval(committer.wanted.start, committer.wanted.end)]
            assert held.intervals != whole
        elif isinstance(ended, CommitOutcome):
            self.counts["committed" if ended.committed else "found"] += 1
            mine = [each for each in self.table.commits() if each.attempt == committer.attempt]
            if ended.committed and not self.counts["rolled back"]:
                assert [each.range.offsets for each in mine] == [committer.wanted.offsets]
            if not ended.committed:
                assert not mine
        else:
            assert isinstance(ended, TableConflictError)

    def other_programs(self):
        """Commits that come late, a compaction, and somebody who rolls back."""
        if self.in_flight and self.chance(0.3):
            base, commit = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
            self.counts["late and taken"] += self.table.take(base, commit)
        if self.chance(0.05):
            self.table.take(self.table.main)
            self.counts["compactions"] += 1
        if self.chance(0.005):
            self.table.main = self.random.choice(list(self.table.lineage())).number
            self.counts["rolled back"] += 1

    def run(self, steps_with_faults):
        for _ in range(steps_with_faults):
            committer = self.random.choice(self.committers)
            if committer.doing is None:
                self.begin(committer, self.some_range())
            self.run_one(committer, faults=True)
            self.other_programs()
            check(self.table)
        for base, commit in self.in_flight:
            self.table.take(base, commit)
        committer = self.committers[0]
        for each in missing(self.table):
            self.begin(committer, each)
            while committer.doing is not None:
                self.run_one(committer, faults=False)
        check(self.table)
        return self.counts


def clicks(partition, start, end):
    return TopicRange(topic="clicks", topic_id="a1", partition=partition, start=start, end=end)


def missing(table):
    """The ranges that are wanted and not in, as far as those of others let them be."""
    for partition, cuts in CUTS.items():
        held = table.ledger().partition("clicks", "a1", partition)
        taken = {n for start, end in held.intervals for n in range(start, end)}
        for n in range(cuts[-1]):
            if n not in taken:
                yield clicks(partition, n, n + 1)


def check(table):
    """Every offset is in once at most, every file once, and the ledger says just that."""
    commits = table.commits()
    offsets = Counter(
        (each.range.partition, n)
        for each in commits
        for n in range(each.range.start, each.range.end)
    )
    files = Counter(file for each in commits for file in each.files)
    assert max(offsets.values(), default=1) == 1
    assert max(files.values(), default=1) == 1
    said = {
        (partition, n)
        for _, _, partition, held in table.ledger().partitions()
        for start, end in held.intervals
        for n in range(start, end)
    }
    assert said == set(offsets)
    assert sum(held.records for *_, held in table.ledger().partitions()) == len(offsets)


def test_each_range_is_in_once():
    """Whatever is cut off, lost, late or repeated: no offset twice, none left out at the end."""
    counts = Counter()
    for seed in range(SEEDS):
        world = World(seed)
        counts += world.run(150)
        for partition, cuts in CUTS.items():
            held = world.table.ledger().partition("clicks", "a1", partition)
            assert held.intervals[0].start == 0, seed
            assert len(held.intervals) == 1, seed
            assert held.intervals[0].end >= cuts[-1], seed

    assert counts["crashes"] >= CRASHES_AT_LEAST
    for each in ("lost answer", "late", "late and taken", "refused", "found", "conflicts"):
        assert counts[each] > 100, each
    assert counts["rolled back"] > 100
