"""What clients do, written down as a history: hooks into producers and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.client.producer.delivery import StoredAt
from tests.simulation.history import (
    ASSIGNED,
    GRANTED,
    GROUP,
    INFO,
    OK,
    RELEASED,
    RENEWED,
    SOUGHT,
    Assignment,
    Call,
    Commit,
    Committed,
    History,
    Name,
    Offsets,
    Poll,
    Send,
    Watermark,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import Any

    from memq import AsyncConsumer, AsyncProducer
    from memq.client.producer.delivery import Delivery
    from memq.client.producer.state_machine import NamedMessage, StateMachineOptions
    from memq.client.topic import TopicClient
    from memq.core.wire.messages import PartitionOffsets
    from memq.reading.batch import Batch
    from tests.simulation.plan import Producer, Reader
    from tests.simulation.run import Run
    from tests.simulation.world import Process

NEVER = ("fenced", "schema_mismatch", "invalid_request", "not_hosted", "unavailable")
"""Why no Message is given up: another attempt, or another broker, takes it."""
CALL_SLACK_US = 1_000_000  # a turn here and there, and a clock that is a little slow


def key_of(value: str) -> str:
    """The key that a value is sent with."""
    return value[-1:]


def sent(
    message: NamedMessage, options: StateMachineOptions, process: str, now_us: int, **more: Any
) -> Send:
    """A Message that was given its name just now; `more` are other fields."""
    return Send(
        process,
        now_us,
        None,
        INFO,
        options.topic,
        options.topic_id,
        Name(message.partition.number, options.producer_id, options.epoch, message.sequence),
        acks={-1: "all", 1: "1", 0: "0"}[options.acks],
        max_in_flight=options.max_in_flight,
        **more,
    )


def settled(send: Send, now_us: int, stored: StoredAt | None) -> Send:
    """The same when its outcome is told; None where nobody knows it."""
    send = send._replace(end_us=now_us)
    if stored is None:
        return send
    return send._replace(
        outcome=OK, partition=stored.partition, offset=stored.offset, duplicate=stored.duplicate
    )


class Sends:
    """The Messages of one producer.

    Attributes:
        values: of the records, by the delivery of their Message.
    """

    def __init__(
        self, run: Run, process: Process, spec: Producer, producer: AsyncProducer, *, ordered: bool
    ) -> None:
        self._run, self._process, self._spec, self._ordered = run, process, spec, ordered
        self.values: dict[Delivery, list[str]] = {}
        core = producer._state_machine
        self._options = core.options
        self.topic_id = core.options.topic_id
        self._submitted = core._on_submitted
        core._on_submitted = self._named

    def _named(self, message: NamedMessage) -> None:
        delivery = message.sealed.delivery
        values = tuple(self.values.pop(delivery))
        self._run.open_sends[delivery] = sent(
            message,
            self._options,
            self._process.name,
            self._run.now_us,
            values=values,
            ordered=self._ordered,
            keys=tuple(map(key_of, values)) if self._spec.by_key else (),
        )
        delivery.add_done_callback(self._settled)
        self._submitted(message)

    def _settled(self, delivery: Delivery) -> None:
        send, outcome = self._run.open_sends.pop(delivery), delivery._settled
        stored = outcome if isinstance(outcome, StoredAt) else None
        if stored is None:
            self._run.noted(self._process, f"not delivered: {type(outcome).__name__}", outcome)
            if outcome.code in NEVER:
                self._run.wrong(f"{self._process.name} gave up a Message: {outcome}")
        self._run.history.add(settled(send, self._run.now_us, stored))


class Asking:
    """Ask about a topic, and write the answers down."""

    def __init__(
        self, queue: TopicClient, process: str, history: History, now_us: Callable[[], int]
    ) -> None:
        self._queue, self._process, self._history = queue, process, history
        self._now_us = now_us

    async def offsets(self) -> list[PartitionOffsets]:
        """Ask for the start and the end of each read partition."""
        start_us = self._now_us()
        found = await self._queue.offsets()
        for held in found:
            self._answered(Offsets, start_us, held.partition, held.start, held.end)
        return found

    async def committed(self, group: str) -> None:
        """Ask for the stored offsets of a group."""
        start_us = self._now_us()
        stored = await self._queue.committed(group)
        self._answered(Committed, start_us, group, tuple(sorted(stored.items())))

    async def watermark(self) -> None:
        """Ask for the watermark of each read partition."""
        start_us = self._now_us()
        mark = await self._queue.watermark()
        for partition, stored_through_ms in enumerate(mark.read_partitions):
            self._answered(Watermark, start_us, partition, stored_through_ms)

    def _answered(self, kind: Callable[..., Any], start_us: int, *answer: Any) -> None:
        about = self._queue.topic, self._queue.topic_id
        self._history.add(kind(self._process, start_us, self._now_us(), OK, *about, *answer))


class Reads:
    """What one consumer is told to hold, hands out and commits."""

    def __init__(self, run: Run, process: Process, spec: Reader) -> None:
        self._run, self._process, self._spec = run, process, spec
        self.name = process.name
        self._sent_us = 0
        self._consumer: AsyncConsumer | None = None
        self._session_us = 0

    def watch(self, consumer: AsyncConsumer) -> None:
        """From now on, of this consumer."""
        self._consumer = consumer
        self.topic, self.topic_id = consumer._topic.topic, consumer._topic.topic_id
        if not self._spec.group:
            self.event(SOUGHT, consumer.assignment)
            return
        self._session_us = consumer._options.session_timeout_ms * 1_000
        session_if_group = consumer._session_if_group

        def watched():
            had = consumer._session
            session = session_if_group()
            if session is not None and session is not had:
                self._watch_session(session.membership)
            return session

        consumer._session_if_group = watched
        commit = consumer._topic.commit

        async def watched_commit(group, member_id, offsets, **options):
            await self._committing(commit(group, member_id, offsets, **options), offsets, member_id)

        consumer._topic.commit = watched_commit

    def _watch_session(self, membership: Any) -> None:
        self.name = membership.member_id
        heartbeat, answered, lose = membership.heartbeat, membership.answered, membership.lose
        sent_us = {}

        def watched_heartbeat(now_ms):
            made = heartbeat(now_ms)
            sent_us[made.sequence] = self._run.now_us
            return made

        def watched_answered(made, answer, now_ms):
            answered(made, answer, now_ms)
            self._sent_us = sent_us.pop(made.sequence)
            sent_us.clear()
            if membership.held:
                self.event(RENEWED, membership.held)

        def watched_lose():
            if membership.held:
                self.event(RELEASED, membership.held)
            lose()

        membership.heartbeat, membership.answered = watched_heartbeat, watched_answered
        membership.lose = watched_lose

    def event(self, event: str, partitions: Iterable[int]) -> None:
        """What this reader knows of its partitions has changed."""
        until = self._sent_us + self._session_us if event in (GRANTED, RENEWED) else None
        self._run.history.add(
            Assignment(
                self._process.name,
                self._run.now_us,
                event,
                self.topic,
                self.topic_id,
                self._spec.group,
                self.name,
                tuple(sorted(partitions)),
                until,
            )
        )

    def granted(self, partitions: list[int]) -> None:
        """For `on_assign`."""
        self.event(GRANTED, partitions)

    def released(self, partitions: list[int]) -> None:
        """For `on_revoke` and `on_lost`."""
        self.event(RELEASED, partitions)

    async def poll(self, timeout_s: float) -> Batch | None:
        """Poll, and write down what came."""
        run, start_us = self._run, self._run.now_us
        with Promised(run, self._process, "poll", timeout_s):
            batch = await self._consumer.poll(timeout_s)
        if batch is not None:
            run.history.add(
                poll_of(
                    [batch],
                    self._process.name,
                    (start_us, run.now_us),
                    self.topic_id,
                    mode=GROUP if self._spec.group else ASSIGNED,
                    group=self._spec.group,
                    member=self.name,
                )
            )
        return batch

    async def _committing(
        self, commit: Awaitable[None], offsets: Mapping[int, int], member: str
    ) -> None:
        run = self._run
        begun = Commit(
            self._process.name,
            run.now_us,
            None,
            INFO,  # an error may hide an earlier try that took effect
            self.topic,
            self.topic_id,
            self._spec.group,
            member,
            tuple(sorted(offsets.items())),
        )
        outcome = INFO
        run.open_commits[begun] = None  # of which a process that dies says no more
        try:
            await commit
            outcome = OK
        finally:
            run.open_commits.pop(begun, None)
            run.history.add(begun._replace(end_us=run.now_us, outcome=outcome))


def poll_of(
    batches: Iterable[Batch], process: str, times_us: tuple[int, int], topic_id: str, **more: Any
) -> Poll:
    """Batches that were handed out, as one `Poll`."""
    found = [
        (batch.partition, batch.offset, position, value_of(message.value))
        for batch in batches
        for position, message in enumerate(batch)
    ]
    topic = next(iter(batches)).topic
    columns = tuple(zip(*found, strict=True)) if found else ((), (), (), ())
    return Poll(process, *times_us, OK, topic, topic_id, *_more(more), *columns, **_asked(more))


def _more(more: Mapping[str, Any]) -> tuple[str, str, str]:
    return more["mode"], more.get("group", ""), more["member"]


def _asked(more: Mapping[str, Any]) -> dict[str, Any]:
    return {"asked": more["asked"]} if "asked" in more else {}


def value_of(value: Any) -> str:
    """The value as a history names it."""
    return value["id"] if isinstance(value, dict) else value.decode()


class Promised:
    """A call that must end within a time; use it with `with`."""

    def __init__(self, run: Run, process: Process, what: str, seconds: float) -> None:
        self._run, self._process, self._what = run, process, what
        self._start_us = run.now_us
        self._deadline_us = run.now_us + int(seconds * 1e6) + CALL_SLACK_US

    def __enter__(self) -> None:
        self._run.open_calls[self] = self._call(None)

    def __exit__(self, *_: object) -> None:
        self._run.open_calls.pop(self, None)
        end_us = self._run.now_us
        if self._process.loop.thawed_us > self._start_us:
            return  # it promised nothing for a time in which it did not run
        self._run.history.add(self._call(end_us))

    def _call(self, end_us: int | None) -> Call:
        return Call(self._process.name, self._start_us, end_us, self._deadline_us, self._what)
