"""What is wrong; the brokers, what each owns, how it is configured, and its access log."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memq.client.figures import describe_brokers, plus, topic_figures
from memq.client.status import cluster_status
from memq.errors import ForbiddenError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.client.status import ClusterStatus
    from memq.console.visit import Visit
    from memq.core.wire.messages import DescribeBrokerAnswer, TopicFigures

STATUS_S = 4.0
LINES = 200  # of the access log: as many as a broker keeps
FIELDS = ("time", "event", "principal", "host", "client", "outcome")


@dataclass(frozen=True)
class Overview:
    """See above.

    Attributes:
        status: of the cluster; None for a visitor who may not see it.
        problems: what is wrong, a sentence each.
        topics: how many the visitor may see.
        sums: of their rates, by field; None where none is known.
        worst: the topic whose worst group has the most to read; None without any.
    """

    status: ClusterStatus | None
    problems: Sequence[str]
    topics: int
    sums: Mapping[str, float | None]
    worst: TopicFigures | None


@dataclass(frozen=True)
class Broker:
    """A broker, as it tells of itself; `others` tell as well, and `silent` ones do not.

    Its lines of the access log have `FIELDS`, and all else as `more`.
    """

    name: str
    told: DescribeBrokerAnswer
    lines: Sequence[Mapping[str, str]]
    others: Sequence[str]
    silent: Mapping[str, str]


async def overview(visit: Visit) -> Overview:
    """Ask all brokers how they are, and what comes and goes."""
    status = None
    with contextlib.suppress(ForbiddenError):
        status = await cluster_status(visit.admin.cluster, STATUS_S)
    rows, silent = await topic_figures(visit.admin.cluster)
    missing = [f"broker {name} tells no figures: {why}" for name, why in silent.items()]
    rates = ("records_in_s", "bytes_in_s", "records_out_s")
    return Overview(
        status,
        (status.problems() if status is not None else []) or missing,
        len(rows),
        {name: plus(getattr(each, name) for each in rows) for name in rates},
        max((each for each in rows if each.lag_records), key=_to_read, default=None),
    )


def _to_read(figures: TopicFigures) -> int:
    return figures.lag_records or 0


async def brokers(visit: Visit) -> ClusterStatus:
    """Ask all brokers, and the Governor."""
    return await cluster_status(visit.admin.cluster, STATUS_S)


async def broker(visit: Visit) -> Broker:
    """Ask one for its options and its access log; the first one where none is named."""
    rows, silent = await describe_brokers(visit.admin.cluster, LINES)
    told: dict[str, DescribeBrokerAnswer] = dict(rows)
    name = visit.path.get("broker") or visit.query.get("broker") or next(iter(told), "")
    if name not in told:
        why = silent.get(name, f"these tell: {', '.join(told) or 'none'}")
        raise InvalidRequestError(f"broker {name[:250]!r} does not tell its options: {why}")
    return Broker(name, told[name], [_line(each) for each in told[name].lines], [*told], silent)


def _line(text: str) -> dict[str, str]:
    """Read a line of the access log; one that was cut, because it is long, is shown as it is."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError:
        return dict.fromkeys(FIELDS, "") | {"more": text}
    shown = {name: str(fields.pop(name, "")) for name in FIELDS}
    fields.pop("broker", None)
    return shown | {"more": json.dumps(fields, ensure_ascii=False) if fields else ""}


async def drain(visit: Visit) -> None:
    """Have a broker give away what it owns, or take that back."""
    withdraw = visit.query.get("withdraw") == "yes"
    await visit.admin.drain_broker(visit.query.get("broker", ""), withdraw=withdraw)
