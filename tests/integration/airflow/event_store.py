"""Airflow's memory of asset events, as far as an operator sees it: what a success commits.

Operators run here by their `execute`, against a real broker. What Airflow itself does with events
is tested in a real Airflow; this makes hundreds of tries, crashes and retries take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

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


@dataclass
class EventStore:
    """Committed asset events by asset name, and the XComs of the last try."""

    events: dict[str, list[Any]] = field(default_factory=dict)
    xcoms: dict[str, Any] = field(default_factory=dict)
    clock: datetime = BEGIN

    def __getitem__(self, asset: Any) -> View:
        return View(self.events.setdefault(asset.name, []))

    def keys(self, asset: Any) -> list[str]:
        """Partition keys of an asset's events, oldest first."""
        return [each.partition_key for each in self[asset] if each.partition_key is not None]

    def add(self, asset: Any, key: str | None, extra: Any = None) -> None:
        self.clock += timedelta(seconds=1)
        event = SimpleNamespace(timestamp=self.clock, partition_key=key, extra=extra)
        self.events.setdefault(asset.name, []).append(event)

    def run(
        self,
        operator: Any,
        *,
        crash: bool = False,
        partition_key: str | None = None,
        **context: Any,
    ) -> Any:
        """Try a task once. Only a success commits events; one that crashes at its end does not.

        Args:
            operator: the task.
            crash: at its end.
            partition_key: of its DAG run, which events have whose keys the task does not name.
            **context: of the task, beside what is always there.

        Returns:
            What the task returned, or pushed before it was skipped.
        """
        outlets = OutletEventAccessors()
        self.xcoms.clear()
        try:
            result = operator.execute(
                {
                    "inlet_events": self,
                    "outlet_events": outlets,
                    "ti": SimpleNamespace(xcom_push=self.xcoms.__setitem__),
                    **context,
                }
            )
        except AirflowSkipException:
            return self.xcoms.get("return_value")
        if not crash:
            for asset in operator.outlets:
                accessor = outlets[asset]
                for key in accessor.partition_keys or {partition_key}:
                    self.add(asset, key, accessor.extra)
        return result
