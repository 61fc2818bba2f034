"""What a page is made of: facts from Airflow's database, brokers, tables and manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_memq.ranges import range_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from airflow_provider_memq.ledger import Ledger, StoredPlan
    from airflow_provider_memq.topics import TopicState
    from memq.client.lag import Lag
    from memq.core.ranges import Interval, OffsetRange


class Run(NamedTuple):
    """A DAG run of a range, or of an audit.

    Attributes:
        dag_id: of the DAG.
        run_id: of the run.
        state: of the run: "queued", "running", "success" or "failed".
        at: when it was to run; of a run of an audit, when it stored its result.
        result: what its task returned, where that was asked for.
    """

    dag_id: str
    run_id: str
    state: str
    at: datetime
    result: Mapping[str, Any] | None = None


class Pipeline(NamedTuple):
    """The tasks and assets of a planned topic, as Airflow knows them.

    Attributes:
        topic: the topic.
        ranges: name of the asset of its ranges.
        plan_dag: DAG that plans.
        process_dags: those that are scheduled on the ranges.
        done: names of the assets of processed ranges.
        conn_id: connection to the brokers; empty where no run says.
        group: the consumer group that follows; empty where no run says.
        tables: tables that ranges are put into.
        missed_after: how long after its plan a range has its run, or gets none, as the planner was
            told; empty where no run says.
        hidden_dags: how many DAGs process ranges whose runs are not to be shown.
        own_dag: which of the DAGs processes, as the planner knows it; empty where it does not say.
    """

    topic: str
    ranges: str
    plan_dag: str
    process_dags: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    conn_id: str = ""
    group: str = ""
    tables: tuple[str, ...] = ()
    missed_after: str = ""
    hidden_dags: int = 0
    own_dag: str = ""


class Planned(NamedTuple):
    """The plans of some time, and what became of their ranges.

    Attributes:
        ledger: how far is planned, by the last plan of all.
        plans: those of that time and of the topic's incarnation, the oldest first.
        older: there are plans before them.
        before: when that time ends; None for now.
        runs: of each range by its key, the oldest first.
        done: keys of the ranges of which a task has said that it processed them.
        all_have_runs: what was planned before has its run, or had it until Airflow's database was
            cleaned; None where that is not known.
        own_dag: the DAG that processes, as the planner knows it; empty where it does not say.
        is_told: tasks say what they have processed.
    """

    ledger: Ledger
    plans: list[StoredPlan]
    older: bool = False
    before: datetime | None = None
    runs: Mapping[str, list[Run]] = {}
    done: frozenset[str] = frozenset()
    all_have_runs: datetime | None = None
    own_dag: str = ""
    is_told: bool = True

    def runs_of(self, offsets: OffsetRange, *, own: bool = True) -> list[Run]:
        """The runs of a range by the DAG that processes, or by others; the oldest first."""
        runs = self.runs.get(range_key(offsets), ())
        return [each for each in runs if (self.own_dag in ("", each.dag_id)) is own]

    @property
    def planned_at(self) -> dict[OffsetRange, datetime]:
        """When each range was planned, the oldest first."""
        return {each: plan.at for plan in self.plans for each in plan.ledger.ranges}


class Brokers(NamedTuple):
    """What the brokers say of a topic.

    Attributes:
        state: of the topic.
        stored: next offsets of the group that follows.
        lag: what is published and not processed, by read partition.
    """

    state: TopicState
    stored: dict[int, int]
    lag: dict[int, Lag]


class Snapshot(NamedTuple):
    """A snapshot of a table that has added a range.

    Attributes:
        table: the table.
        snapshot_id: of the snapshot.
        committed_ms: when, milliseconds since 1970 UTC.
        records: rows of the range.
        job: that did.
    """

    table: str
    snapshot_id: int
    committed_ms: int
    records: int
    job: str


class TableState(NamedTuple):
    """What a table has of one incarnation of a topic.

    Attributes:
        name: of the table.
        held: offsets that are in, by read partition.
        snapshots: by the range they added, without its incarnation; those that have not expired.
    """

    name: str
    held: dict[int, list[Interval]]
    snapshots: dict[OffsetRange, Snapshot]


class AuditTask(NamedTuple):
    """A task that audits a topic, and what it has found lately.

    Attributes:
        dag_id: of its DAG.
        consumed: it audits what was consumed, and not what was stored.
        runs: with what they have found, the newest first.
    """

    dag_id: str
    consumed: bool
    runs: list[Run]


class Audits(NamedTuple):
    """What was audited of a topic.

    Attributes:
        tasks: that audit it.
        audited: windows of time of which what was stored was judged, milliseconds since 1970 UTC.
    """

    tasks: list[AuditTask]
    audited: list[Interval]
