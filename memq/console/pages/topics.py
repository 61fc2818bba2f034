"""Topics: rates, what is retained, and how far the worst group is."""

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
    "topic": "Topic",
    "records_in_s": "In, records/s",
    "bytes_in_s": "In, bytes/s",
    "records_out_s": "Out, records/s",
    "records": "Records",
    "size_bytes": "Size",
    "groups": "Groups",
    "lag_records": "Lag, records",
    "lag_s": "Lag, time",
}


@dataclass(frozen=True)
class Topics:
    """A page of the list, with the titles of its columns, and why brokers told nothing."""

    shown: Listing
    columns: Mapping[str, str]
    silent: Mapping[str, str]


async def page(visit: Visit) -> Topics:
    """Ask each broker once."""
    found = await figures(visit.admin.cluster)
    return Topics(listing(found.topics, visit.query, [*COLUMNS], ["topic"]), COLUMNS, found.silent)
