"""Clients: who is connected, from where, since when, and how much they send and get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.figures import MAX_CLIENTS, connections
from memq.console.listing import listing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.console.listing import Listing
    from memq.console.visit import Visit

COLUMNS = {
    "principal": "Principal",
    "client": "Client",
    "version": "Version",
    "address": "Address",
    "broker": "Broker",
    "bytes_in": "In",
    "bytes_out": "Out",
    "throttled_ms": "Throttled",
    "connected_ms": "Since",
}


@dataclass(frozen=True)
class Client:
    """A connection to a broker."""

    broker: str
    principal: str
    client: str
    version: str
    address: str
    listener: str
    bytes_in: int
    bytes_out: int
    throttled_ms: int
    connected_ms: int


@dataclass(frozen=True)
class Clients:
    """A page of the list; `cut` are brokers with more clients than are listed."""

    shown: Listing
    columns: Mapping[str, str]
    silent: Mapping[str, str]
    cut: list[str]


async def page(visit: Visit) -> Clients:
    """Ask each broker."""
    found, silent = await connections(visit.admin.cluster)
    rows = [
        Client(
            name,
            each.principal,
            each.client,
            each.version,
            each.address,
            each.listener,
            each.bytes_in,
            each.bytes_out,
            each.throttled_ms,
            each.connected_ms,
        )
        for name, listed in found.items()
        for each in listed
    ]
    cut = [name for name, listed in found.items() if len(listed) >= MAX_CLIENTS]
    names = ["principal", "client", "address", "broker"]
    return Clients(listing(rows, visit.query, [*COLUMNS], names), COLUMNS, silent, cut)
