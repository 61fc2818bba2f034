"""What became of the ranges of a topic, and what is missing.

Everything here is computed from facts. What is missing is told by the functions that the operators
use: `ranges_without_run` of the planner, `settled` of the commit, and the table's own ledger.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_memq.planning.missed import ranges_without_run
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.values import duration_ms_or
from memq.core.ranges import Interval, OffsetRange, intersection, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_provider_memq.plugins.outside import Brokers, Snapshot, TableState
    from airflow_provider_memq.plugins.queries import Pipeline, Planned, Run
    from memq.client.lag import Lag

MISSED_AFTER_MS = 300_000  # where the planner does not say; its default
MAX_STRETCHES = 5  # of offsets in a table, in a cell
REMOVED = "removed by retention before it was planned"
NOT_PLANNED = "published, and not planned yet"
_LAST = {NOT_PLANNED: 1, REMOVED: 2}  # of what is missing: what is wrong with ranges comes first


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range that was planned.

    Attributes:
        key: of the range.
        partition: read partition.
        start: first offset.
        end: one past the last.
        planned: when.
        state: "waiting" for a run, "no run", the state of its last run, "processed", "in table";
            "not confirmed" where its run succeeded, and no task has said that it processed it;
            "passed" by the group, where nothing else is known of it; or "unknown" of what Airflow's
            database was cleaned.
        runs: of the DAG that processes, the oldest first.
        others: runs of other DAGs.
        snapshots: one for each table that has it, as far as they have not expired.
    """

    key: str
    partition: int
    start: int
    end: int
    planned: datetime
    state: str
    runs: list[Run]
    others: list[Run]
    snapshots: list[Snapshot]


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Offsets that are not where they should be.

    Attributes:
        partition: read partition.
        start: first offset.
        end: one past the last.
        why: in words.
        key: of the first range in it; empty where there is none.
    """

    partition: int
    start: int
    end: int
    why: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How far a read partition is; an offset is one past the last.

    Attributes:
        partition: read partition.
        retained: first offset; None where the brokers did not say.
        published: likewise.
        planned: up to there.
        processed: up to there, without a gap.
        in_table: stretches of offsets that the tables have, in words; None where none could be
            read.
        lag_batches: published and not processed.
        lag_records: LogMessages in them.
        lag: age of the oldest of them, in words.
    """

    partition: int
    retained: int | None
    published: int | None
    planned: int
    processed: int
    in_table: str | None
    lag_batches: int | None
    lag_records: int | None
    lag: str | None


class Progress:
    """What became of the ranges of some plans.

    Args:
        pipeline: who plans and processes. Where runs are hidden, no range is said to have none.
        planned: the plans, with runs and what is processed.
        brokers: what they say of the topic that is planned; None when they are away.
        tables: what tables have; those that could be seen.
        now: the time.

    Raises:
        ConfigError: the planner was told to wait for runs for what is no time.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        planned: Planned,
        brokers: Brokers | None,
        tables: Sequence[TableState],
        now: datetime,
    ) -> None:
        self._planned, self._brokers, self._tables = planned, brokers, tables
        self._is_told = bool(pipeline.done)
        self._at = planned.planned_at
        self._stored = brokers.stored if brokers else {}
        self._missed: set[str] = set()
        self._waiting: set[str] = set()
        self._had_time: set[OffsetRange] = set()  # to get a run
        if not pipeline.hidden_dags:
            missed_after_ms = duration_ms_or(MISSED_AFTER_MS, pipeline.missed_after)
            settled = now - timedelta(milliseconds=missed_after_ms)
            begin = pipeline.all_have_runs
            plans = [each for each in planned.plans if begin is None or each.at >= begin]
            found = ranges_without_run(plans, planned.runs.keys(), settled)
            self._missed, self._waiting = set(found.again), set(found.waiting)
            self._had_time = {each for each, at in self._at.items() if at <= settled}

    def __repr__(self) -> str:
        return f"<Progress [{len(self._at)} ranges]>"

    # -- ranges -----------------------------------------------------------------------------

    def newest(self, most: int) -> list[Range]:
        """Give the newest ranges, the newest first."""
        return [self.range(each) for each in list(self._at)[::-1][:most]]

    def range(self, offsets: OffsetRange) -> Range:
        """Give one range of the plans."""
        key = range_key(offsets)
        return Range(
            key=key,
            partition=offsets.partition,
            start=offsets.start,
            end=offsets.end,
            planned=self._at[offsets],
            state=self._state(offsets),
            runs=self._planned.runs.get(key, []),
            others=self._planned.others.get(key, []),
            snapshots=[
                each.snapshots[offsets] for each in self._tables if offsets in each.snapshots
            ],
        )

    def _state(self, offsets: OffsetRange) -> str:
        key = range_key(offsets)
        if self._tables and all(_has(table, offsets) for table in self._tables):
            return "in table"
        if key in self._planned.done:
            return "processed"
        if runs := self._planned.runs.get(key):
            is_marked = runs[-1].state == "success" and self._is_told
            return "not confirmed" if is_marked else runs[-1].state
        if self._is_passed(offsets):
            return "passed"
        if key in self._missed:
            return "no run"
        return "waiting" if key in self._waiting else "unknown"

    def _is_passed(self, offsets: OffsetRange) -> bool:
        """Whether the group has come past a range: by commits, or because it was moved."""
        return offsets.end <= self._stored.get(offsets.partition, 0)

    # -- what is missing --------------------------------------------------------------------

    def missing(self) -> list[Missing]:
        """Name offsets that are not where they should be: of ranges, not planned, then removed."""
        found: dict[tuple[int, str], list[Interval]] = defaultdict(list)
        for offsets, why in self._missing():
            found[offsets.partition, why].append(Interval(offsets.start, offsets.end))
        keys = {(each.partition, each.start): range_key(each) for each in self._at}
        every = (
            Missing(
                partition=partition,
                start=start,
                end=end,
                why=why,
                key="" if why in _LAST else keys[partition, start],
            )
            for (partition, why), intervals in found.items()
            for start, end in union(sorted(intervals))
        )
        return sorted(every, key=lambda each: (_LAST.get(each.why, 0), each.partition, each.start))

    def _missing(self) -> Iterator[tuple[OffsetRange, str]]:
        for gap in self._planned.ledger.gaps:
            yield gap, REMOVED
        for offsets in self._at:
            yield from ((offsets, why) for why in self._wrong_with(offsets))
        if self._brokers is None:
            return
        ends = self._planned.ledger.ends
        for partition, end in self._brokers.state.ends.items():
            begin = max(ends.get(partition, 0), self._brokers.state.starts[partition])
            if begin < end:
                yield OffsetRange(partition, begin, end), NOT_PLANNED

    def _wrong_with(self, offsets: OffsetRange) -> Iterator[str]:
        key, state = range_key(offsets), self._state(offsets)
        runs = self._planned.runs.get(key)
        moved = ", and the group was moved past it" if self._is_passed(offsets) else ""
        if runs and runs[-1].state == "failed" and key not in self._planned.done:
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

    # -- read partitions --------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        """Tell how far each read partition is."""
        state = self._brokers.state if self._brokers else None
        ends, processed = self._planned.ledger.ends, self._planned.processed(self._stored)
        rows = []
        for partition in sorted({*ends, *(state.ends if state else ())}):
            lag = self._brokers.lag.get(partition) if self._brokers else None
            held = [_stretches(each.held.get(partition, ())) for each in self._tables]
            rows.append(
                Partition(
                    partition=partition,
                    retained=state.starts.get(partition) if state else None,
                    published=state.ends.get(partition) if state else None,
                    planned=ends.get(partition, 0),
                    processed=processed.get(partition, 0),
                    in_table="; ".join(held) if held else None,
                    lag_batches=lag.batches if lag else None,
                    lag_records=lag.records if lag else None,
                    lag=_age(lag) if lag else None,
                )
            )
        return rows


def _has(table: TableState, offsets: OffsetRange) -> bool:
    whole = Interval(offsets.start, offsets.end)
    return intersection(table.held.get(offsets.partition, []), whole) == [whole]


def _stretches(intervals: Iterable[Interval]) -> str:
    """Put offsets in words, such as "0 to 34, 40"; the first stretches of them, or "none"."""
    words = [f"{a} to {b - 1}" if b - a > 1 else f"{a}" for a, b in intervals]
    return ", ".join([*words[:MAX_STRETCHES], *["…"] * (len(words) > MAX_STRETCHES)]) or "none"


def _age(lag: Lag) -> str:
    return str(timedelta(seconds=round(lag.seconds))) if lag.batches else "none"
