"""Overview: what is wrong, with the way out; the brokers; how much comes and goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.figures import figures, plus
from memq.client.status import cluster_status

if TYPE_CHECKING:
    from memq.client.figures import TopicRow
    from memq.client.status import ClusterStatus
    from memq.console.visit import Visit

STATUS_S = 4.0


@dataclass(frozen=True)
class Overview:
    """See above.

    Attributes:
        status: of the cluster.
        problems: what is wrong, a sentence each.
        topics: how many the visitor may see.
        records_in_s, bytes_in_s, records_out_s: sums over them; None where none is known.
        worst: the topic whose worst group has the most to read; None without any.
    """

    status: ClusterStatus
    problems: list[str]
    topics: int
    records_in_s: float | None
    bytes_in_s: float | None
    records_out_s: float | None
    worst: TopicRow | None


async def page(visit: Visit) -> Overview:
    """Ask all brokers how they are."""
    status = await cluster_status(visit.admin.cluster, STATUS_S)
    found = await figures(visit.admin.cluster)
    rows = found.topics
    silent = [f"broker {name} tells no figures: {why}" for name, why in found.silent.items()]
    missing = [
        each for name, each in zip(found.silent, silent, strict=True) if name not in status.silent
    ]
    return Overview(
        status,
        [*status.problems(), *missing],
        len(rows),
        plus(each.records_in_s for each in rows),
        plus(each.bytes_in_s for each in rows),
        plus(each.records_out_s for each in rows),
        max(
            (each for each in rows if each.lag_records),
            key=lambda each: each.lag_records or 0,
            default=None,
        ),
    )
