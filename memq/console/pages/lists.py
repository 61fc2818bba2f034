"""Topics, groups and clients: rows that every broker tells, sorted, filtered and cut into pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.figures import connections, group_figures, topic_figures
from memq.console.listing import listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.client.figures import Told
    from memq.console.listing import Listing
    from memq.console.visit import Visit

TOPICS = {
    "topic": "Topic", "records_in_s": "In, records/s", "bytes_in_s": "In, bytes/s",
    "records_out_s": "Out, records/s", "records": "Records", "size_bytes": "Size",
    "groups": "Groups", "lag_records": "Lag, records", "lag_s": "Lag, time",
}  # fmt: skip
GROUPS = {
    "group": "Group", "topic": "Topic", "members": "Members", "lag_records": "Lag, records",
    "lag_s": "Lag, time", "records_out_s": "Reads, records/s",
}  # fmt: skip
CLIENTS = {
    "principal": "Principal", "client": "Client", "version": "Version", "address": "Address",
    "broker": "Broker", "bytes_in": "In", "bytes_out": "Out", "throttled_ms": "Throttled",
    "connected_ms": "Since",
}  # fmt: skip


@dataclass(frozen=True)
class List:
    """A page of a list, with the titles of its columns, and why brokers did not tell all."""

    shown: Listing
    columns: Mapping[str, str]
    silent: Mapping[str, str]


def _list(told: Told, visit: Visit, columns: Mapping[str, str], *names: str) -> List:
    return List(listing(told.rows, visit.query, [*columns], names), columns, told.silent)


async def topics(visit: Visit) -> List:
    """List topics: rates, what is retained, how far the worst group is."""
    return _list(await topic_figures(visit.admin.cluster), visit, TOPICS, "topic")


async def groups(visit: Visit) -> List:
    """List groups: who reads what, and how far behind."""
    return _list(await group_figures(visit.admin.cluster), visit, GROUPS, "group", "topic")


async def clients(visit: Visit) -> List:
    """List clients: who, from where, since when, and how much they send and get."""
    found = await connections(visit.admin.cluster)
    return _list(found, visit, CLIENTS, "principal", "client", "address", "broker")
