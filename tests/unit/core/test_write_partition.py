"""The TopicProcessor: ring, order, acks, repeats, failures."""

import itertools
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memq.core import write_partition as topic_processor
from memq.core.clock import ClockReading
from memq.core.deduplication import DeduplicationWindow
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.notification import NOTIFICATION_VERSION, decode_notification
from memq.core.topic import TopicConfig
from memq.core.wire.messages import Write, WriteAnswer
from memq.core.write_partition import (
    ACKS_ALL,
    Accepted,
    AnswerWrite,
    BatchEnded,
    BatchState,
    Duplicate,
    PublishBatches,
    ReleaseBodies,
    TopicProcessor,
    UploadBatch,
)
from memq.errors import (
    InvalidRequestError,
    ProducerFencedError,
    QueueError,
    QueueFailedError,
    SequenceConflictError,
    SequenceGapError,
    StorageError,
)
from tests.unit.core.wire import builders

SCHEMAS = {"s1": serialize_schema(DEFAULT_SCHEMA), "s2": serialize_schema(DEFAULT_SCHEMA)}
BODY = bytes(64)  # the processor never looks inside


def processor(number: int = 0, *, written_ms: int = 0, opened_ms: int = -1, **options):
    ids = itertools.count()
    options = {"batch_bytes": "1KiB", "message_bytes": "1KiB", "ring_slots": 2} | options
    return TopicProcessor(
        TopicConfig.create("t", **options),
        number,
        topic_id="1" * 16,
        broker_id="b7",
        schemas=SCHEMAS,
        new_batch_id=lambda ms: f"{ms:012x}-{next(ids)}",
        locate=lambda *place: ("key", "mem://" + "/".join(map(str, place))),
        window=DeduplicationWindow(3_600_000),
        written_ms=written_ms,
        opened_ms=opened_ms,
    )


def write(sequence: int, *, producer="p", schema="s1", unsettled=0, **fields) -> Write:
    return builders.write(
        sequence=sequence,
        producer_id=producer,
        first_unsettled=unsettled,
        schema_id=schema,
        min_timestamp_us=5,
        max_timestamp_us=9,
        **fields,
    )


def now(ms: int = 0) -> ClockReading:
    return ClockReading(ms, 1_000_000 + ms)


@dataclass
class Rim:
    """Carries out effects as a broker would, and keeps what it saw."""

    processor: TopicProcessor
    uploads: list = field(default_factory=list)
    publishes: list = field(default_factory=list)
    answers: dict = field(default_factory=dict)
    released: list = field(default_factory=list)
    gone: list = field(default_factory=list)
    next_offset: int = 0

    def drain(self) -> None:
        for effect in self.processor.take_effects():
            match effect:
                case UploadBatch(batch):
                    self.uploads.append(batch)
                case PublishBatches():
                    self.publishes.append(effect)
                case AnswerWrite(ticket, outcome):
                    assert ticket not in self.answers
                    self.answers[ticket] = outcome
                case ReleaseBodies(batch):
                    assert batch not in self.released
                    self.released.append(batch)
                case BatchEnded(batch, published):
                    assert batch in self.released
                    self.gone.append((batch, published))

    def store(self, batch) -> None:
        self.processor.stored(batch)
        self.drain()
        assert batch in self.released, "memory is given back before the publication"
        assert batch.state is BatchState.FAILED or batch.sealed.buffers == []

    def publish(self, ms: int = 0) -> None:
        publish = self.publishes.pop(0)
        offsets = range(self.next_offset, self.next_offset + len(publish.batches))
        self.next_offset += len(publish.batches)
        self.processor.published(publish.batches, offsets, now(ms))
        self.drain()


def rim(**options) -> Rim:
    return Rim(processor(**options))


def send(r: Rim, sequence: int, *, body=BODY, crc=1, ticket=None, ms=0, **kw):
    outcome = r.processor.write(
        write(sequence, **kw), body, crc, ticket if ticket is not None else sequence, now(ms)
    )
    r.drain()
    return outcome


def test_batch_is_sealed_by_age() -> None:
    """A Batch is sealed when it is as old as the topic says, not before."""
    r = rim(batch_age="100ms")
    send(r, 0, ms=50)
    assert r.processor.seal_due_ms() == 150
    r.processor.tick(now(149))
    r.drain()
    assert r.uploads == []
    r.processor.tick(now(150))
    r.drain()
    assert len(r.uploads) == 1
    assert r.processor.seal_due_ms() is None


def test_batch_is_sealed_before_its_notification_is_too_large(monkeypatch) -> None:
    """Many gaps or producers in one Batch seal it: its notification must fit into the queue."""
    monkeypatch.setattr(topic_processor, "MAX_NOTIFICATION_BYTES", 500)
    r = rim()
    for sequence in range(5):
        send(r, sequence)
    assert r.uploads == [], "a run without gaps takes its place once"
    for sequence in range(10, 30, 2):
        send(r, sequence)
    assert len(r.uploads) == 1
    r.store(r.uploads[0])
    assert len(r.publishes[0].publications[0].payload) < 500 + 600


def test_watermark_of_a_read_partition_holds_when_its_topic_is_altered() -> None:
    """What was accepted goes where it is expected; nothing is written down as before the mark."""
    r = rim(write_partitions=2, read_partitions=4)  # 0 feeds 0 and 2, and then 0 and 3
    send(r, 0, ms=20)
    told = r.processor.stored_through_by_read_ms(now(30))
    assert told == [now(20).wall_ms, now(30).wall_ms] * 2
    altered = msgspec.structs.replace(r.processor.config, write_partitions=3)
    r.processor.configure(altered, SCHEMAS, 0, ClockReading(40, now(25).wall_ms))
    r.processor.write(write(1), BODY, 1, 1, ClockReading(50, now(10).wall_ms))
    r.processor.seal(ClockReading(60, now(11).wall_ms))
    r.drain()
    found = [(batch.partition, batch.sealed_wall_ms) for batch in r.uploads]
    assert found == [(0, now(30).wall_ms), (3, now(30).wall_ms)]
    marks = r.processor.stored_through_by_read_ms(now(70))
    assert marks == [now(ms).wall_ms for ms in (20, 70, 70, 10)]


def test_no_batch_is_sealed_before_a_watermark_that_was_told() -> None:
    """Its wall time stands still when the clock goes back."""
    r = rim()
    assert r.processor.stored_through_ms(now(30)) == now(30).wall_ms
    r.processor.write(write(0), BODY, 1, 0, ClockReading(40, now(10).wall_ms))
    assert r.processor.stored_through_ms(now(50)) == now(10).wall_ms
    r.processor.seal(ClockReading(60, now(20).wall_ms))
    r.drain()
    assert r.uploads[0].sealed_wall_ms == now(30).wall_ms


def test_a_watermark_passes_no_batch_that_a_clock_put_before_others() -> None:
    """Of all Batches that are not published it is the earliest by the wall, not the oldest."""
    r = rim()
    send(r, 0, ms=30)
    r.processor.seal(now(31))
    r.processor.write(write(1), BODY, 1, 1, ClockReading(40, now(10).wall_ms))
    assert r.processor.stored_through_ms(now(50)) == now(10).wall_ms


def sealed(r: Rim, *sequences: int, ms: int = 0, **kw) -> list:
    """Batches with one Message each, sealed one after the other."""
    for sequence in sequences:
        send(r, sequence, ms=ms, **kw)
        r.processor.seal(now(ms))
    r.drain()
    return r.uploads[-len(sequences) :]


def test_a_batch_that_is_full_to_the_byte_is_sealed_at_once() -> None:
    """It waits for nothing; a word less, and it is sealed by what comes next or by its age."""
    room = 1024 - len(SCHEMAS["s1"])
    for size, full in ((room, True), (room - 8, False)):
        r = rim()
        send(r, 0, body=bytes(size - 40))
        assert r.processor.room_for(40, "s1")
        send(r, 1, body=bytes(40))
        assert [batch.builder.messages for batch in r.uploads] == [2] * full


def test_no_more_batches_exist_than_there_are_slots() -> None:
    """What would need another one has no room; what joins the open Batch has."""
    r = rim(ring_slots=2)
    sealed(r, 0)
    send(r, 1)
    assert r.processor.room_for(64, "s1")
    assert not r.processor.room_for(64, "s2")
    r.processor.seal(now())
    assert not r.processor.room_for(64, "s1")


def test_what_is_altered_holds_from_then_on() -> None:
    """Window, schemas, slots and limits are those of the altered topic, also for what is open."""
    r = rim(dedup_window="1h", batch_messages=4)
    send(r, 0)
    altered = TopicConfig.create(
        "t", dedup_window="2h", batch_messages=2, ring_slots=5, batch_age="7ms", batch_bytes="1KiB",
        message_bytes="1KiB",
    )  # fmt: skip
    third = SCHEMAS | {"s3": SCHEMAS["s1"]}
    r.processor.configure(altered, third, 5_000_000, now(10))
    assert r.processor.window.window_ms == 7_200_000
    assert (r.processor.load.ring_slots, r.processor.seal_due_ms()) == (5, 7)
    assert r.uploads == [], "it goes where it would have gone"
    send(r, 1, schema="s3", ticket="s3", ms=20)
    assert [batch.schema_id for batch in r.uploads] == ["s1"]
    send(r, 2, schema="s3", ms=21)
    assert [batch.schema_id for batch in r.uploads] == ["s1", "s3"]
    assert [batch.sealed_wall_ms for batch in r.uploads] == [5_000_000] * 2
    r.processor.configure(altered, third, 7, now(30))
    (later,) = sealed(r, 3, ms=40)
    assert later.sealed_wall_ms == 5_000_000, "what was told before is not taken back"


def test_the_deadline_of_a_batch_begins_when_it_is_sealed() -> None:
    """It does not begin anew with each publication, and holds to the millisecond."""
    r = rim(upload_deadline="300ms")
    send(r, 0, ms=0)
    r.processor.seal(now(200))
    r.drain()
    (batch,) = r.uploads
    assert batch.deadline_mono_ms == 500
    r.store(batch)
    for ms in (250, 400, 499):
        r.processor.publish_failed(r.publishes.pop().batches, QueueError("busy"), now(ms))
        r.drain()
        assert r.answers == {}
    r.processor.publish_failed(r.publishes.pop().batches, QueueError("busy"), now(500))
    r.drain()
    assert isinstance(r.answers[0], QueueError)


def test_a_refusal_that_stays_fails_each_batch_at_once() -> None:
    """Whatever time they have left, and none of them is published again."""
    r = rim(ring_slots=4, upload_deadline="5m")
    first, second, third = sealed(r, 0, 1, 2)
    r.store(second)
    r.store(first)
    r.processor.publish_failed(r.publishes.pop().batches, QueueFailedError("no"), now(1))
    r.drain()
    assert {type(r.answers[number]) for number in (0, 1)} == {QueueFailedError}
    assert 2 not in r.answers
    r.store(third)
    assert r.publishes[0].batches == [third]


@pytest.mark.parametrize("ordering", ["none", "producer"])
def test_what_is_given_up_is_nacked_once_and_can_be_sent_again(ordering) -> None:
    """Open, uploading, stored or in doubt: all of it is gone, and its bodies are given back."""
    r = rim(ordering=ordering, ring_slots=8)
    uncertain, stored, _ = sealed(r, 0, 1, 2)
    r.store(uncertain)
    r.processor.publish_uncertain()
    r.store(stored)
    send(r, 3)
    send(r, 4, acks=1)
    r.processor.abandon(StorageError("closed"))
    r.drain()
    assert {number: type(told) for number, told in r.answers.items()} == dict.fromkeys(
        range(4), StorageError
    )
    assert [published for _, published in r.gone] == [False] * 4
    assert len(r.released) == 4
    assert r.processor.idle
    assert r.processor.load.pending_messages == 0
    r.store(stored)
    assert not r.publishes[1:]
    assert send(r, 0, ticket="again") == Accepted(kept=True)


def test_a_failure_in_an_ordered_topic_leaves_what_is_before_it() -> None:
    """Those sealed before the one that failed are published and acked; the rest starts from it."""
    r = rim(ordering="producer", ring_slots=8)
    first, second, third = sealed(r, 0, 1, 2)
    send(r, 3)
    send(r, 9, producer="q", unsettled=9, ticket="q")
    r.processor.failed(second, StorageError("no"))
    r.drain()
    kinds = {ticket: type(told) for ticket, told in r.answers.items()}
    assert kinds == {
        1: StorageError, 2: SequenceGapError, 3: SequenceGapError, "q": SequenceGapError
    }  # fmt: skip
    assert all(told.retriable for told in r.answers.values())
    gone = [*r.gone]
    for late in (second, third):  # an upload that ends after its Batch
        r.processor.failed(late, StorageError("late"))
        r.drain()
    assert r.gone == gone
    r.store(third)
    r.store(first)
    assert [each.batches for each in r.publishes] == [[first]]
    r.publish()
    assert isinstance(r.answers[0], WriteAnswer)
    with pytest.raises(SequenceGapError, match="came before 1"):
        send(r, 2, ticket="early")
    assert send(r, 1, ticket="again") == Accepted(kept=True)
    assert isinstance(send(r, 0, ticket="twice"), Duplicate)
    with pytest.raises(SequenceGapError, match="came before 0"):
        send(r, 1, epoch=1, ticket="too early")
    assert send(r, 0, epoch=1, ticket="of a new epoch") == Accepted(kept=True)
    with pytest.raises(ProducerFencedError):
        send(r, 2, ticket="old")


def test_a_message_that_may_wait_is_due_after_those_that_wait() -> None:
    """Counted from what was accepted, from what its producer gave up, and from what waits."""
    r = rim(ordering="producer")
    send(r, 0)
    check = r.processor.check_no_gap
    check(write(1))
    check(write(0))
    check(write(5, unsettled=5))
    check(write(3), 2)
    check(write(1), 2)
    early = (write(2), -1), (write(2), 0), (write(4), 2), (write(9, unsettled=8), 2)
    for request, parked in early:
        with pytest.raises(SequenceGapError):
            check(request, parked)
    rim().processor.check_no_gap(write(9))


def test_a_refused_message_changes_nothing() -> None:
    """Whatever it is refused for, and in whatever state: the next good one finds all as it was."""
    r = rim(ordering="producer", ring_slots=3)
    (batch,) = sealed(r, 0)
    send(r, 1)
    before = (r.processor.load, r.processor.window.next_sequence("p", 0), r.processor.batch_ids)
    bad = [
        (write(3), 1, SequenceGapError),
        (write(1), 2, SequenceConflictError),
        (write(2, unsettled=3), 1, InvalidRequestError),
        (msgspec.structs.replace(write(2), max_timestamp_us=2**63), 1, InvalidRequestError),
        (write(5, producer="new"), 1, SequenceGapError),
    ]
    for request, crc, error in bad:
        with pytest.raises(error):
            r.processor.write(request, BODY, crc, "bad", now(1))
    after = (r.processor.load, r.processor.window.next_sequence("p", 0), r.processor.batch_ids)
    assert after == before
    r.processor.seal(now(2))
    r.drain()
    for each in (batch, r.uploads[-1]):
        r.store(each)
        r.publish()
    assert set(r.answers) == {0, 1}


def test_all_that_is_written_down_of_a_batch() -> None:
    """Its names, numbers and both of its times, in notification, key and publication."""
    r = Rim(
        processor(2, write_partitions=3, read_partitions=6, written_ms=1_000_050, opened_ms=700)
    )
    written = [(701, 1_000_050, 40), (702, 1_000_061, 61)]
    for number, sealed_ms in enumerate((40, 61)):
        send(r, number, schema="s2", ms=20 + number)
        r.processor.seal(now(sealed_ms))
        r.drain()
    ids = [f"{opened_ms:012x}-{at}" for at, (opened_ms, *_) in enumerate(written)]
    r.store(r.uploads[1])
    r.store(r.uploads[0])
    (publications,) = (each.publications for each in r.publishes)
    assert [(each.partition, each.timestamp_ms, each.running_ms) for each in publications] == [
        (partition, *times) for partition, (_, *times) in zip((2, 5), written, strict=True)
    ]
    sealed = r.uploads[1].sealed
    told = msgspec.structs.asdict(decode_notification(publications[1].payload))
    (producer,) = told.pop("producers")
    assert msgspec.structs.astuple(producer) == ("p", 0, 1, 1, 1, 1)
    assert told == {
        "version": NOTIFICATION_VERSION,
        "topic": "t",
        "topic_id": "1" * 16,
        "write_partition": 2,
        "batch_id": ids[1],
        "uri": f"mem://{ids[1]}/1000061/61",
        "size_bytes": sealed.size_bytes,
        "index_offset": sealed.index_offset,
        "messages": 1,
        "records": 1,
        "min_timestamp_us": 5,
        "max_timestamp_us": 9,
        "schema_id": "s2",
        "broker_id": "b7",
        "sealed_ms": 1_000_061,
        "stored_through_ms": 1_000_061,
    }
    r.publish()
    assert r.answers[1] == WriteAnswer(partition=5, offset=1, batch_id=ids[1])
    assert send(r, 1, schema="s2", ticket="again").batch == (5, 1, ids[1])
    send(r, 2, ms=900)
    (later,) = r.processor.batch_ids
    assert later == f"{900:012x}-2", "ids go on from the clock once that is ahead"


class Simulation(RuleBasedStateMachine):
    """Random producers, uploads, failures, uncertain publishes: the promises hold throughout."""

    @initialize(
        ordering=st.sampled_from(["none", "producer"]),
        slots=st.integers(1, 4),
        messages=st.integers(1, 4),
        reads=st.sampled_from([1, 2, 4]),
    )
    def start(self, ordering: str, slots: int, messages: int, reads: int) -> None:
        self.rim = rim(
            ordering=ordering,
            ring_slots=slots,
            batch_messages=messages,
            upload_deadline="300ms",
            read_partitions=reads,
        )
        self.clock = 0
        self.wall_ms = 1_000  # ahead of the clock
        self.told = [0] * reads  # watermarks, by read partition
        self.published_ms = [0] * reads
        self.next = dict.fromkeys("pq", 0)
        self.waiting: dict[int, tuple] = {}
        self.tickets = itertools.count()
        self.sealed: list[str] = []
        self.queue: list = []  # what the notification queue holds: Batches, in order
        self.stored: set[str] = set()
        self.acked: dict[tuple, WriteAnswer] = {}
        self.in_doubt: list | None = None

    def _settle(self) -> None:
        self.rim.drain()
        for ticket, outcome in self.rim.answers.items():
            key = self.waiting.pop(ticket)
            if isinstance(outcome, WriteAnswer):
                self.acked[key] = outcome
                held = self.queue[outcome.offset]
                assert key in held.pending
        self.rim.answers.clear()

    def now(self) -> ClockReading:
        return ClockReading(self.clock, self.wall_ms + self.clock)

    @rule(
        producer=st.sampled_from("pq"),
        back=st.integers(0, 3),
        acks=st.sampled_from([0, 1, ACKS_ALL, ACKS_ALL]),
    )
    def send(self, producer: str, back: int, acks: int) -> None:
        sequence = max(0, self.next[producer] - back)
        if not self.rim.processor.room_for(64, "s1"):
            return
        ticket = next(self.tickets)
        key = (producer, 0, sequence)
        try:
            outcome = self.rim.processor.write(
                write(sequence, producer=producer, acks=acks), BODY, sequence, ticket, self.now()
            )
        except (SequenceGapError, SequenceConflictError) as exc:
            assert self.rim.processor.config.ordering == "producer"
            if isinstance(exc, SequenceGapError):
                self.next[producer] = sequence - 1 if sequence else 0
            return
        if isinstance(outcome, Duplicate):
            assert any(key in batch.pending for batch in self.queue)
        elif acks == ACKS_ALL:  # nothing else is answered later
            self.waiting[ticket] = key
        self.next[producer] = max(self.next[producer], sequence + 1)
        self._settle()

    @rule(ms=st.integers(1, 300))
    def pass_time(self, ms: int) -> None:
        before = self.rim.processor.stored_through_ms(self.now())
        self.clock += ms
        self.rim.processor.tick(self.now())
        assert self.rim.processor.stored_through_ms(self.now()) >= before
        self._settle()

    @rule(wall_ms=st.integers(0, 2_000))
    def set_wall_clock(self, wall_ms: int) -> None:
        self.wall_ms = wall_ms

    @rule()
    def ask_for_watermarks(self) -> None:
        by_read = self.rim.processor.stored_through_by_read_ms(self.now())
        assert self.rim.processor.stored_through_ms(self.now()) == min(by_read)
        assert max(by_read) <= self.now().wall_ms
        self.told = list(map(max, self.told, by_read))

    @rule(write_partitions=st.integers(1, 4))
    def alter(self, write_partitions: int) -> None:
        it = self.rim.processor
        most = max(write_partitions, it.config.write_partitions)
        altered = msgspec.structs.replace(it.config, write_partitions=most)
        it.configure(altered, SCHEMAS, it.written_ms, self.now())
        self._settle()

    def _publish(self, publish: PublishBatches, count: int) -> range:
        """Let the queue take some; none comes at a time that a watermark has closed."""
        for each in publish.publications[:count]:
            earliest_ms = max(self.told[each.partition], self.published_ms[each.partition])
            assert each.timestamp_ms >= earliest_ms
            self.published_ms[each.partition] = each.timestamp_ms
        self.queue += publish.batches[:count]
        return range(len(self.queue) - len(publish.batches[:count]), len(self.queue))

    @precondition(lambda self: self.rim.uploads)
    @rule(data=st.data(), fails=st.booleans())
    def finish_upload(self, data, fails: bool) -> None:
        batch = self.rim.uploads.pop(data.draw(st.integers(0, len(self.rim.uploads) - 1)))
        if fails:
            self.rim.processor.failed(batch, StorageError("injected"))
        else:
            self.stored.add(batch.batch_id)
            self.rim.store(batch)
        self._settle()

    @precondition(lambda self: self.rim.publishes and self.in_doubt is None)
    @rule(how=st.sampled_from(["done", "failed", "uncertain"]), reached=st.integers(0, 4))
    def finish_publish(self, how: str, reached: int) -> None:
        publish = self.rim.publishes.pop(0)
        assert not self.rim.publishes, "one publish at a time"
        assert all(batch.batch_id in self.stored for batch in publish.batches)
        if how == "done":
            offsets = self._publish(publish, len(publish.batches))
            self.rim.processor.published(publish.batches, offsets, self.now())
        elif how == "failed":
            error = QueueError("injected")
            self.rim.processor.publish_failed(publish.batches, error, self.now())
        else:
            self._publish(publish, reached)
            self.rim.processor.publish_uncertain()
            self.in_doubt = publish.batches
        self._settle()

    @precondition(lambda self: self.in_doubt is not None)
    @rule()
    def resolve(self) -> None:
        offsets = {batch.batch_id: at for at, batch in enumerate(self.queue)}
        self.in_doubt = None
        self.rim.processor.resolve(offsets, self.now())
        self._settle()

    @invariant()
    def nothing_is_published_twice(self) -> None:
        keys = [key for batch in getattr(self, "queue", []) for key in batch.pending]
        assert len(keys) == len(set(keys))

    @invariant()
    def seal_order_is_publish_order(self) -> None:
        numbers = [int(b.batch_id.split("-")[1]) for b in getattr(self, "queue", [])]
        assert numbers == sorted(numbers)

    @invariant()
    def ring_is_bounded(self) -> None:
        if hasattr(self, "rim"):
            assert len(self.rim.processor.batch_ids) <= self.rim.processor.config.ring_slots

    @invariant()
    def ordered_producers_stay_in_order(self) -> None:
        if hasattr(self, "rim") and self.rim.processor.config.ordering == "producer":
            for producer in "pq":
                seen = [s for b in self.queue for p, _, s in b.pending if p == producer]
                assert seen == sorted(seen)

    def teardown(self) -> None:
        if not hasattr(self, "rim"):
            return
        for _ in range(1_000):  # faults have stopped: everything must end
            if self.in_doubt is not None:
                self.resolve()
            self.rim.processor.seal(self.now())
            self._settle()
            while self.rim.uploads:
                batch = self.rim.uploads.pop()
                self.stored.add(batch.batch_id)
                self.rim.store(batch)
                self._settle()
            if self.rim.publishes:
                publish = self.rim.publishes.pop(0)
                offsets = self._publish(publish, len(publish.batches))
                self.rim.processor.published(publish.batches, offsets, self.now())
                self._settle()
            if self.rim.processor.idle:
                break
        assert self.waiting == {}, "every request is answered"
        assert self.rim.processor._pending == {}


TestSimulation = Simulation.TestCase
TestSimulation.settings = settings(stateful_step_count=60)
