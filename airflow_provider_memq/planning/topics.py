"""What the brokers say of a topic: which offsets it retains, and what is published in a range.

Everything here is read from notifications alone; no Batch is fetched. The clients that are asked
come from a `MemqHook`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_memq.planning.ranges import (
    UNBOUNDED,
    Cut,
    RangeContents,
    cut,
    finish,
    range_key,
)
from airflow_provider_memq.values import iso
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, OffsetOutOfRangeError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_memq.planning.ranges import Limits, Plan
    from memq.client.topic import SyncTopicClient, TopicClient
    from memq.core.wire.messages import PartitionOffsets, WatermarkAnswer


class TopicState(NamedTuple):
    """A topic at one moment.

    Attributes:
        topic: its name.
        topic_id: of it; offsets are of this one and mean nothing in another.
        starts: first offset retained, by read partition.
        ends: one past the last offset published, by read partition.
        watermark_ms: every Message received before this time and acked lies before `ends`;
            milliseconds since 1970 UTC.
    """

    topic: str
    topic_id: str
    starts: dict[int, int]
    ends: dict[int, int]
    watermark_ms: int

    def to_json(self) -> dict[str, Any]:
        """It as plain JSON, with partitions as text: what an XCom holds."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "offsets": {str(partition): end for partition, end in self.ends.items()},
            "watermark_ms": self.watermark_ms,
        }


async def topic_state(client: TopicClient) -> TopicState:
    """Look up what a topic has now, and how far it is stored.

    Raises:
        TopicRecreatedError: it is of another topic id than the client's.
        MemqError: the brokers failed until the deadline.
    """
    # First the watermark: what it covers is then sure to lie before the ends.
    watermark = await client.watermark()
    return _state(client.topic, watermark, await client.offsets(), client.topic_id)


def read_state(topic: str, client: SyncTopicClient) -> TopicState:
    """Do as `topic_state`, for threads."""
    watermark = client.watermark()
    return _state(topic, watermark, client.offsets(), client.topic_id)


def _state(
    topic: str, watermark: WatermarkAnswer, offsets: Sequence[PartitionOffsets], topic_id: str
) -> TopicState:
    return TopicState(
        topic,
        topic_id,
        {each.partition: each.start for each in offsets},
        {each.partition: each.end for each in offsets},
        watermark.stored_through_ms,
    )


def next_ranges(
    client: SyncTopicClient,
    state: TopicState,
    planned: Mapping[int, int],
    limits: Limits,
    now_ms: int,
    *,
    held: bool = False,
    written: Sequence[OffsetRange] = (),
) -> Plan:
    """Cut the ranges that follow the plan, up to what the topic had when it was looked up.

    Args:
        client: of the topic.
        state: of the topic.
        planned: one past the last planned offset, by read partition.
        limits: of each range.
        now_ms: the time, milliseconds since 1970 UTC.
        held: as `ranges.finish`.
        written: ranges beyond what is planned, sorted, which are planned as they are.

    Raises:
        ConfigError: two of these share offsets.
        MemqError: the brokers failed until the deadline.
    """
    cuts: list[Cut] = []
    for partition, end in sorted(client.lasting(state.ends).items()):
        start = planned[partition]
        known: list[RangeContents] = []
        for each in (one for one in written if one.partition == partition):
            if each.start < start:
                raise ConfigError(
                    f"{range_key(each)} of {state.topic!r} and a range before it have manifests "
                    "and share offsets: rows are there twice. Delete files and manifest of one"
                )
            hole = OffsetRange(partition, start, each.start, state.topic_id)
            known += [*cut_all(client, hole, limits), contents_of(client, each)]
            start = each.end
        unplanned = OffsetRange(partition, start, max(start, end), state.topic_id)
        ranges, tail = cut(unplanned, client.batches([unplanned]), limits)
        cuts.append(Cut(known + ranges, tail))
    return finish(cuts, limits, now_ms, held=held)


def cut_all(client: SyncTopicClient, stretch: OffsetRange, limits: Limits) -> list[RangeContents]:
    """Cut offsets that were never cut into ranges, all of them at once."""
    ranges, tail = cut(stretch, client.batches([stretch]), limits._replace(max_ranges=UNBOUNDED))
    return [*ranges, tail] if tail else ranges


def contents_of(client: SyncTopicClient, wanted: OffsetRange) -> RangeContents:
    """Look up what a job over a range will read.

    Raises:
        TopicRecreatedError: the topic is of another topic id than the client's.
        OffsetOutOfRangeError: some of the offsets are not retained, or not published yet.
        InvalidRequestError: there is no such read partition.
    """
    client.check_retained(wanted)
    contents = RangeContents(wanted._replace(topic_id=client.topic_id))
    for batch in client.batches([wanted]):
        contents = contents.with_batch(batch)
    return contents


def check_closed(topic: str, client: SyncTopicClient, end_ms: int) -> None:
    """Make sure that a window of time has all its Batches, so that it names them forever.

    Raises:
        UnavailableError: the watermark has not passed its end yet; try again later.
    """
    stored_through_ms = client.watermark().stored_through_ms
    if stored_through_ms < end_ms:
        raise UnavailableError(
            f"topic {topic!r} is stored through {stored_through_ms} ms, and the window ends at "
            f"{end_ms} ms: its last Batches may still come. Wait with MemqWatermarkSensor"
        )


def check_retained_since(
    topic: str, client: SyncTopicClient, start_ms: int, end_ms: int | None
) -> None:
    """Make sure that retention has removed nothing of a window of time.

    Call it after the offsets of the window were asked for: then nothing is removed in between.

    Raises:
        OffsetOutOfRangeError: it may have; the message names a read partition, and since when it is
            retained.
    """
    if end_ms is not None and end_ms <= client.info().created_ms:
        return
    last = max(client.retained_since(), key=lambda each: each.since_ms)
    if start_ms >= last.since_ms:
        return
    since = iso(int(last.since_ms))
    raise OffsetOutOfRangeError(
        f"retention may have removed Batches of the window of {topic!r} from {iso(start_ms)} to "
        f"{'now' if end_ms is None else iso(end_ms)}: of partition {last.partition} all is "
        f"retained since {since} only. Let the window begin later: retention goes on"
    )
