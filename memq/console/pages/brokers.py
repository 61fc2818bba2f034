"""Brokers: what runs where, what is given away, versions; and how one is configured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.figures import describe_brokers
from memq.client.status import cluster_status
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memq.client.status import ClusterStatus
    from memq.console.visit import Visit

STATUS_S = 4.0


@dataclass(frozen=True)
class Brokers:
    """The cluster; `cluster` of it is None where a broker governs itself."""

    status: ClusterStatus


@dataclass(frozen=True)
class Settings:
    """The effective options of a broker; `changed` are not the default."""

    broker: str
    options: Mapping[str, str]
    changed: Collection[str]


async def page(visit: Visit) -> Brokers:
    """Ask all brokers, and the Governor."""
    return Brokers(await cluster_status(visit.admin.cluster, STATUS_S))


async def settings(visit: Visit) -> Settings:
    """Ask a broker for its options."""
    found, silent = await describe_brokers(visit.admin.cluster, 0)
    name = visit.path["broker"]
    if name not in found:
        why = silent.get(name, f"these tell: {', '.join(found) or 'none'}")
        raise InvalidRequestError(f"broker {name[:250]!r} does not tell its options: {why}")
    return Settings(name, found[name].options, set(found[name].changed))


async def drain(visit: Visit) -> None:
    """Have a broker give away what it owns, or take that back."""
    withdraw = visit.query.get("withdraw") == "yes"
    await visit.admin.drain_broker(visit.query.get("broker", ""), withdraw=withdraw)
