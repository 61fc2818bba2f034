"""One topic: its Batches, found by offset or time; its schema and options; its groups."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from memq.client.batches import batch_row
from memq.core.format.schema import deserialize_schema
from memq.core.ranges import OffsetRange
from memq.core.topic import TOPIC_OPTIONS
from memq.core.units import parse_time
from memq.errors import ForbiddenError, InvalidRequestError
from memq.reading.start import time_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.console.visit import Visit
    from memq.core.wire.messages import GroupInfo, PartitionOffsets, TopicInfo

BATCHES = 50  # of a page


@dataclass(frozen=True)
class OneTopic:
    """See above.

    Attributes:
        info: the topic.
        options: as people write them.
        columns: name, type, and whether it may be null.
        partitions: offsets of each read partition.
        partition: of which Batches are shown.
        batches: rows, the newest first.
        end: the page before these begins here; None where there is none.
        refused: why Batches are not shown; empty where they are.
        groups: that read it.
        sought: what was asked for, for the form.
    """

    info: TopicInfo
    options: Mapping[str, str]
    columns: Sequence[tuple[str, str, bool]]
    partitions: Sequence[PartitionOffsets]
    partition: int
    batches: Sequence[Mapping[str, Any]]
    end: int | None
    refused: str
    groups: Sequence[GroupInfo]
    sought: Mapping[str, str]


async def page(visit: Visit) -> OneTopic:
    """Look at a topic, and at Batches of one of its read partitions."""
    topic = visit.topic()
    info = await topic.info()
    at, since_ms = visit.query.get("at", "").strip(), None
    if at:
        now = datetime.fromtimestamp(visit.runtime.wall_ms() / 1000, UTC)
        since_ms = time_ms(parse_time(at, now))
    partitions = await topic.offsets(since_ms)
    number = visit.number("partition", 0) or 0
    if number >= len(partitions):
        raise InvalidRequestError(f"partition {number}: there are 0 to {len(partitions) - 1}")
    there = partitions[number]
    first = there.at if since_ms is not None else visit.number("offset")
    end = visit.number("before", there.end) or 0
    if first is not None:
        end = first + BATCHES
    end = max(there.start, min(end, there.end))
    start = max(there.start, end - BATCHES)
    batches: list[dict[str, Any]] = []
    refused = ""
    try:
        async with aclosing(topic.batches([OffsetRange(number, start, end)])) as found:
            batches = [batch_row(each) async for each in found]
    except ForbiddenError as exc:
        refused = str(exc)
    schema = deserialize_schema(info.schemas[info.schema_id])
    return OneTopic(
        info,
        {each.name: each.show(getattr(info.config, each.field)) for each in TOPIC_OPTIONS},
        [(each.name, str(each.type), each.nullable) for each in schema],
        partitions,
        number,
        batches[::-1],
        start if start > there.start else None,
        refused,
        await topic.groups(),
        {"at": at, "offset": visit.query.get("offset", "")},
    )
