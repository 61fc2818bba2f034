"""Addresses of these pages, and of Airflow's own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from airflow.api_fastapi.app import API_ROOT_PATH

from airflow_provider_memq.plugins import PREFIX

if TYPE_CHECKING:
    from airflow_provider_memq.plugins.facts import Run

ROOT = API_ROOT_PATH.rstrip("/")
HOME = f"{ROOT}{PREFIX}/"


def to_topic(topic: str, **query: str) -> str:
    """The page of a topic."""
    given = {name: value for name, value in query.items() if value}
    text = f"?{urlencode(given)}" if given else ""
    return f"{HOME}topics/{_quoted(topic)}/{text}"


def to_range(topic: str, key: str, ranges: str = "") -> str:
    """The page of a range; `ranges` is the asset that it was planned to, where it says more."""
    text = f"?{urlencode({'ranges': ranges})}" if ranges else ""
    return f"{HOME}topics/{_quoted(topic)}/ranges/{_quoted(key)}/{text}"


def to_dag(dag_id: str) -> str:
    """Airflow's page of a DAG."""
    return f"{ROOT}/dags/{_quoted(dag_id)}"


def to_run(run: Run) -> str:
    """Airflow's page of a DAG run."""
    return f"{to_dag(run.dag_id)}/runs/{_quoted(run.run_id)}"


def to_task(run: Run, task_id: str) -> str:
    """Airflow's page of a task of a run."""
    return f"{to_run(run)}/tasks/{_quoted(task_id)}"


def _quoted(text: str) -> str:
    return quote(text, safe="")
