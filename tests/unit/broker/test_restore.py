"""What is planned for a topic whose queue is lost, whatever had been published and backed up."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from memq.broker.restore import (
    Bucket,
    Readable,
    RestoreOutcome,
    notification_of,
    plan_topic,
    read_object,
)
from memq.core import backup
from memq.core.backup import Span, StateBackup
from memq.core.format.batch import BatchBuilder
from memq.core.format.message import encode_message, encode_records
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.governor.topics import new_topic
from memq.core.notification import decode_notification, encode_notification
from memq.core.queue import QueueEntry
from memq.core.topic import TopicConfig
from memq.storage.handler import ObjectInfo
from memq.storage.keys import BatchKey, object_key
from memq.testing.storage import InMemoryStorage
from tests.unit.core.format.builders import add

SCHEMA = serialize_schema(DEFAULT_SCHEMA)
TOPIC = new_topic(
    TopicConfig.create("t", read_partitions=2, write_partitions=2),
    (),
    now_ms=1,
    topic_id="0123456789abcdef",
    request_id="",
)
LOST = "the queue is gone"


def messages_of(it):
    """Messages of a Batch: write partition and sequence."""
    runs = [range(run.first, run.last + 1) for run in it.producers]
    return [(it.write_partition, sequence) for run in runs for sequence in run]


class History:
    """A topic as its brokers have it: Batches, notifications, backups.

    Attributes:
        published: Batch ids by read partition and offset: all there ever were.
        acked: Messages that were acked: write partition and sequence.
        backed_up: places that backups have.
        ends: of the read partitions.
    """

    def __init__(self):
        self.storage = InMemoryStorage()
        self.published, self.acked, self.backed_up = {}, set(), set()
        self.entries = {}
        self.ends, self.starts = [0, 0], [0, 0]
        self.done, self.noted_starts = [0, 0], [0, 0]
        self.batches = 0
        self.sequences = [0, 0]

    def _store(self, number, sequences):
        self.batches += 1
        key = BatchKey(
            "memq",
            "t",
            TOPIC.topic_id,
            number,
            10**12 + self.batches,
            f"b{self.batches}",
            self.batches,
        )
        builder = BatchBuilder(SCHEMA, batch_id=key.batch_id, topic="t", write_partition=number)
        for sequence in sequences:
            body = encode_message(encode_records(None, [b"v"], None, [sequence]))
            add(builder, body, producer_id="p", epoch=0, sequence=sequence, records=1)
        name, sealed = object_key(key), builder.seal()
        self.storage.put(name, sealed.buffers, timeout_s=9)
        return read_object(self.storage, ObjectInfo(name, sealed.size_bytes, 0))

    def publish(self, number, count):
        """Store a Batch of the next Messages, and publish it."""
        sequences = range(self.sequences[number], self.sequences[number] + count)
        self.sequences[number] += count
        stored = self._store(number, sequences)
        payload = encode_notification(notification_of(stored, self.storage.uri(stored.key)))
        place = (number, self.ends[number])
        self.ends[number] += 1
        self.published[place] = stored.parsed.batch_id
        self.entries[place] = QueueEntry(place[1], self.batches, payload, self.batches)
        self.acked |= {(number, each) for each in sequences}

    def give_up(self, number, count):
        """Store a Batch of the next Messages; its notification is never published."""
        self._store(number, range(self.sequences[number], self.sequences[number] + count))

    def skip(self, number, count):
        """Let offsets be used by nothing, as by markers of transactions."""
        self.ends[number] += count

    def expire(self, number, count):
        """Let retention remove the oldest."""
        mine = sorted(place for place in self.entries if place[0] == number)[:count]
        for place in mine:
            if place in self.backed_up:
                it = decode_notification(self.entries.pop(place).payload)
                self.starts[number] = place[1] + 1
                self.storage.delete(
                    next(i.key for i in self.storage.list("") if it.batch_id in i.key)
                )
                self.acked -= {
                    (number, each)
                    for run in it.producers
                    for each in range(run.first, run.last + 1)
                }

    def back_up(self, *_):
        """Write a backup."""
        some = [
            (TOPIC.queue_topic, number, entry)
            for (number, offset), entry in sorted(self.entries.items())
            if offset >= self.done[number]
        ]
        name = f"{self.batches:012x}-{len(list(self.storage.list('backup')))}"
        if some:
            key = backup.notifications_folder("memq") + name
            self.storage.put(key, [backup.encode_notifications(some)], timeout_s=9)
        self.done, self.noted_starts = list(self.ends), list(self.starts)
        self.backed_up |= self.entries.keys()
        state = StateBackup(
            broker_id="b",
            running_ms=self.batches,
            wall_ms=0,
            spans={
                TOPIC.queue_topic: [
                    Span(*each) for each in zip(self.starts, self.ends, strict=True)
                ]
            },
            groups={TOPIC.queue_topic: {"g": dict(enumerate(self.ends))}},
        )
        key = backup.states_folder("memq", "b") + name
        self.storage.put(key, [backup.encode_json(state)], timeout_s=9)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "give_up", "skip", "expire", "back_up"]),
        st.integers(0, 1),
        st.integers(1, 3),
    ),
    max_size=25,
)


@given(EVENTS, st.one_of(st.none(), st.sets(st.integers(0, 30))))
def test_nothing_acked_is_lost_doubled_or_moved(events, damaged):
    """What was backed up, or can be read, has its offset; no offset names a second Batch."""
    history = History()
    for name, number, count in events:
        getattr(history, name)(number, count)
    readable, kept = LOST, set(history.backed_up)
    if damaged is not None:
        sound = [place for at, place in enumerate(sorted(history.entries)) if at not in damaged]
        kept |= set(sound)
        lost = history.entries.keys() - set(sound)
        readable = Readable(
            [[history.entries[each] for each in sound if each[0] == number] for number in (0, 1)],
            history.starts,
            [[offset for partition, offset in lost if partition == number] for number in (0, 1)],
            history.ends,
            {},
        )
    outcome = RestoreOutcome("t", TOPIC.topic_id)
    plan = plan_topic(TOPIC, Bucket(history.storage, "memq", lambda *_: None), readable, outcome)
    if plan is None:
        assert damaged is not None
        assert set(history.entries) <= kept
        return
    places = {
        (number, entry.offset): decode_notification(entry.payload).batch_id
        for number, entries in enumerate(plan.entries)
        for entry in entries
    }
    restored = [decode_notification(each.payload) for each in itertools.chain(*plan.entries)]
    there = [message for it in restored for message in messages_of(it)]
    assert len(there) == len(set(there)), "doubled"
    assert history.acked <= set(there), "lost"
    for place in kept & history.entries.keys():
        assert places[place] == history.published[place], "moved"
    for place, batch_id in places.items():
        assert history.published.get(place, batch_id) == batch_id, "an offset names a second Batch"
    for number, entries in enumerate(plan.entries):
        offsets = [each.offset for each in entries]
        assert offsets == sorted(set(offsets))
        assert plan.starts[number] >= history.noted_starts[number]
        assert plan.ends[number] >= (offsets[-1] + 1 if offsets else 0)
        if outcome.later:
            assert plan.ends[number] > history.ends[number], "what comes next was never used"
