"""The pages as data: plain dataclasses, of which each is also the page's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.core.units import iso_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider_memq.plugins.facts import Run, Snapshot
    from airflow_provider_memq.plugins.hours import AuditView, VerdictView
    from memq.core.ranges import Interval

MAX_STRETCHES = 5  # of offsets in a table, in a cell


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A DAG run of a range."""

    dag_id: str
    run_id: str
    state: str
    at: str
    href: str


@dataclass(frozen=True, kw_only=True)
class SnapshotView:
    """The snapshot of a table that has added a range."""

    table: str
    snapshot_id: str  # text: JavaScript counts to 2**53
    committed: str
    records: int
    job: str


@dataclass(frozen=True, kw_only=True)
class RangeView:
    """A range that was planned.

    Attributes:
        key: of the range.
        partition: read partition.
        start: first offset.
        end: one past the last.
        planned: when; empty where that is not known.
        state: "waiting" for a run, "no run", the state of its last run, "processed", "in table";
            "not confirmed" where its run succeeded, and no task has said that it processed it;
            "passed" by the group, where nothing else is known of it; "unknown" of what Airflow's
            database was cleaned; or, of a range in none of the plans, "not planned" or "of another
            incarnation" of the topic.
        runs: of the DAG that processes, the oldest first.
        others: runs of other DAGs.
        snapshots: one for each table that has it, as far as they have not expired.
        href: its page.
    """

    key: str
    partition: int
    start: int
    end: int
    planned: str
    state: str
    runs: list[RunView]
    others: list[RunView]
    snapshots: list[SnapshotView]
    href: str


@dataclass(frozen=True, kw_only=True)
class MissingView:
    """Offsets that are not where they should be.

    Attributes:
        partition: read partition.
        start: first offset.
        end: one past the last.
        why: in words.
        href: the page of the first range in it; empty where there is none.
    """

    partition: int
    start: int
    end: int
    why: str
    href: str = ""


@dataclass(frozen=True, kw_only=True)
class PartitionView:
    """How far a read partition is; an offset is one past the last.

    Attributes:
        partition: read partition.
        retained: first offset; None where the brokers did not say.
        published: likewise.
        planned: up to there.
        processed: up to there, without a gap.
        in_table: stretches of offsets that the tables have, in words; empty where none could be
            read.
        lag_batches: published and not processed.
        lag_records: LogMessages in them.
        lag: age of the oldest of them, in words; empty where there are none, or nobody knows.
    """

    partition: int
    retained: int | None
    published: int | None
    planned: int
    processed: int
    in_table: str
    lag_batches: int | None
    lag_records: int | None
    lag: str


@dataclass(frozen=True, kw_only=True)
class TopicView:
    """The page of a topic.

    Attributes:
        topic: the topic.
        at: when it was looked at.
        asset: of its ranges, where it was asked for by name.
        incarnation: of the topic that is planned.
        dags: addresses of the DAGs that plan and process, by id.
        tables: that ranges are put into.
        notes: what could not be seen, a line each.
        lost: what the audit has found, and what retention removed before it was planned.
        stored_through: everything received before this time and acked is published; empty where
            the brokers did not say.
        partitions: how far each is; none on a page of older ranges.
        missing: what is not where it should be.
        more_missing: of those, so many are not shown.
        since: missing ranges are told of what was planned since then; empty for all.
        until: and before then; empty for now.
        ranges: those of this page, the newest first.
        older: address of the page with those before; empty for the last.
        audit: verdicts by hour; None where nobody audits.
    """

    topic: str
    at: str
    asset: str = ""
    incarnation: str = ""
    dags: dict[str, str] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: list[VerdictView] = field(default_factory=list)
    stored_through: str = ""
    partitions: list[PartitionView] = field(default_factory=list)
    missing: list[MissingView] = field(default_factory=list)
    more_missing: int = 0
    since: str = ""
    until: str = ""
    ranges: list[RangeView] = field(default_factory=list)
    older: str = ""
    audit: AuditView | None = None


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    """A topic in the list of them.

    Attributes:
        topic: the topic.
        ranges: name of the asset of its ranges; empty where nobody plans.
        href: its page.
        planned: when its last plan was; empty likewise.
        dags: addresses of the DAGs that plan, or else audit, by id.
    """

    topic: str
    ranges: str
    href: str
    planned: str
    dags: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class IndexView:
    """The list of topics.

    Attributes:
        topics: that are planned or audited.
        notes: what could not be told, a line each.
    """

    topics: list[TopicRow]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class ResultView:
    """What a run has returned: the manifest of its range, without the names of its files.

    Attributes:
        run_id: of the run.
        task: that returned it.
        href: Airflow's page of the task.
        manifest: path of the manifest.
        fields: what it says.
    """

    run_id: str
    task: str
    href: str
    manifest: str
    fields: dict[str, str | int | float | bool | None]


@dataclass(frozen=True, kw_only=True)
class RangePageView:
    """The page of a range.

    Attributes:
        topic: the topic.
        topic_href: its page.
        range: the range.
        results: what its runs returned, the oldest first.
        tables: that ranges are put into.
        notes: what could not be seen, a line each.
    """

    topic: str
    topic_href: str
    range: RangeView
    results: list[ResultView]
    tables: list[str]
    notes: list[str]


# -- parts of them ----------------------------------------------------------------------------


def run_view(run: Run, address: Callable[[Run], str]) -> RunView:
    """A run as a page shows it."""
    return RunView(
        dag_id=run.dag_id,
        run_id=run.run_id,
        state=run.state,
        at=run.at.isoformat(timespec="seconds"),
        href=address(run),
    )


def snapshot_view(snapshot: Snapshot) -> SnapshotView:
    """A snapshot as a page shows it."""
    return SnapshotView(
        table=snapshot.table,
        snapshot_id=str(snapshot.snapshot_id),
        committed=iso_ms(snapshot.committed_ms),
        records=snapshot.records,
        job=snapshot.job,
    )


def stretches(intervals: Iterable[Interval]) -> str:
    """Offsets in words, such as "0 to 34, 40"; the first stretches of them, or "none"."""
    every = list(intervals)
    if not every:
        return "none"
    words = [f"{a} to {b - 1}" if b - a > 1 else f"{a}" for a, b in every[:MAX_STRETCHES]]
    return ", ".join([*words, *(["…"] if len(every) > MAX_STRETCHES else [])])


def age_in_words(seconds: float) -> str:
    """A time that has passed, in the unit that suits it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
