"""What the brokers say of a topic: which offsets are held, and what stands at them.

Everything here is read from notifications alone; no Batch is fetched. Each call of `ask` opens
connections of its own and closes them: an operator asks for some seconds and then works for hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow_provider_memq.ledger import Held, Topic
from airflow_provider_memq.ranges import Cutter, Facts, PlannedRange, Sized
from airflow_provider_memq.values import iso
from memq.client.cluster import Cluster
from memq.client.held import retained_since
from memq.client.notifications import Stretch, entries_of, stretches_between
from memq.client.sync import EventLoopThread
from memq.client.topic import TopicClient
from memq.core.audit.reports import CRC_MODULUS
from memq.core.notification.notification import decode_notification
from memq.errors import InvalidRequestError, OffsetOutOfRangeError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping

    from airflow_provider_memq.ledger import Ledger
    from airflow_provider_memq.ranges import Limits
    from airflow_provider_memq.settings import ClientSettings
    from memq.core.wire.messages import TopicInfo

T = TypeVar("T")


def ask(settings: ClientSettings, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """Run some questions and wait for what they return.

    Raises:
        MemqError: what `work` raises; brokers that do not answer are tried until the deadline.
    """

    async def run() -> T:
        cluster = Cluster(
            settings.bootstrap,
            client="airflow",
            token=settings.token,
            request_timeout_s=settings.request_timeout_s,
        )
        try:
            return await work(cluster)
        finally:
            await cluster.close()

    # A thread of its own: a caller may run inside an event loop, as `dags test` does.
    loop = EventLoopThread("memq-airflow")
    try:
        return loop.run(run())
    finally:
        loop.close()


class Found(NamedTuple):
    """A topic, and the offsets that it holds."""

    info: TopicInfo
    topic: Topic


async def look_up(cluster: Cluster, name: str) -> Found:
    """A topic as it is now.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    info = await cluster.topic(name, refresh=True)
    offsets = await TopicClient(cluster, name, info.incarnation).offsets()
    held = {each.partition: Held(each.start, each.end) for each in offsets}
    return Found(info, Topic(name, info.incarnation, held))


async def plan(
    cluster: Cluster, topic: Topic, ledger: Ledger, limits: Limits, now_ms: int
) -> list[Sized]:
    """The ranges that come next, up to what the topic held when it was looked up."""
    queue = TopicClient(cluster, topic.name, topic.incarnation)
    ranges: list[Sized] = []
    for partition, held in sorted(topic.held.items()):
        start = ledger.ends[partition]
        cutter = Cutter(partition, start, limits, topic.incarnation)
        async for facts in _facts(queue, Stretch(partition, start, held.end)):
            cutter.add(facts)
            if cutter.full:
                break
        ranges += cutter.finish(now_ms)
    return ranges


async def _facts(queue: TopicClient, stretch: Stretch) -> AsyncIterator[Facts]:
    async for entry in entries_of(queue, [stretch]):
        notification = decode_notification(entry.payload)
        yield Facts(entry.offset, entry.timestamp_ms, notification.size_bytes, notification.records)


class Expected(NamedTuple):
    """What the notifications of a range say that a job will read.

    Attributes:
        range: the range.
        incarnation: of the topic.
        batches: Batches.
        messages: Messages, repeats among them.
        records: LogMessages in them.
        bytes: size of the objects.
        crc_sum: sum of the CRC32C of the Messages, modulo 2**64.
    """

    range: PlannedRange
    incarnation: str
    batches: int
    messages: int
    records: int
    bytes: int
    crc_sum: int

    def to_row(self) -> dict[str, Any]:
        """As plain JSON, for XComs and logs."""
        partition, start, end, _ = self.range
        row = {"key": self.range.key, "partition": partition, "start": start, "end": end}
        return row | {name: getattr(self, name) for name in ("batches", "records", "bytes")}


async def expect(cluster: Cluster, topic: str, wanted: PlannedRange) -> Expected:
    """What a job over a range will read.

    Raises:
        TopicRecreatedError: the topic is of another incarnation than the range.
        OffsetOutOfRangeError: some of the offsets are not held.
        InvalidRequestError: there is no such read partition.
    """
    queue = TopicClient(cluster, topic, wanted.incarnation)
    await _check_held(queue, wanted)
    found = Expected(wanted, queue.incarnation, 0, 0, 0, 0, 0)
    async for entry in entries_of(queue, [Stretch(*wanted[:3])]):
        each = decode_notification(entry.payload)
        found = Expected(
            wanted,
            queue.incarnation,
            found.batches + 1,
            found.messages + each.messages,
            found.records + each.records,
            found.bytes + each.size_bytes,
            (found.crc_sum + sum(run.crc_sum for run in each.producers)) % CRC_MODULUS,
        )
    return found


async def _check_held(queue: TopicClient, wanted: PlannedRange) -> None:
    offsets = await queue.offsets()
    if wanted.partition >= len(offsets):
        raise InvalidRequestError(
            f"topic {queue.topic!r} has no read partition {wanted.partition}; it has 0 to "
            f"{len(offsets) - 1}"
        )
    held = offsets[wanted.partition]
    if wanted.start < held.start or wanted.end > held.end:
        raise OffsetOutOfRangeError(
            f"{queue.topic!r} {wanted} is not held in full; [{held.start}, {held.end}) is. What is "
            "before was removed by retention, what is behind was not published yet"
        )


async def between(
    cluster: Cluster, topic: str, start_ms: int | None, end_ms: int | None
) -> list[PlannedRange]:
    """The offsets published from one time up to, not including, another one.

    None is no bound: without a start they begin with the first that are held. What retention has
    removed is not among them; see `check_held_since`.
    """
    queue = TopicClient(cluster, topic)
    stretches = await stretches_between(queue, start_ms, end_ms)
    found = [stretch for stretch in stretches if stretch.entries > 0]
    return [PlannedRange(*stretch, queue.incarnation) for stretch in found]


async def check_held_since(cluster: Cluster, topic: str, start_ms: int, end_ms: int | None) -> None:
    """Make sure that retention has removed nothing of a window of time.

    To be asked after the offsets of the window: then nothing is removed in between.

    Raises:
        OffsetOutOfRangeError: it may have; the message names a read partition, and since when it is
            held.
    """
    info = await cluster.topic(topic)
    if end_ms is not None and end_ms <= info.created_ms:
        return
    last = max(await retained_since(TopicClient(cluster, topic)), key=lambda each: each.since_ms)
    if start_ms >= last.since_ms:
        return
    since = iso(int(last.since_ms))
    raise OffsetOutOfRangeError(
        f"retention may have removed Batches of the window of {topic!r} from {iso(start_ms)} to "
        f"{'now' if end_ms is None else iso(end_ms)}: of partition {last.partition} all is held "
        f"since {since} only. Let the window begin then or later"
    )


async def check_closed(cluster: Cluster, topic: str, end_ms: int) -> None:
    """Make sure that a window of time has all its Batches, so that it names them for ever.

    Raises:
        UnavailableError: the watermark has not passed its end yet; try again later.
    """
    answer = await TopicClient(cluster, topic).watermark()
    if answer.stored_through_ms < end_ms:
        raise UnavailableError(
            f"topic {topic!r} is stored through {answer.stored_through_ms} ms, and the window ends "
            f"at {end_ms} ms: its last Batches may still come. Wait with MemqWatermarkSensor"
        )


async def committed(cluster: Cluster, topic: Topic, group: str) -> Mapping[int, int]:
    """The stored next offsets of a group."""
    return await TopicClient(cluster, topic.name, topic.incarnation).committed(group)


async def commit(cluster: Cluster, ledger: Ledger, group: str, offsets: Mapping[int, int]) -> None:
    """Store next offsets, of the topic that was planned, of a group that has no live members.

    Raises:
        TopicRecreatedError: the topic is of another incarnation by now.
        InvalidRequestError: the group has live members.
    """
    # With a name and a number an attempt that was given up changes nothing when it comes late.
    queue = TopicClient(cluster, ledger.topic, ledger.incarnation)
    await queue.commit(group, "", offsets, committer=cluster.runtime.token_hex(8), sequence=1)


async def oldest_ms(cluster: Cluster, topic: Topic, partition: int, offset: int) -> int | None:
    """When the first notification from an offset on was published; None when there is none."""
    queue = TopicClient(cluster, topic.name, topic.incarnation)
    page = await queue.page({partition: offset}, max_entries=1)
    return page.entries[0].timestamp_ms if page.entries else None


async def expect_all(
    cluster: Cluster, topic: str, ranges: Iterable[PlannedRange]
) -> list[Expected]:
    """What jobs over some ranges will read."""
    return [await expect(cluster, topic, each) for each in ranges]
