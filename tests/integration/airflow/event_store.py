"""Airflow's memory of asset events, as far as an operator sees it: what a success commits.

Operators run here by their `execute`, against a real broker. What Airflow itself does with events
is tested in a real Airflow; this makes hundreds of tries, crashes and retries take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSkipException, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_memq.operators import plan

plan.CLAIM_S = 0.0  # one task runs at a time here
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class View:
    """The events of one asset, as `inlet_events[asset]` gives them."""

    events: list[Any]
    up: bool = True
    until: datetime | None = None
    most: int | None = None

    def ascending(self, up: bool = True) -> View:
        return View(self.events, up, self.until, self.most)

    def before(self, until: datetime) -> View:
        return View(self.events, self.up, until, self.most)

    def limit(self, most: int) -> View:
        return View(self.events, self.up, self.until, most)

    def __iter__(self):
        found = [each for each in self.events if self.until is None or each.timestamp <= self.until]
        found.sort(key=lambda each: each.timestamp, reverse=not self.up)
        return iter(found[: self.most])


class State(dict[str, Any]):
    """What tasks keep of an asset, by key."""

    set = dict.__setitem__


@dataclass
class Stores:
    """As `context["asset_state_store"]`."""

    state: Any

    def __getitem__(self, asset: Any) -> State:
        return self.state(asset)


@dataclass
class Consumer:
    """A DAG that is scheduled on the partitions of an asset, and Airflow's answers about it.

    Airflow makes a run while it stores an event, unless the DAG is paused.
    """

    dag_id: str
    asset: Any
    paused: bool = False
    runs: dict[str, Any] = field(default_factory=dict)
    unfinished: int = 0
    gone: bool = False
    states: dict[str, Any] = field(default_factory=dict)
    of_others: dict[str, dict[str, Any]] = field(default_factory=dict)

    def renamed(self, dag_id: str) -> None:
        """Another DAG takes its place; Airflow keeps the runs of this one."""
        self.of_others[self.dag_id] = self.runs
        self.dag_id, self.runs = dag_id, {}

    def stored(self, asset: Any, key: str | None, at: datetime) -> None:
        if asset.name == self.asset.name and key and not self.paused:
            run_id = f"asset_triggered__{at.isoformat()}_{len(self.runs)}"
            run = SimpleNamespace(partition_key=key, run_after=at, state="success")
            self.runs[run_id] = run

    def keys(self) -> list[str]:
        """What was run, sorted."""
        return sorted(run.partition_key for run in self.runs.values())

    def get_dag(self, dag_id: str) -> Any:
        assert dag_id == self.dag_id
        if self.gone:
            detail = {"status_code": 404}
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR, detail=detail))
        return SimpleNamespace(is_paused=self.paused)

    def get_task_states(self, dag_id: str, task_ids: list[str] | None = None) -> dict[str, Any]:
        if task_ids is not None:
            return self.states
        runs = self.runs if dag_id == self.dag_id else self.of_others.get(dag_id, {})
        return {run_id: {"process": None} for run_id in runs}

    def get_dr_count(self, dag_id: str, states: list[str]) -> int:
        assert states == ["queued", "running"]
        return self.unfinished

    def send(self, asked: Any) -> Any:
        """What a supervisor answers to `GetDagRun`."""
        runs = self.runs if asked.dag_id == self.dag_id else self.of_others[asked.dag_id]
        return runs[asked.run_id]


@dataclass
class EventStore:
    """Committed asset events and state stores by asset name, and the XComs of the last try."""

    events: dict[str, list[Any]] = field(default_factory=dict)
    xcoms: dict[str, Any] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    clock: datetime = BEGIN
    consumer: Any = None

    def __getitem__(self, asset: Any) -> View:
        return View(self.events.setdefault(asset.name, []))

    def state(self, asset: Any) -> State:
        """The state store of an asset, which is written at once, whatever becomes of the task."""
        return self.states.setdefault(asset.name, State())

    def _ti(self) -> Any:
        names = ("get_dag", "get_task_states", "get_dr_count") if self.consumer else ()
        answers = {name: getattr(self.consumer, name) for name in names}
        return SimpleNamespace(xcom_push=self.xcoms.__setitem__, **answers)

    def keys(self, asset: Any) -> list[str]:
        """Partition keys of an asset's events, oldest first."""
        return [each.partition_key for each in self[asset] if each.partition_key is not None]

    def add(self, asset: Any, key: str | None, extra: Any = None) -> None:
        self.clock += timedelta(seconds=1)
        event = SimpleNamespace(timestamp=self.clock, partition_key=key, extra=extra)
        self.events.setdefault(asset.name, []).append(event)
        if self.consumer is not None:
            self.consumer.stored(asset, key, self.clock)

    def run(
        self,
        operator: Any,
        *,
        crash: bool = False,
        partition_key: str | None = None,
        resumed: dict[str, Any] | None = None,
        **context: Any,
    ) -> Any:
        """Try a task once. Only a success commits events; one that crashes at its end does not.

        Args:
            operator: the task.
            resumed: after it was deferred: `next_method` and `next_kwargs`.
            crash: at its end.
            partition_key: of its DAG run, which events have whose keys the task does not name.
            **context: of the task, beside what is always there.

        Returns:
            What the task returned, or pushed before it was skipped.
        """
        outlets = OutletEventAccessors()
        self.xcoms.clear()
        given = {
            "inlet_events": self,
            "outlet_events": outlets,
            "asset_state_store": Stores(self.state),
            "ti": self._ti(),
            **context,
        }
        try:
            if resumed is None:
                result = operator.execute(given)
            else:
                result = operator.resume_execution(**resumed, context=given)
        except AirflowSkipException:
            return self.xcoms.get("return_value")
        if not crash:
            for asset in operator.outlets:
                accessor = outlets[asset]
                for key in accessor.partition_keys or {partition_key}:
                    self.add(asset, key, accessor.extra)
        return result
