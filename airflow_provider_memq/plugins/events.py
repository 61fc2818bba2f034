"""What tasks see of an asset, its events and its state store, read from Airflow's database.

The functions of `airflow_provider_memq.ledger` and `audited` read both here as they do in a task.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow._shared.state import AssetScope
from airflow.models.asset import AssetEvent, AssetModel
from airflow.state import get_state_backend
from sqlalchemy import select

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from airflow.sdk import Asset
    from sqlalchemy.orm import Session

MAX_LOOKED = 2_000  # events that are read in search of something


@dataclass(frozen=True)
class _Events:
    """The events of an asset, as `inlet_events[asset]` gives them to a task."""

    session: Session
    name: str
    budget: list[int]
    up: bool = True
    until: datetime | None = None
    most: int = MAX_LOOKED

    def ascending(self, up: bool = True) -> _Events:
        return replace(self, up=up)

    def before(self, until: datetime) -> _Events:
        return replace(self, until=until)

    def limit(self, most: int) -> _Events:
        return replace(self, most=most)

    def __iter__(self) -> Iterator[AssetEvent]:
        order = AssetEvent.timestamp.asc() if self.up else AssetEvent.timestamp.desc()
        found = (
            select(AssetEvent)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetModel.name == self.name)
        )
        if self.until is not None:
            found = found.where(AssetEvent.timestamp <= self.until)
        rows = self.session.scalars(found.order_by(order).limit(min(self.most, self.budget[0])))
        for row in rows:
            self.budget[0] -= 1
            yield row


class StoredEvents:
    """`inlet_events` of any asset, of which `most` events in all are read."""

    def __init__(self, session: Session, most: int = MAX_LOOKED) -> None:
        self._session, self._budget = session, [most]

    def __repr__(self) -> str:
        return f"<StoredEvents [{self._budget[0]} more]>"

    def __getitem__(self, asset: Asset) -> _Events:
        return _Events(self._session, asset.name, self._budget)


class AssetState:
    """The state store of an asset, as tasks see it; to be read."""

    def __init__(self, session: Session, asset: str) -> None:
        self._session, self._asset = session, asset
        self._id = session.scalar(select(AssetModel.id).where(AssetModel.name == asset))

    def __repr__(self) -> str:
        return f"<AssetState {self._asset}>"

    def get(self, key: str) -> Any:
        """What is kept under a key; None when nothing is."""
        if self._id is None:
            return None
        scope = AssetScope(asset_id=self._id)
        text = get_state_backend().get(scope, key, session=self._session)
        return None if text is None else json.loads(text)
