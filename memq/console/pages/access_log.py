"""The access log: the newest lines that a broker still has in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memq.client.figures import describe_brokers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.console.visit import Visit

LINES = 200
FIELDS = ("time", "event", "principal", "host", "client", "outcome")


@dataclass(frozen=True)
class AccessLog:
    """See above.

    Attributes:
        brokers: names of those that have such a log.
        broker: whose lines these are; empty where none has one.
        lines: the newest first: `FIELDS`, and all else as `more`.
        silent: why brokers told nothing.
    """

    brokers: Sequence[str]
    broker: str
    lines: Sequence[Mapping[str, str]]
    silent: Mapping[str, str]


async def page(visit: Visit) -> AccessLog:
    """Ask each broker; show the lines of one."""
    found, silent = await describe_brokers(visit.admin.cluster, LINES)
    logging = [name for name, each in found.items() if each.logs_access]
    asked = visit.query.get("broker", "")
    broker = asked if asked in logging else next(iter(logging), "")
    lines = [_line(each) for each in found[broker].lines] if broker else []
    return AccessLog(logging, broker, lines, silent)


def _line(text: str) -> dict[str, str]:
    """Read a line; one that was cut, because it is long, is shown as it is."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError:
        return dict.fromkeys(FIELDS, "") | {"more": text}
    shown = {name: str(fields.pop(name, "")) for name in FIELDS}
    fields.pop("broker", None)
    return shown | {"more": json.dumps(fields, ensure_ascii=False) if fields else ""}
