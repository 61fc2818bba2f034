"""Facts from outside of Airflow: from brokers and tables. Each look may fail or hang."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.ledger import is_same_topic
from airflow_provider_memq.plugins.facts import Brokers, Snapshot, TableState
from airflow_provider_memq.plugins.progress import processed
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from airflow_provider_memq.topics import read_state

if TYPE_CHECKING:
    from airflow_provider_memq.plugins.facts import Pipeline, Planned
    from memq.tables.iceberg import IcebergTable

MAX_TABLES = 20  # that are open
MAX_SNAPSHOTS = 10_000  # of a table, the newest; those of a page of ranges are among them


def ask_brokers(pipeline: Pipeline, planned: Planned) -> Brokers:
    """What the brokers say of a topic.

    Raises:
        MemqError: they do not answer, or there is no such topic.
        AirflowNotFoundException: there is no such connection.
    """
    hook = MemqHook(pipeline.conn_id or DEFAULT_CONN_ID)
    with hook.topic(pipeline.topic) as client:
        state = read_state(pipeline.topic, client)
        if not is_same_topic(planned.ledger, state):
            return Brokers(state, {}, {})
        stored = client.committed(pipeline.group) if pipeline.group else {}
        reached = {**state.starts, **processed(planned, stored)}
        positions = {p: offset for p, offset in reached.items() if p in state.ends}
        return Brokers(state, stored, client.lag(positions))


def read_table(name: str, topic: str, incarnation: str) -> TableState:
    """What a table has of a topic.

    Raises:
        ConfigError: there is no such table or catalog, or no pyiceberg.
        CorruptDataError: its ledger cannot be told.
        StorageError: the catalog or the storage failed.
    """
    table = _opened(name)
    seen = table.look()
    lives = seen.ledger.topics.get(topic, {}).get(incarnation, {})
    snapshots = {
        each.range.offsets._replace(incarnation=""): Snapshot(
            name, each.snapshot_id, each.committed_ms, each.range.records, each.job
        )
        for each in table.ranges(seen.base)[-MAX_SNAPSHOTS:]
        if (each.range.topic, each.range.incarnation) == (topic, incarnation)
    }
    return TableState(
        name, {partition: list(held.intervals) for partition, held in lives.items()}, snapshots
    )


@lru_cache(MAX_TABLES)
def _opened(name: str) -> IcebergTable:
    """A table, which is kept: a catalog has connections, and is slow to close them by itself."""
    from memq.tables.iceberg import open_table  # noqa: PLC0415 - an extra

    return open_table(name)
