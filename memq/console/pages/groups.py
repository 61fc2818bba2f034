"""Groups: who reads what, and how far behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.figures import figures
from memq.console.listing import listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.console.listing import Listing
    from memq.console.visit import Visit

COLUMNS = {
    "group": "Group",
    "topic": "Topic",
    "members": "Members",
    "lag_records": "Lag, records",
    "lag_s": "Lag, time",
    "records_out_s": "Reads, records/s",
}


@dataclass(frozen=True)
class Groups:
    """A page of the list, with the titles of its columns, and why brokers told nothing."""

    shown: Listing
    columns: Mapping[str, str]
    silent: Mapping[str, str]


async def page(visit: Visit) -> Groups:
    """Ask each broker once."""
    found = await figures(visit.admin.cluster, list_groups=True)
    rows = listing(found.groups, visit.query, [*COLUMNS], ["group", "topic"])
    return Groups(rows, COLUMNS, found.silent)
