"""What the clients of a run do: coroutines on the loops of their processes."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from memq import AsyncAdminClient, AsyncConsumer, AsyncProducer
from memq.client.audit.audit import audit_topic
from memq.client.cluster import Cluster
from memq.client.topic import TopicClient
from memq.core.access.rules import Rule
from memq.core.notification import decode_notification
from memq.core.wire.messages import (
    AlterRules,
    CommitOffsets,
    DeleteTopic,
    FetchNotifications,
    PartitionOffset,
    Write,
)
from memq.errors import (
    CorruptDataError,
    DataLossError,
    ForbiddenError,
    MemqError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    TopicExistsError,
    TopicRecreatedError,
    UnknownTopicError,
)
from memq.reading.objects import BatchSource
from memq.reading.plan import Selection, plan_read
from memq.reading.rows import read_batches
from tests.simulation import history as h
from tests.simulation.plan import GROUP
from tests.simulation.recording import Asking, Promised, Reads, Sends, key_of, poll_of
from tests.simulation.world import BEGIN_NS

if TYPE_CHECKING:
    import random

    from tests.simulation.plan import Deed, Producer, Reader
    from tests.simulation.run import Run
    from tests.simulation.world import Process

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
PAUSE_S = 60.0  # most that a producer waits without looking whether the run is quiet
PATIENCE_S = 0.5  # until a client that failed is tried again
TOKEN = "known"  # noqa: S105 - of clients that may do everything,
INTRUDER = "unwelcome"  # and of one that may do nothing
REQUEST_TIMEOUT_S = 8.0


# -- producers ------------------------------------------------------------------------------


async def produce(run: Run, process: Process, spec: Producer) -> None:
    """Write until the run is quiet, whatever happens."""
    rng = run.world.rng(f"workload/{process.name}")
    while not run.quiet:
        try:
            if spec.stable:
                await _job(run, process, spec)
                await _pause(run, rng.expovariate(1 / spec.pause_s))
            else:
                await _session(run, process, spec, rng)
        except MemqError as exc:
            run.noted(process, "producer", exc)
            await asyncio.sleep(PATIENCE_S)
    run.done.add(spec.name)


async def _pause(run: Run, seconds: float) -> None:
    """Wait so long, or until about when the run is quiet."""
    while seconds > 0 and not run.quiet:
        await asyncio.sleep(min(seconds, PAUSE_S))
        seconds -= PAUSE_S


async def _session(run: Run, process: Process, spec: Producer, rng: random.Random) -> None:
    run.sessions[spec.name] = session = run.sessions.get(spec.name, -1) + 1
    options = {
        "linger": rng.choice(("0ms", "5ms", "50ms")),
        "compression": rng.choice((*[None] * 8, "zstd", "lz4")),
    }
    count = 0
    producer = _producer(run, process, spec, **options)
    try:
        sends = await _open(run, process, spec, producer)
        while not run.quiet:
            for _ in range(rng.randint(1, spec.burst)):
                size = rng.randint(1, spec.records)
                values = [f"{spec.name}.{session}.{count + number}" for number in range(size)]
                await _write(run, spec, producer, sends, values)
                count += size
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 0.05)
            if rng.random() < 0.2:
                await producer.flush()
            await _pause(run, rng.expovariate(1 / spec.pause_s))
    finally:
        await producer.close()


async def _job(run: Run, process: Process, spec: Producer) -> None:
    """The next job, or that which was not done: the same Messages under the same names."""
    job = run.jobs.setdefault(spec.name, 0)
    rng = run.world.rng(f"job/{spec.name}/{job}")
    producer = _producer(
        run, process, spec, producer_id=spec.name, epoch=job, delivery_timeout="50s"
    )
    try:
        sends = await _open(run, process, spec, producer)
        count, life = 0, sends.topic_id[:6]  # in another life of the topic it is another job
        for _ in range(rng.randint(1, spec.burst)):
            size = rng.randint(1, spec.records)
            values = [f"{spec.name}.j{job}.{life}.{count + number}" for number in range(size)]
            await _write(run, spec, producer, sends, values, timestamp_us=BEGIN_NS // 1_000)
            count += size
            producer._accumulator.seal()
            await asyncio.sleep(rng.random() * 0.02)
        await producer.flush()
    except TopicRecreatedError:
        run.jobs[spec.name] = job + 1  # what it has sent is gone with the topic
        raise
    finally:
        await producer.close()
    run.jobs[spec.name] = job + 1


def _producer(run: Run, process: Process, spec: Producer, **options: Any) -> AsyncProducer:
    return AsyncProducer(
        run.bootstrap,
        topic=spec.topic,
        acks=spec.acks,
        max_in_flight=spec.in_flight,
        max_block="20s",
        partition_by="key" if spec.by_key else "none",
        client=process.name,
        token=TOKEN,
        runtime=process.runtime,
        **options,
    )


async def _open(run: Run, process: Process, spec: Producer, producer: AsyncProducer) -> Sends:
    with Promised(run, process, "start of a producer", 20):
        await producer.start()
    ordered = run.topics[spec.topic].options.get("ordering") == "producer"
    return Sends(run, process, spec, producer, ordered=ordered)


async def _write(
    run: Run,
    spec: Producer,
    producer: AsyncProducer,
    sends: Sends,
    values: list[str],
    *,
    timestamp_us: int | None = None,
) -> None:
    if run.topics[spec.topic].typed:
        table = pa.table({"id": values, "n": list(range(len(values)))}, schema=SCHEMA)
        [delivery] = await producer.write_table(table)
        sends.values[delivery] = values
        return
    for value in values:
        delivery = await producer.write(
            value.encode(), key=key_of(value).encode(), timestamp=timestamp_us
        )
        sends.values.setdefault(delivery, []).append(value)


# -- readers --------------------------------------------------------------------------------


async def read(run: Run, process: Process, spec: Reader) -> None:
    """Read until the run is over, whatever happens."""
    rng = run.world.rng(f"workload/{process.name}")
    if spec.group:
        while not run.over:
            try:
                await _member(run, process, spec, rng)
            except MemqError as exc:
                run.noted(process, "member", exc)
                await asyncio.sleep(PATIENCE_S)
    else:
        await _assigned(run, process, spec)


async def _assigned(run: Run, process: Process, spec: Reader, *, until_end: bool = False) -> None:
    """Follow all partitions; it goes on where it was after an error of its consumer."""
    start: Any = "earliest"
    topic_id = ""
    while not run.over:
        consumer = AsyncConsumer(
            run.bootstrap,
            topic=spec.topic,
            start=start,
            request_timeout=f"{REQUEST_TIMEOUT_S}s",
            client=process.name,
            token=TOKEN,
            runtime=process.runtime,
        )
        reads = Reads(run, process, spec)
        try:
            await consumer.start()
            queue = consumer._topic
            if topic_id and queue.topic_id != topic_id:
                start = "earliest"
                topic_id = ""
                continue
            topic_id = queue.topic_id
            reads.watch(consumer)
            while not run.over:
                try:
                    await reads.poll(1.0)
                except OffsetOutOfRangeError:
                    await consumer.seek_to_beginning()
                    reads.event(h.SOUGHT, consumer.assignment)
                except (DataLossError, CorruptDataError) as exc:
                    if not await _skip_lost(run, consumer, exc):
                        raise
                    reads.event(h.SOUGHT, consumer.assignment)
                start = dict(consumer._fetcher.positions)
                if until_end and not any((await consumer.lag()).values()):
                    run.history.add(h.Drained(run.now_us, process.name, spec.topic, reads.topic_id))
                    return
        except TopicRecreatedError:
            start = "earliest"
        except UnknownTopicError as exc:
            run.noted(process, "reader", exc)
            await asyncio.sleep(PATIENCE_S)
        except MemqError as exc:
            run.unreadable(process, spec, exc)
            await asyncio.sleep(PATIENCE_S)
        finally:
            await consumer.close()


async def _skip_lost(run: Run, consumer: AsyncConsumer, error: MemqError) -> bool:
    """Seek past a Batch that was destroyed on purpose; False when it was not."""
    topic_id = consumer._topic.topic_id
    for loss in run.history.losses:
        told = f"at {loss.topic}/{loss.partition} offset {loss.offset} "
        if loss.topic_id == topic_id and told in str(error):
            await consumer.seek(loss.partition, loss.offset + 1)
            return True
    return False


async def _member(run: Run, process: Process, spec: Reader, rng: random.Random) -> None:
    reads = Reads(run, process, spec)
    consumer = AsyncConsumer(
        run.bootstrap,
        topic=spec.topic,
        group=spec.group,
        auto_commit=spec.auto,
        auto_commit_interval="500ms",
        session_timeout="6s",
        max_poll_interval="4s" if spec.stall else "5m",
        request_timeout=f"{REQUEST_TIMEOUT_S}s",
        on_assign=reads.granted,
        on_revoke=reads.released,
        on_lost=reads.released,
        client=process.name,
        token=TOKEN,
        runtime=process.runtime,
    )
    leaves_s = process.loop.time() + rng.expovariate(1 / spec.stay_s) if spec.stay_s else 1e12
    try:
        await consumer.start()
        reads.watch(consumer)
        while not run.over and (run.quiet or process.loop.time() < leaves_s):
            try:
                batch = await reads.poll(1.0)
            except OffsetOutOfRangeError:
                await consumer.seek_to_beginning()
                reads.event(h.SOUGHT, consumer.assignment)
                continue
            if batch is None:
                continue
            if not run.quiet and rng.random() < spec.stall:
                run.world.happened("stall")
                await asyncio.sleep(6.0)
            if not spec.auto and (run.quiet or rng.random() < 0.6):
                await consumer.commit()
    finally:
        await consumer.close()


# -- deeds ----------------------------------------------------------------------------------


async def carry_out(run: Run, process: Process, deed: Deed) -> None:
    """Do something once, from a client of its own."""
    try:
        await DEEDS[deed.what](run, process, deed.who)
    except MemqError as exc:
        run.noted(process, deed.what, exc)


def _admin(run: Run, process: Process) -> AsyncAdminClient:
    return AsyncAdminClient(
        run.bootstrap,
        client=process.name,
        token=TOKEN,
        request_timeout_s=REQUEST_TIMEOUT_S,
        runtime=process.runtime,
    )


async def create(run: Run, process: Process, topic: str) -> None:
    """Create a topic, if it is not there."""
    spec = run.topics[topic]
    run.world.happened("create")
    async with _admin(run, process) as admin:
        await _change(
            run,
            process,
            h.CREATE,
            topic,
            admin.create_topic(topic, schema=SCHEMA if spec.typed else None, **spec.options),
        )


async def lose(run: Run, process: Process, topic: str) -> None:
    """Destroy the object of a Batch behind the system's back; audits and readers must tell."""
    rng = run.world.rng(f"workload/{process.name}")
    found = [
        (durable, notification)
        for durable, notification in run.batches.values()
        if (durable.topic, durable.topic_id) == (topic, run.topic_ids.get(topic))
    ]
    if not found or not run.topics[topic].options.get("audited", True) or run.topics[topic].brief:
        return
    durable, notification = rng.choice(found)
    if not run.destroy(notification.uri):
        return
    names = tuple(
        h.Name(notification.write_partition, each.producer_id, each.epoch, sequence)
        for each in notification.producers
        for sequence in range(each.first, each.last + 1)
    )
    run.history.add(h.Loss(run.now_us, *durable[1:], names))
    run.world.happened("lose")


async def create_again(run: Run, process: Process, topic: str) -> None:
    """Delete a topic and create it again, under load."""
    run.world.happened("create_again")
    async with _admin(run, process) as admin:
        try:
            found = (await admin.describe_topic(topic)).topic_id
            run.topic_ids[topic] = found
            deletion = admin.delete_topic(topic, topic_id=found)
            await _change(run, process, h.DELETE, topic, deletion)
        except MemqError as exc:  # it may be deleted nevertheless
            run.noted(process, "delete", exc)
    await asyncio.sleep(process.runtime.random() * 0.5)
    while not run.over:
        try:
            await create(run, process, topic)
        except TopicExistsError:
            return
        except MemqError as exc:
            run.noted(process, "create", exc)
            await asyncio.sleep(PATIENCE_S)
        else:
            return


async def alter(run: Run, process: Process, topic: str) -> None:
    """Change options of a topic under load."""
    rng = run.world.rng(f"workload/{process.name}")
    run.world.happened("alter")
    options: dict[str, Any] = rng.choice(
        (
            {"batch_age": rng.choice(("20ms", "1s"))},
            {"batch_messages": rng.choice((1, 50))},
            {"write_partitions": run.topics[topic].options["write_partitions"] + 1},
        )
    )
    async with _admin(run, process) as admin:
        await _change(run, process, h.ALTER, topic, admin.alter_topic(topic, **options))


async def _change(run: Run, process: Process, action: str, topic: str, call: Any) -> None:
    start_us, outcome, topic_id, retention_us = run.now_us, h.INFO, "", None
    if action != h.CREATE:
        topic_id = run.topic_ids.get(topic, "")
    try:
        with Promised(run, process, f"{action} topic", REQUEST_TIMEOUT_S):
            info = await call
        outcome = h.OK
        if info is not None:
            run.topic_ids[topic] = topic_id = info.topic_id
            retention_us = info.config.retention_ms * 1_000
        elif action == h.DELETE:
            run.topic_ids.pop(topic, None)
    finally:
        run.history.add(
            h.TopicChange(
                process.name,
                start_us,
                run.now_us,
                outcome,
                action,
                topic,
                topic_id,
                retention_us,
            )
        )


async def read_a_range(run: Run, process: Process, topic: str) -> None:
    """Read some offsets exactly, as `read_range` does."""
    rng = run.world.rng(f"workload/{process.name}")
    cluster = _cluster(run, process)
    try:
        info = await cluster.topic(topic)
        queue = TopicClient(cluster, topic, info.topic_id)
        held = rng.choice(await queue.offsets())
        if held.start == held.end:
            return
        start = rng.randrange(held.start, held.end)
        end = rng.randint(start + 1, held.end)
        start_us = run.now_us
        source = BatchSource(queue, process.loop.threads(4, "range"))
        plan = await plan_read(queue, Selection(held.partition, start, end))
        reading = read_batches(queue, source, plan, plan.pieces, lambda each: each)
        async with aclosing(reading) as batches:
            found = [each async for _, each in batches]
        if not found:
            return
        run.history.add(
            poll_of(
                [each.batch for each in found],
                process.name,
                (start_us, run.now_us),
                info.topic_id,
                mode=h.RANGE,
                member=process.name,
                asked=(h.Asked(held.partition, start, end),),
            )
        )
        run.world.happened("range")
    finally:
        await cluster.close()


async def observe(run: Run, process: Process, topic: str) -> None:
    """Look at every notification and object of a topic."""
    cluster = _cluster(run, process)
    try:
        info = await cluster.topic(topic, refresh=True)
        queue = TopicClient(cluster, topic, info.topic_id)
        for held in await queue.offsets():
            offset = held.start
            while offset < held.end:
                page = await queue.page({held.partition: offset}, max_entries=100)
                for entry in page.entries:
                    await _found(run, queue, entry)
                    offset = entry.offset + 1
                if not page.entries:
                    break
        run.world.happened("observe")
    finally:
        await cluster.close()


async def _found(run: Run, queue: TopicClient, entry: Any) -> None:
    notification = decode_notification(entry.payload)
    digest, findings = b"", ()
    try:
        data = run.object_at(notification.uri)
        payload = entry.payload.replace(str(run.world.folder).encode(), b"")  # another in each run
        digest = hashlib.sha256(payload + bytes(data)).digest()
    except ObjectNotFoundError:
        offsets = {held.partition: held.start for held in await queue.offsets()}
        if entry.offset >= offsets[entry.partition]:
            findings = ("the object does not exist",)
    run.history.add(
        h.Batch(
            run.now_us,
            queue.topic,
            queue.topic_id,
            entry.partition,
            entry.offset,
            entry.timestamp_ms,
            notification.sealed_ms,
            notification.batch_id,
            digest,
            findings,
        )
    )


async def ask(run: Run, process: Process, topic: str) -> None:
    """Ask for offsets and the watermark."""
    cluster = _cluster(run, process)
    try:
        info = await cluster.topic(topic)
        queue = TopicClient(cluster, topic, info.topic_id)
        asking = Asking(queue, process.name, run.history, lambda: run.now_us)
        with Promised(run, process, "offsets", REQUEST_TIMEOUT_S):
            await asking.offsets()
        if any(each.group for each in run.plan.readers if each.topic == topic):
            await asking.committed(GROUP)
        await asking.watermark()
        run.world.happened("ask")
    finally:
        await cluster.close()


async def audit(run: Run, process: Process, topic: str) -> None:
    """Audit a topic as `memq audit` does."""
    if not run.topics[topic].options.get("audited", True):
        return
    cluster = _cluster(run, process)
    start_us = run.now_us
    try:
        info = await cluster.topic(topic)
        result = await audit_topic(cluster, topic)
        run.audited(process, start_us, info.topic_id, result)
        run.world.happened("audit")
    finally:
        await cluster.close()


def _cluster(run: Run, process: Process) -> Cluster:
    return Cluster(
        run.bootstrap,
        client=process.name,
        token=TOKEN,
        request_timeout_s=REQUEST_TIMEOUT_S,
        runtime=process.runtime,
    )


async def rule(run: Run, process: Process, topic: str) -> None:
    """Add a rule; what is acked is there for ever."""
    made = Rule(principal="User:other", operation="read", type="topic", name=process.name)
    async with _admin(run, process) as admin:
        await admin.alter_rules(add=[made])
        run.rules.add(made)
        run.world.happened("rule")


async def rules_are_kept(run: Run, process: Process, _: str) -> None:
    """Look whether each rule is there that was acked."""
    async with _admin(run, process) as admin:
        if missing := run.rules - set(await admin.rules()):
            run.wrong(f"rules that were acked are gone: {missing}")


async def intrude(run: Run, process: Process, topic: str) -> None:
    """Ask for what no rule allows: whatever the brokers go through, nothing may be had."""
    cluster = Cluster(
        run.bootstrap,
        client=process.name,
        token=INTRUDER,
        request_timeout_s=REQUEST_TIMEOUT_S,
        runtime=process.runtime,
    )
    header = Write(
        topic=topic, write_partition=0, producer_id="p", epoch=0, sequence=0, first_unsettled=0,
        acks=-1, schema_id="s", records=1, min_timestamp_us=0, max_timestamp_us=0,
    )  # fmt: skip
    position = PartitionOffset(0, 0)
    requests = (
        header,
        FetchNotifications(topic=topic, positions=[position], max_wait_ms=1_000),
        CommitOffsets(topic=topic, group=GROUP, member_id="", offsets=[position]),
        DeleteTopic(topic=topic),
        AlterRules(add=[Rule(principal="*", operation="all", type="topic", name="*")]),
    )
    try:
        for request in requests * 3:
            try:
                await cluster.call(request)
            except (ForbiddenError, UnknownTopicError):
                run.world.happened("intrude")
            except MemqError as exc:
                run.noted(process, "intrude", exc)
                if not exc.retriable:
                    run.wrong(f"the intruder is told {exc!r}")
            else:
                run.wrong(f"the intruder was served {type(request).__name__}")
        found = await cluster.metadata(None)
        if found.topics:
            run.wrong(f"the intruder sees {found.topics}")
    finally:
        await cluster.close()


DEEDS = {
    "intrude": intrude,
    "rule": rule,
    "rules": rules_are_kept,
    "create": create,
    "create_again": create_again,
    "alter": alter,
    "range": read_a_range,
    "observe": observe,
    "ask": ask,
    "audit": audit,
    "lose": lose,
}
