"""What is stored: what is sound in Batches, what is damaged and whose it is; and the reports."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.audit.stored import BatchInspector, Damage, Inspection, ReportReader, inspect
from memq.core.audit.reports import ConsumedReport, encode_report, encode_reports, report_key
from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder
from memq.core.format.message import encode_message, encode_records
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.notification import PublishedBatch
from memq.core.ranges import OffsetRange
from memq.errors import CorruptDataError, ObjectNotFoundError, StorageError, UnavailableError
from tests.unit.core.audit.test_produced import report
from tests.unit.core.audit.test_reports import CONSUMED
from tests.unit.core.format.builders import joined, records, seal
from tests.unit.reading.batches import notify

SEALED = seal([records(2 + number) for number in range(5)])
DATA = joined(SEALED)
NOTIFICATION = notify(SEALED)


def look(data, *, deep, **fields):
    notification = msgspec.structs.replace(NOTIFICATION, **fields)
    return inspect(
        notification, lambda start, length: bytes(data[start : start + length]), deep=deep
    )


def sequences(runs):
    return {s for run in runs for s in range(run.first, run.last + 1)}


@given(position=st.integers(0, len(DATA) - 1), value=st.integers(1, 255))
def test_no_wrong_byte_escapes_a_deep_look(position, value):
    """Whatever byte is wrong, it is found, and only sound Messages count as such."""
    data = bytearray(DATA)
    data[position] ^= value
    found = look(data, deep=True)
    assert found.findings
    assert {entry.sequence for entry in found.sound} | sequences(found.damaged) == set(range(5))
    for entry in found.sound:
        whole = slice(entry.offset, entry.offset + entry.length)
        assert data[whole] == DATA[whole]
    if SEALED.entries[0].offset <= position < SEALED.entries[-1].offset:
        assert len(found.sound) == 4


@given(position=st.integers(0, len(DATA) - 1), value=st.integers(1, 255))
def test_index_alone_never_misleads(position, value):
    """With any byte wrong, the index is the true one or the whole Batch is called damaged."""
    data = bytearray(DATA)
    data[position] ^= value
    found = look(data, deep=False)
    if position >= SEALED.index_offset:
        assert sequences(found.damaged) == set(range(5))
        assert found.findings
    else:
        assert list(found.sound) == list(SEALED.entries)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("size", "fields", "said"),
    [
        *((size, {}, "") for size in (0, 1, 20, len(DATA) - 1)),
        (None, {"batch_id": "batch-2"}, "another Batch, batch-1"),
    ],
)
def test_what_is_cut_short_or_another_batch_is_damaged(deep, size, fields, said):
    """It holds nothing that can be relied on."""
    found = look(DATA[:size], deep=deep, **fields)
    assert sequences(found.damaged) == set(range(5))
    assert said in found.findings[0]


@pytest.mark.parametrize("deep", [False, True])
def test_notification_that_names_other_messages_is_a_finding(deep):
    """Index and notification must agree; the Messages of the index count."""
    found = look(DATA, deep=deep, producers=[])
    assert len(found.sound) == 5
    assert "its notification says producers = []" in found.findings[0]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ObjectNotFoundError("no"), Inspection(findings=["the object does not exist"], gone=True)),
        (StorageError("bad"), Inspection(damaged=NOTIFICATION.producers, findings=["bad"])),
        (UnavailableError("away"), None),
    ],
)
def test_an_object_that_cannot_be_read_is_gone_or_damaged(error, found):
    """Where nobody can be asked, nothing is said about it."""

    def get_range(start, length):
        raise error

    if found is None:
        with pytest.raises(UnavailableError):
            inspect(NOTIFICATION, get_range, deep=False)
    else:
        assert inspect(NOTIFICATION, get_range, deep=False) == found


RUN = NOTIFICATION.producers[0]
JOB = msgspec.structs.replace(CONSUMED, consumer="job")


async def each(items):
    """A stream of some items."""
    for item in items:
        yield item


# -- looking into Batches ------------------------------------------------------------------------


def published(partition, offset, timestamp_ms=1_500, notification=NOTIFICATION):
    """A Batch of its topic."""
    return PublishedBatch(partition, offset, timestamp_ms, notification)


class Topic:
    """A topic whose Batches and starts are decided by a test."""

    def __init__(self, *batches):
        self.batches, self.first = batches, {0: 0, 1: 0}
        self.topic = "t"

    def batches_by_time(self, ranges, _damaged):
        wanted = {each.partition for each in ranges} or {0, 1}
        return each([batch for batch in self.batches if batch.partition in wanted])

    async def starts(self):
        return dict(self.first)


class Told:
    """A reconciliation that needs everything, and keeps what cannot be read."""

    def __init__(self):
        self.unread = []

    def needs(self, *_, **__):
        return True

    def unreadable(self, write_partition, run, *, gone, in_window):
        self.unread.append((write_partition, run.first, run.last, gone, in_window))


def inspector(topic, damage, inspections):
    """An inspector that finds what is decided."""

    async def inspect_batches(batches):
        async for batch in batches:
            yield batch, inspections(batch)

    return BatchInspector(
        topic,
        None,
        damage,
        in_window=lambda time_ms: time_ms < 2_000,
        inspect_batches=inspect_batches,
        deep=False,
        progress=None,
    )


async def test_what_retention_removes_meanwhile_is_not_called_lost():
    """Whenever it does, in each read partition; what it has not removed is."""
    places = [(0, 0), (3, 0), (0, 1), (0, 2), (3, 1), (0, 3), (3, 5)]
    topic = Topic(*(published(*place) for place in places))
    topic.first = {0: 0, 3: 0}
    starts = {(0, 0): {0: 1}, (0, 2): {0: 3}, (3, 1): {3: 2}, (3, 5): {0: 4, 3: 5}}
    removed = {(0, 0), (0, 2), (3, 1)}

    def gone(batch):
        topic.first |= starts.get((batch.partition, batch.offset), {})
        return Inspection(findings=["gone"], gone=True)

    damage, told = Damage(), Told()
    await inspector(topic, damage, gone).look([OffsetRange(p, 0, 9) for p in (0, 3)], told)
    named = [line.partition(" (")[0].rpartition("clicks/")[2] for line in damage.lines()]
    assert named == [
        f"{p}/{o}".replace("/", " offset ") for p, o in places if (p, o) not in removed
    ]
    assert told.unread == [(3, 0, 4, True, True)] * 4


async def test_what_cannot_be_read_is_told_and_named():
    """Damaged runs with what is wrong, and what contradicts itself; many runs are counted."""
    few = msgspec.structs.replace(RUN, first=7, last=7, records=1)
    found = [
        Inspection(damaged=[few] * 7, findings=["bad"]),
        Inspection(findings=["contradicts"]),
        Inspection(),
    ]
    damage, told = Damage(), Told()
    topic = Topic(*(published(0, at) for at in range(3)))
    look = inspector(topic, damage, lambda batch: found[batch.offset])
    await look.look([OffsetRange(0, 0, 3)], told)
    assert told.unread == [(3, 7, 7, False, True)] * 7
    runs = ", ".join(["producer producer-1 epoch 2 sequence 7 (1 LogMessage)"] * 5)
    lines = [line.partition(": ")[2] for line in damage.lines()]
    assert lines == [f"bad; it concerns {runs}, 2 more runs", "contradicts"]


# -- reading reports -----------------------------------------------------------------------------


def stored_rows(rows):
    """A Batch of the audit topic with these keys and values, and what notifies it."""
    builder = BatchBuilder(
        serialize_schema(DEFAULT_SCHEMA), batch_id="reports", topic="a", write_partition=0
    )
    keys, values = zip(*rows, strict=True)
    body = encode_message(encode_records(list(keys), list(values), None, [0] * len(keys)))
    builder.add(
        body,
        producer_id="r",
        epoch=0,
        sequence=0,
        records=len(keys),
        min_timestamp_us=0,
        max_timestamp_us=0,
        crc32c=crc32c(body),
    )
    data = joined(builder.seal())
    return data, msgspec.structs.replace(
        NOTIFICATION, batch_id="reports", topic="a", size_bytes=len(data)
    )


async def read_reports(topic, get_range, *, end_ms=None):
    """The reports about topic t that a reader finds, and what it says it cannot read."""
    damage = Damage()
    with ThreadPoolExecutor(1) as executor:
        reader = ReportReader(topic, "t", executor, damage)
        reader._objects = SimpleNamespace(get_range=get_range)
        found = [stored async for stored in reader.read([], end_ms)]
    return found, damage.lines()


@pytest.mark.parametrize(("end_ms", "produced"), [(None, 3), (1_501, 3), (1_500, 0), (1_499, 0)])
async def test_reports_about_a_topic_are_read(end_ms, produced):
    """Those under its two names; of producers only what was stored before the end."""
    several = [report(0, 1), report(0, 3, write_partition=1)]
    other = report(0, 0, topic="t2")
    data, notification = stored_rows(
        [
            *encode_reports(several),
            (report_key(other), encode_report(other)),
            (report_key(JOB), encode_report(JOB)),
            (report_key(several[0]), b'{"kind": "of another release"}'),
            *encode_reports([report(4, 4)]),
        ]
    )
    found, damage = await read_reports(
        Topic(published(0, 0, 1_500, notification)), lambda *_: data, end_ms=end_ms
    )
    assert {stored.stored_ms for stored in found} == {1_500}
    reports = [stored.report for stored in found]
    expected = [*several, JOB, report(4, 4)]
    assert reports == [one for one in expected if produced or isinstance(one, ConsumedReport)]
    assert damage == []


async def test_a_report_that_is_none_hides_no_other():
    """Neither one that cannot be decoded, nor one that is under the name of another."""
    first, last = report(0, 1), report(2, 3)
    other = encode_report(report(0, 0, topic="t2"))
    rows = [(report_key(first), value) for value in (b"no JSON", b"", other, encode_report(JOB))]
    data, notification = stored_rows([*encode_reports([first]), *rows, *encode_reports([last])])
    found, damage = await read_reports(Topic(published(0, 0, 1_500, notification)), lambda *_: data)
    assert [stored.report for stored in found] == [first, last]
    assert len(damage) == 4
    assert sum("not an audit report" in line for line in damage) == 2
    assert sum("under the name of 't'" in line for line in damage) == 2


@pytest.mark.parametrize(
    ("error", "removed", "named"),
    [
        (ObjectNotFoundError("gone"), False, True),
        (ObjectNotFoundError("gone"), True, False),
        (StorageError("bad sector"), False, True),
        (StorageError("bad sector"), True, True),
        (CorruptDataError("none of this topic"), True, True),
        (b"cut short", True, True),
        (DATA, True, True),  # another Batch
    ],
)
@pytest.mark.parametrize("partition", [0, 1])
async def test_reports_that_cannot_be_read_hide_no_others(error, removed, named, partition):
    """Their Batch is named, unless retention has removed it meanwhile; the others are read."""
    data, notification = stored_rows(encode_reports([report(0, 1)]))
    bad = msgspec.structs.replace(notification, uri="bad")
    topic = Topic(
        published(0, 4, 1_500, notification),
        published(partition, 5, 1_500, bad),
        published(1, 6, 1_500, notification),
    )
    topic.first = {partition: 5 + removed, 1 - partition: 9 * (not removed)}

    def get_range(uri, start, length):
        if uri != "bad":
            return data
        if isinstance(error, bytes):
            return error
        raise error

    found, damage = await read_reports(topic, get_range)
    assert [stored.report for stored in found] == [report(0, 1)] * 2
    assert len(damage) == named
    assert all("held reports that cannot be read" in line for line in damage)


async def test_an_audit_ends_where_nobody_can_be_asked():
    """An outage is no damage: nothing is said of reports then."""
    _, notification = stored_rows(encode_reports([report(0, 1)]))

    def away(*_):
        raise UnavailableError("the storage is away")

    with pytest.raises(UnavailableError):
        await read_reports(Topic(published(0, 0, 1_500, notification)), away)
