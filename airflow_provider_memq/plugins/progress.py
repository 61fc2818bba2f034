"""What became of the ranges of a topic, and what is missing.

Everything here is computed from facts. What is missing is told by the functions that the operators
use: `ranges_without_run` of the planner, `settled` of the commit, and the table's own ledger.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_memq.ledger import settled
from airflow_provider_memq.missed import ranges_without_run
from airflow_provider_memq.plugins.view import (
    MissingView,
    PartitionView,
    RangeView,
    age_in_words,
    run_view,
    snapshot_view,
    stretches,
)
from airflow_provider_memq.ranges import range_key
from memq.core.ranges import Interval, OffsetRange, intersection, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from airflow_provider_memq.plugins.facts import Brokers, Planned, Run, Snapshot, TableState
    from memq.client.lag import Lag

MISSED_AFTER = timedelta(minutes=5)  # where the planner does not say; its default
REMOVED = "removed by retention before it was planned"
NOT_PLANNED = "published, and not planned yet"
_LAST = {NOT_PLANNED: 1, REMOVED: 2}  # of what is missing: what is wrong with ranges comes first


class Progress:
    """What became of the ranges of some plans.

    Args:
        planned: the plans, with runs and what is processed.
        tables: what tables have; those that could be seen.
        brokers: what they say; None when they are away.
        now: the time.
        missed_after: a range has its run so long after its plan, or gets none.
        sees_runs: all runs are known that ranges have; otherwise no range is said to have none.
        to_run: address of a run.
        to_range: address of the page of a range.
    """

    def __init__(
        self,
        planned: Planned,
        tables: Sequence[TableState],
        brokers: Brokers | None,
        *,
        now: datetime,
        missed_after: timedelta = MISSED_AFTER,
        sees_runs: bool = True,
        to_run: Callable[[Run], str],
        to_range: Callable[[str], str],
    ) -> None:
        self._planned, self._tables, self._brokers = planned, tables, brokers
        self._to_run, self._to_range = to_run, to_range
        self._at = planned.planned_at
        begin = planned.all_have_runs
        plans = [each for each in planned.plans if begin is None or each.at >= begin]
        with_run = {range_key(each) for each in self._at if planned.runs_of(each)}
        found = ranges_without_run(plans, with_run, now - missed_after)
        self._missed = set(found.again) if sees_runs else set()
        self._waiting = set(found.waiting) if sees_runs else set()
        old = (each for each, at in self._at.items() if at <= now - missed_after)
        self._had_time = set(old) if sees_runs else set()  # to get a run

    def __repr__(self) -> str:
        return f"<Progress [{len(self._at)} ranges]>"

    # -- ranges -----------------------------------------------------------------------------

    def ranges(self, most: int, skip: int = 0) -> list[RangeView]:
        """The ranges, the newest first; `most` of them after the first `skip`."""
        return [self.range(each) for each in list(self._at)[::-1][skip : skip + most]]

    def range(self, offsets: OffsetRange) -> RangeView:
        """One range."""
        key, at = range_key(offsets), self._at.get(offsets)
        return RangeView(
            key=key,
            partition=offsets.partition,
            start=offsets.start,
            end=offsets.end,
            planned=at.isoformat(timespec="seconds") if at else "",
            state=self.state(offsets),
            runs=[run_view(each, self._to_run) for each in self._planned.runs_of(offsets)],
            others=[
                run_view(each, self._to_run) for each in self._planned.runs_of(offsets, own=False)
            ],
            snapshots=[snapshot_view(each) for each in self._snapshots(offsets)],
            href=self._to_range(key),
        )

    def state(self, offsets: OffsetRange) -> str:
        """How far a range is, in a word or two."""
        tables = self._tables_of(offsets)
        if tables and all(_has(table, offsets) for table in tables):
            return "in table"
        if is_done(self._planned, offsets):
            return "processed"
        if runs := self._planned.runs_of(offsets):
            is_marked = runs[-1].state == "success" and self._planned.is_told
            return "not confirmed" if is_marked else runs[-1].state
        return self._without_run(offsets) if offsets in self._at else self._unplanned(offsets)

    def _without_run(self, offsets: OffsetRange) -> str:
        key = range_key(offsets)
        if self._is_passed(offsets):
            return "passed"
        if key in self._missed:
            return "no run"
        return "waiting" if key in self._waiting else "unknown"

    def _unplanned(self, offsets: OffsetRange) -> str:
        """Of a range that is in none of the plans: what the group has passed says nothing of it."""
        ledger = self._planned.ledger
        if offsets.incarnation != ledger.incarnation:
            return "of another incarnation"
        # Where there are plans, they have cut its offsets otherwise.
        is_beyond = offsets.end > ledger.ends.get(offsets.partition, 0)
        return "not planned" if self._at or is_beyond else "unknown"

    def _tables_of(self, offsets: OffsetRange) -> Sequence[TableState]:
        """The tables, where they say something of a range: they do of the incarnation planned."""
        return self._tables if offsets.incarnation == self._planned.ledger.incarnation else ()

    def _is_passed(self, offsets: OffsetRange) -> bool:
        """Whether the group has come past a range: by commits, or because it was moved."""
        return offsets.end <= self._stored.get(offsets.partition, 0)

    @property
    def _stored(self) -> Mapping[int, int]:
        """Next offsets of the group, as far as they say something about what is planned."""
        return self._brokers.stored if self._brokers and self._same_topic else {}

    def _snapshots(self, offsets: OffsetRange) -> list[Snapshot]:
        named, tables = offsets._replace(incarnation=""), self._tables_of(offsets)
        return [each.snapshots[named] for each in tables if named in each.snapshots]

    # -- what is missing --------------------------------------------------------------------

    def missing(self) -> list[MissingView]:
        """Offsets that are not where they should be: of ranges, then not planned, then removed."""
        found: dict[tuple[int, str], list[Interval]] = defaultdict(list)
        first: dict[tuple[int, str, int], str] = {}
        for offsets, why in self._missing():
            found[offsets.partition, why].append(Interval(offsets.start, offsets.end))
            if offsets in self._at:
                href = self._to_range(range_key(offsets))
                first[offsets.partition, why, offsets.start] = href
        return sorted(
            (
                MissingView(
                    partition=partition,
                    start=start,
                    end=end,
                    why=why,
                    href=first.get((partition, why, start), ""),
                )
                for (partition, why), intervals in found.items()
                for start, end in union(sorted(intervals))
            ),
            key=lambda each: (_LAST.get(each.why, 0), each.partition, each.start),
        )

    def _missing(self) -> Iterator[tuple[OffsetRange, str]]:
        for gap in self._planned.ledger.gaps:
            yield gap, REMOVED
        for offsets in self._at:
            yield from ((offsets, why) for why in self._wrong_with(offsets))
        if self._brokers is None or not self._same_topic:
            return
        ends = self._planned.ledger.ends
        for partition, end in self._brokers.state.ends.items():
            begin = max(ends.get(partition, 0), self._brokers.state.starts[partition])
            if begin < end:
                yield OffsetRange(partition, begin, end), NOT_PLANNED

    def _wrong_with(self, offsets: OffsetRange) -> Iterator[str]:
        state, runs = self.state(offsets), self._planned.runs_of(offsets)
        moved = ", and the group was moved past it" if self._is_passed(offsets) else ""
        if runs and runs[-1].state == "failed" and not is_done(self._planned, offsets):
            yield f"its run failed{moved}"
        elif state == "not confirmed":
            yield f"its run succeeded, and no task has said that it was processed{moved}"
        elif state == "no run":
            yield "planned, and without a run"
        elif state == "unknown" and offsets in self._had_time and offsets.partition in self._stored:
            yield "no run of it is kept, and the group has not passed it"
        elif state in {"processed", "passed"}:
            for table in self._tables:
                if not _has(table, offsets):
                    yield f"{state}, and not in table {table.name}"

    @property
    def _same_topic(self) -> bool:
        state = self._brokers.state if self._brokers else None
        return state is not None and state.incarnation == self._planned.ledger.incarnation

    # -- read partitions --------------------------------------------------------------------

    def processed(self) -> dict[int, int]:
        """Up to where nothing is left to process, by read partition."""
        return processed(self._planned, self._stored)

    def partitions(self) -> list[PartitionView]:
        """How far each read partition is."""
        state = self._brokers.state if self._brokers and self._same_topic else None
        ledger, reached = self._planned.ledger, self.processed()
        lags: Mapping[int, Lag] = self._brokers.lag if self._brokers and state else {}
        rows = []
        for partition in sorted({*ledger.ends, *(state.ends if state else ())}):
            lag = lags.get(partition)
            held = [each.held.get(partition, []) for each in self._tables]
            rows.append(
                PartitionView(
                    partition=partition,
                    retained=state.starts.get(partition) if state else None,
                    published=state.ends.get(partition) if state else None,
                    planned=ledger.ends.get(partition, 0),
                    processed=reached.get(partition, 0),
                    in_table="; ".join(map(stretches, held)),
                    lag_batches=lag.batches if lag else None,
                    lag_records=lag.records if lag else None,
                    lag=age_in_words(lag.seconds) if lag and lag.batches else "",
                )
            )
        return rows


def processed(planned: Planned, stored: Mapping[int, int]) -> dict[int, int]:
    """Up to where nothing is left to process, by read partition.

    Where no group says what was processed before the plans that were looked at, that is taken for
    processed: the page says since when it tells what is missing.
    """
    first: dict[int, int] = {}
    for each in planned.planned_at:
        first[each.partition] = min(each.start, first.get(each.partition, each.start))
    known = {**(first if planned.older else {}), **stored}
    return settled(planned.ledger, known, done_ranges(planned))


def done_ranges(planned: Planned) -> frozenset[OffsetRange]:
    """The ranges that are processed, as Airflow knows it."""
    return frozenset(each for each in planned.planned_at if is_done(planned, each))


def is_done(planned: Planned, offsets: OffsetRange) -> bool:
    """Whether a task has said that it processed a range; a run may be marked by hand."""
    return range_key(offsets) in planned.done


def _has(table: TableState, offsets: OffsetRange) -> bool:
    whole = Interval(offsets.start, offsets.end)
    return intersection(table.held.get(offsets.partition, []), whole) == [whole]
