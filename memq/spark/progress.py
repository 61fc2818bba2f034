"""How far a stream is, from what Spark tells of each micro-batch.

Spark has no way for a source in Python to report metrics of its own: `sources[].metrics` of the
progress stays empty. But the progress has the offsets of the source, and what it said of the latest
offset; this reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memq.client.lag import Lag
from memq.core.decoding import UNDECODABLE
from memq.errors import CorruptDataError
from memq.spark.positions import TopicPosition, decode_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.listener import StreamingQueryProgress


class SourceProgress(NamedTuple):
    """How far a memq source is after a micro-batch.

    Attributes:
        query: name of the query, or else its id.
        source: which source of the query it is, from 0 on.
        batch_id: number of the micro-batch.
        rows: that the micro-batch read.
        offsets: that it read, over all topics and read partitions.
        lag: what is published and in no micro-batch yet; None when the brokers did not tell.
        topics: the lag of each topic, where the stream reads several.
    """

    query: str
    source: int
    batch_id: int
    rows: int
    offsets: int
    lag: Lag | None
    topics: dict[str, Lag]


def progress_of(progress: StreamingQueryProgress) -> list[SourceProgress]:
    """Return how far the memq sources of a query are; other sources are left out.

    Args:
        progress: `query.lastProgress`, one of `query.recentProgress`, or that of an event.
    """
    found = []
    for number, source in enumerate(progress.sources):
        start, end = _offset(source.startOffset), _offset(source.endOffset)
        if end is None:
            continue
        latest = _decoded(source.latestOffset)
        found.append(
            SourceProgress(
                query=progress.name or str(progress.id),
                source=number,
                batch_id=progress.batchId,
                rows=source.numInputRows,
                offsets=_count(start or {}, end),
                lag=_lag(latest),
                topics={
                    name: lag
                    for name, each in latest.get("topics", {}).items()
                    if (lag := _lag(each)) is not None
                },
            )
        )
    return found


def _decoded(text: str | None) -> dict[str, Any]:
    """JSON of an offset; empty where it is none."""
    try:
        found = msgspec.json.decode(text or "null")
    except UNDECODABLE:
        return {}
    return found if isinstance(found, dict) else {}


def _offset(text: str | None) -> dict[str, TopicPosition] | None:
    """Parse an offset of a memq source, by topic; None where it is of another one."""
    try:
        return decode_topics(_decoded(text), {}, "")
    except CorruptDataError:
        return None


def _count(start: dict[str, TopicPosition], end: dict[str, TopicPosition]) -> int:
    nexts = {
        (topic, partition): each.next
        for topic, position in start.items()
        for partition, each in position.partitions.items()
    }
    return sum(
        each.next - nexts.get((topic, partition), each.began)
        for topic, position in end.items()
        for partition, each in position.partitions.items()
    )


def _lag(found: Mapping[str, Any]) -> Lag | None:
    lag = found.get("lag")
    return lag and Lag(lag["batches"], lag["records"], lag["bytes"], lag["seconds"])
