"""Tell what became of the ranges of a topic, what is missing, and what its audit has come to.

All of it is plain data, for the templates and for JSON.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from airflow_provider_memq.planning.ledger import processed_ahead
from airflow_provider_memq.planning.ranges import range_key, to_row
from memq.core.audit.result import Verdict
from memq.core.ranges import Interval, OffsetRange, difference, intersection, union
from memq.core.units import HOUR_MS, iso_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider_memq.page.queries import Brokers, Planned, Run, TableView

MAX_SHOWN = 50  # ranges of a page, and what is missing
MAX_STRETCHES = 5  # of offsets in a table, in a cell
MAX_LOST = 10  # windows that are named at the top of a page
HOURS = 24  # whose verdicts are shown


# -- plans ----------------------------------------------------------------------------------


class TopicProgress(NamedTuple):
    """What became of the ranges of some plans.

    Attributes:
        planned: the plans, with runs and what is processed.
        brokers: what they say of the topic.
        tables: what tables have; those that could be read.
        troubles: why something could not be read, a line each.
        now: the time.
    """

    planned: Planned
    brokers: Brokers
    tables: Sequence[TableView]
    troubles: Sequence[str]
    now: datetime

    @property
    def notes(self) -> list[str]:
        """What is not known, a line each."""
        ahead = processed_ahead(self.planned.ledger, self.brokers.stored, ())
        told = f"more is processed than Airflow knows to be planned: {ahead}"
        return [*self.troubles, *([told] if ahead else [])]

    def page(self) -> dict[str, Any]:
        """Tell how far a topic is."""
        ledger, pipeline = self.planned.ledger, self.planned.pipeline
        rows = [self.row(each) for each in self.planned.planned_at]
        missing = [*(each for each in rows if each["why"]), *self._not_planned()]
        return {
            "notes": self.notes,
            "topic_id": ledger.topic_id,
            "dags": [pipeline.plan_dag, *pipeline.process_dags],
            "tables": pipeline.tables,
            "removed": sum(each.size for each in ledger.gaps),
            "partitions": list(self.partitions()),
            "missing": missing[:MAX_SHOWN],
            "missing_count": len(missing),
            "since": self.planned.since,
            "ranges": rows[::-1][:MAX_SHOWN],
            "ranges_count": len(rows),
        }

    # -- ranges -----------------------------------------------------------------------------

    def row(self, offsets: OffsetRange) -> dict[str, Any]:
        """Tell what became of a range.

        Its `state` is "waiting" for a run, "no run", the state of its last run, "processed", "in
        table"; "not confirmed" where its run succeeded, and no task has said that it processed it;
        or "passed" by the group, where nothing else is known of it. It is missing where it has a
        `why`.
        """
        key = range_key(offsets)
        runs = self.planned.runs.get(key, ())
        state = self._state(offsets, runs)
        found = (each.snapshots.get(offsets) for each in self.tables)
        return {
            **to_row(offsets),
            "key": key,
            "planned": self.planned.planned_at[offsets],
            "state": state,
            "why": self._why(offsets, runs, state),
            "runs": runs,
            "snapshots": [each for each in found if each],
        }

    def _state(self, offsets: OffsetRange, runs: Sequence[Run]) -> str:
        if self.tables and not self._absent(offsets):
            return "in table"
        if range_key(offsets) in self.planned.done:
            return "processed"
        if runs:
            is_marked = runs[-1].state == "success" and self.planned.pipeline.done
            return "not confirmed" if is_marked else runs[-1].state
        if self._is_passed(offsets):
            return "passed"
        return "no run" if self._is_late(offsets) else "waiting"

    def _why(self, offsets: OffsetRange, runs: Sequence[Run], state: str) -> str:
        moved = ", and the group was moved past it" if self._is_passed(offsets) else ""
        if runs and runs[-1].state == "failed" and range_key(offsets) not in self.planned.done:
            return f"its run failed{moved}"
        match state:
            case "not confirmed":
                return f"its run succeeded, and no task has said that it was processed{moved}"
            case "no run":
                return "planned, and without a run"
            case "processed" | "passed" if absent := self._absent(offsets):
                return f"{state}, and not in table {', '.join(absent)}"
        return ""

    def _absent(self, offsets: OffsetRange) -> list[str]:
        """Name the tables that do not have all of a range."""
        all_of_it = Interval(offsets.start, offsets.end)
        return [
            each.name
            for each in self.tables
            if intersection(each.held.get(offsets.partition, []), all_of_it) != [all_of_it]
        ]

    def _is_passed(self, offsets: OffsetRange) -> bool:
        """Return whether the group has passed a range: by commits, or because it was moved."""
        return offsets.end <= self.brokers.stored.get(offsets.partition, 0)

    def _is_late(self, offsets: OffsetRange) -> bool:
        """Return whether a range should have its run by now."""
        waited = self.now - self.planned.planned_at[offsets]
        return waited >= timedelta(milliseconds=self.planned.pipeline.missed_after_ms)

    # -- offsets ----------------------------------------------------------------------------

    def _not_planned(self) -> Iterator[dict[str, Any]]:
        """Name offsets that are in no range: not planned yet, or removed before."""
        for partition, end in self.brokers.ends.items():
            planned = self.planned.ledger.ends.get(partition, 0)
            start = max(planned, self.brokers.starts[partition])
            if start < end:
                offsets = to_row(OffsetRange(partition, start, end))
                yield {**offsets, "key": "", "why": "published, and not planned yet"}
        for gap in self.planned.ledger.gaps:
            yield {**to_row(gap), "key": "", "why": "removed by retention before it was planned"}

    def partitions(self) -> Iterator[dict[str, Any]]:
        """Tell how far each read partition is, as next offsets; None where nobody said."""
        planned, brokers = self.planned.ledger.ends, self.brokers
        processed = self.planned.processed(brokers.stored)
        for partition in sorted({*planned, *brokers.ends}):
            lag = brokers.lag.get(partition)
            held = [_stretches(each.held.get(partition, ())) for each in self.tables]
            yield {
                "partition": partition,
                "retained": brokers.starts.get(partition),
                "published": brokers.ends.get(partition),
                "planned": planned.get(partition, 0),
                "processed": processed.get(partition, 0),
                "in_table": "; ".join(held) or None,
                "lag_batches": lag and lag.batches,
                "lag_records": lag and lag.records,
                "lag": lag and str(timedelta(seconds=round(lag.seconds))),
            }


def _stretches(intervals: Iterable[Interval]) -> str:
    """Put offsets in words, such as "0 to 34, 40"; the first stretches of them, or "none"."""
    words = [f"{a} to {b - 1}" if b - a > 1 else f"{a}" for a, b in intervals]
    return ", ".join([*words[:MAX_STRETCHES], *["…"] * (len(words) > MAX_STRETCHES)]) or "none"


# -- audits ---------------------------------------------------------------------------------


class _Window(msgspec.Struct):
    """A window of time as an audit returns it."""

    start: Annotated[datetime, msgspec.Meta(tz=True)]
    end: Annotated[datetime, msgspec.Meta(tz=True)]
    verdict: Verdict
    table: str | None = None
    made_up: list[_Window] = []


class _JudgedHour(NamedTuple):
    """A window that was judged, and those parts of it on which the verdict is the newest."""

    window: Interval
    verdict: Verdict
    table: str | None
    run: Run
    newest: Sequence[Interval] = ()

    def found(self, suffix: str = "") -> dict[str, Any]:
        """Give what was found, for a page."""
        words, window = self.verdict + suffix, " to ".join(map(iso_ms, self.window))
        return {"words": words, "window": window, "run": self.run, "table": self.table}


def audit_of(results: Mapping[str, Iterable[tuple[Run, Any]]], now: datetime) -> dict[str, Any]:
    """Tell the verdicts of the last hours, by the results of tasks about "stored" and "consumed".

    The newest verdict on a time counts; "partly judged" counts only where there is no other.

    Returns:
        `hours`, the newest first: `start`, and what was found of it as `stored` and `consumed`;
        `lost`: windows of these hours that were found not clean, and not clean since, each with
        `what` was judged: "stored" or "consumed";
        `last_clean`: the window that ends last of those found clean; None where none is.
        What was found has `words`, the `window`, the `run` that judged, and the `table` of its
        findings.
    """
    judged = {what: list(_newest(each)) for what, each in results.items()}
    now_ms = int(now.timestamp() * 1000)
    end_ms = now_ms // HOUR_MS * HOUR_MS
    since_ms = end_ms - HOURS * HOUR_MS
    lost = [
        each.found() | {"what": what}
        for what, every in judged.items()
        for each in every
        if each.verdict is Verdict.UNCLEAN and intersection(each.newest, Interval(since_ms, now_ms))
    ]
    clean = [each for each in judged["stored"] if each.verdict is Verdict.CLEAN]
    intact = [each for each in clean if each.newest == [each.window]]
    last = max(intact, key=lambda each: each.window.end, default=None)
    hours = [
        {"start": iso_ms(start_ms)}
        | {what: _of_hour(start_ms, every) for what, every in judged.items()}
        for start_ms in reversed(range(since_ms, end_ms, HOUR_MS))
    ]
    return {"hours": hours, "lost": lost[:MAX_LOST], "last_clean": last and last.found()}


def _newest(results: Iterable[tuple[Run, Any]]) -> Iterator[_JudgedHour]:
    """Find the parts of each window on which no later verdict counts; windows without are left."""
    known: list[Interval] = []
    # In the order of results, the newest first.
    for each in sorted(_judged(results), key=lambda each: each.verdict is Verdict.PARTLY):
        if newest := difference([each.window], known):
            yield each._replace(newest=newest)
            known = union(sorted([*known, each.window]))


def _judged(results: Iterable[tuple[Run, Any]]) -> Iterator[_JudgedHour]:
    """Read the windows that runs judged; what is none is left out, for anybody may return one."""
    for run, value in results:
        try:
            own = msgspec.convert(value, _Window)
        except msgspec.ValidationError:
            continue
        for each in (own, *own.made_up):
            window = Interval(*(round(at.timestamp() * 1000) for at in (each.start, each.end)))
            yield _JudgedHour(window, each.verdict, each.table, run)


def _of_hour(start_ms: int, judged: Sequence[_JudgedHour]) -> dict[str, Any]:
    """Judge an hour: the worst of the verdicts on its parts; none before the first audit."""
    hour = Interval(start_ms, start_ms + HOUR_MS)
    found = [each for each in judged if intersection(each.newest, hour)]
    if not found:
        is_after = any(each.window.start < start_ms for each in judged)
        return {"words": "not audited" if is_after else "", "run": None, "table": None}
    worst = max(found, key=lambda each: list(Verdict).index(each.verdict))
    is_part = difference([hour], union(sorted(each.window for each in found)))
    return worst.found(" (part of the hour)" if is_part else "")
