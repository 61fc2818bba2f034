"""What a user may see: what Airflow's own pages would show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

RUNS, RESULTS = DagAccessEntity.RUN, DagAccessEntity.XCOM


class Access:
    """Asks Airflow's auth manager what a user may read, each thing once.

    Args:
        user: who asks.
    """

    def __init__(self, user: BaseUser) -> None:
        self._user = user
        self._known: dict[tuple[str, DagAccessEntity], bool] = {}

    def __repr__(self) -> str:
        return f"<Access of {self._user.get_name()}>"

    def may_read(self, dag_id: str, entity: DagAccessEntity = RUNS) -> bool:
        """Whether he may read the runs of a DAG, or the results of its tasks."""
        known = self._known.get((dag_id, entity))
        if known is None:
            details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
            known = get_auth_manager().is_authorized_dag(
                method="GET", access_entity=entity, details=details, user=self._user
            )
            self._known[dag_id, entity] = known
        return known

    def readable(self, dag_ids: Iterable[str], entity: DagAccessEntity = RUNS) -> tuple[str, ...]:
        """Those of some DAGs that he may read."""
        return tuple(each for each in dag_ids if self.may_read(each, entity))
