"""A planner, Airflow's scheduler and the runs of ranges without any I/O, and crashes between them.

All that decides is the provider's own code: ledgers, cuts, what waits, what got no run, and how far
is committed. What Airflow does is here in a few lines: a success stores its events and makes their
runs at once, unless the DAG is paused; what dies before has stored nothing.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_memq.operators.progress import moved_ends
from airflow_provider_memq.planning.ledger import (
    StoredPlan,
    carried_on,
    first_ledger,
    ledger_of,
    newest,
    settled,
)
from airflow_provider_memq.planning.missed import ranges_without_run
from airflow_provider_memq.planning.ranges import Limits, cut, finish, parse_key, range_key
from airflow_provider_memq.planning.topics import TopicState
from memq.core.ranges import OffsetRange
from tests.unit.airflow.fakes import published

if TYPE_CHECKING:
    from random import Random

    from airflow_provider_memq.planning.ledger import PlanLedger
    from airflow_provider_memq.planning.ranges import Plan

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MISSED_AFTER = timedelta(minutes=2)
PARTITIONS = 3
MAX_PENDING = 4


class KilledError(Exception):
    """A process was killed."""


class World:
    """A topic, its planner and its runs.

    Args:
        randomness: decides what happens, and what dies.
        crashes: share of steps that die.
        limits: of the ranges.
    """

    def __init__(self, randomness: Random, crashes: float, limits: Limits) -> None:
        self.randomness, self.crashes, self.limits = randomness, crashes, limits
        self.now = BEGIN
        self.batches: list[list] = [[] for _ in range(PARTITIONS)]
        self.plans: list[StoredPlan] = []
        self.mark: datetime | None = BEGIN
        self.paused = False
        self.queued: deque[str] = deque()
        self.runs: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()
        self.written: dict[str, range] = {}
        self.done: set[OffsetRange] = set()
        self.committed: dict[int, int] = {}
        self.commit_due = False
        self.died = self.waits = 0

    # -- what happens -----------------------------------------------------------------------

    def publish(self, most: int) -> None:
        """Some Batches in each read partition."""
        for partition, found in enumerate(self.batches):
            for _ in range(self.randomness.randint(0, most)):
                size = self.randomness.randint(1, 90)
                found.append(published(len(found), self.now_ms, size, partition=partition))

    def tick(self) -> None:
        """Time goes by."""
        self.now += timedelta(seconds=self.randomness.choice([5, 30, 90]))

    def plan(self) -> bool:
        """One try of the planner; whether it stored anything."""
        try:
            return self._plan()
        except KilledError:
            self.died += 1
            return False

    def run(self) -> None:
        """One try of a commit that is due, and one of the oldest run, which makes another due."""
        try:
            if self.commit_due:
                self._commit()
            if self.queued and not self.paused:
                self._process(self.queued[0])
        except KilledError:
            self.died += 1

    # -- the planner ------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1000)

    def state(self) -> TopicState:
        ends = {p: len(found) for p, found in enumerate(self.batches)}
        return TopicState("t", "a" * 16, dict.fromkeys(ends, 0), ends, 0)

    def _plan(self) -> bool:
        self._may_die()
        held = self.paused or len(self.queued) >= MAX_PENDING
        last = newest(each.ledger for each in self.plans[-20:])
        begin = self._begin(last)
        self._may_die()
        plan = self._cut(begin, held=held)
        again = self._again()
        self._may_die()
        self.waits += bool(plan.waiting and not plan.ranges)
        if not (plan.ranges or again):
            return False
        ledger = begin.advanced((each.range for each in plan.ranges), again)
        self._may_die()
        self._store(ledger, again)
        return True

    def _begin(self, last: PlanLedger | None) -> PlanLedger:
        if last is None:
            return first_ledger(self.state(), "earliest")
        return carried_on(last, self.state(), skip_removed=False)

    def _cut(self, begin: PlanLedger, *, held: bool) -> Plan:
        cuts = []
        for partition, found in enumerate(self.batches):
            start = begin.ends[partition]
            unplanned = OffsetRange(partition, start, len(found), begin.topic_id)
            cuts.append(cut(unplanned, found[start:], self.limits))
        return finish(cuts, self.limits, self.now_ms, held=held)

    def _again(self) -> list[str]:
        """As `MissedRanges.look`, whose mark may be lost, and is written whatever comes after."""
        if self.randomness.random() < self.crashes / 10:
            self.mark = None
        since = self.mark or BEGIN
        plans = []
        for each in reversed(self.plans):
            if each.at < since:
                break
            plans.append(each)
        found = ranges_without_run(reversed(plans), self.runs, self.now - MISSED_AFTER)
        self.mark = found.until or since
        return [] if self.paused else found.again

    # -- Airflow ----------------------------------------------------------------------------

    def _store(self, ledger: PlanLedger, again: list[str]) -> None:
        """The success of a plan: its events, and the runs of their partitions."""
        kept = ledger_of(json.loads(json.dumps(ledger.to_extra())))
        assert kept is not None
        self.now += timedelta(milliseconds=1)  # no two events are of one time
        self.plans.append(StoredPlan(self.now, kept))
        if self.paused:
            return
        for key in [*again, *map(range_key, kept.ranges)]:
            self.runs[key] += 1
            self.queued.append(key)

    def _process(self, key: str) -> None:
        """A try of a run, up to its success; the files of a range replace each other."""
        self._may_die()
        each = parse_key(key)
        self.written[key] = range(each.start, each.end)
        self._may_die()
        self.queued.popleft()
        self.succeeded[key] += 1
        self.done.add(each)
        self.commit_due = True

    def _commit(self) -> None:
        self._may_die()
        ledger = newest(each.ledger for each in self.plans[-20:])
        assert ledger is not None
        starts = settled(ledger, self.committed)
        beyond = {each for each in self.done if each.end > starts[each.partition]}
        moved = moved_ends(ledger, self.committed, beyond)
        self._may_die()
        self.committed |= moved
        self.done, self.commit_due = beyond, False

    def _may_die(self) -> None:
        if self.randomness.random() < self.crashes:
            raise KilledError

    # -- what must hold ---------------------------------------------------------------------

    def drain(self) -> None:
        """Nothing is paused, nothing dies, and time passes, until all is processed."""
        self.paused, self.crashes = False, 0.0
        for _ in range(10):
            self.now += MISSED_AFTER + timedelta(hours=1)
            while self.plan():
                pass
            while self.queued or self.commit_due:
                self.run()

    def check(self) -> None:
        """Every offset is in one range; each range has one run, one success and its files."""
        keys = {range_key(found) for each in self.plans for found in each.ledger.ranges}
        assert set(self.runs) == keys, "a range without a run, or a run without a range"
        assert set(self.runs.values()) == {1}, "a range with several runs"
        assert self.succeeded == self.runs, "a range was not processed once"
        for partition, found in enumerate(self.batches):
            mine = sorted(parse_key(key) for key in keys if parse_key(key).partition == partition)
            offsets = [offset for each in mine for offset in self.written[range_key(each)]]
            assert offsets == list(range(len(found))), f"gap or overlap in partition {partition}"
        assert self.committed == self.state().ends
