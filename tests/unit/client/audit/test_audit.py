"""The steps of an audit, each by itself: what is read, what belongs to it, what is removed."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest

from memq.client.audit import audit
from memq.client.audit.audit import Window
from memq.client.audit.stored import BatchInspector, Damage, Inspection, ReportReader
from memq.client.topic import RetainedSince
from memq.core.audit.reports import (
    ConsumedReport,
    StoredReport,
    encode_report,
    encode_reports,
    report_key,
)
from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder
from memq.core.format.message import encode_message, encode_records
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.notification.notification import PublishedBatch
from memq.core.ranges import OffsetRange
from memq.core.wire.messages import WatermarkAnswer
from memq.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    StorageError,
    UnavailableError,
)
from tests.unit.client.audit.test_stored import DATA, NOTIFICATION
from tests.unit.core.audit.test_produced import report
from tests.unit.core.audit.test_reports import CONSUMED
from tests.unit.core.format.builders import joined

LIFE = NOTIFICATION.incarnation
INFO = SimpleNamespace(
    incarnation=LIFE,
    created_ms=1_000,
    config=SimpleNamespace(name="t", dedup_window_ms=50, retention_ms=100_000),
)
RUN = NOTIFICATION.producers[0]
JOB = msgspec.structs.replace(CONSUMED, consumer="job")


async def each(items):
    """A stream of some items."""
    for item in items:
        yield item


def waters(topic_ms, reports_ms, partitions=()):
    """How far a topic and the reports about it are stored."""
    answers = [
        WatermarkAnswer(ms, write_partitions, [], 0)
        for ms, write_partitions in ((topic_ms, list(partitions)), (reports_ms, []))
    ]
    return audit._Watermarks(*answers)


class Water:
    """A topic that tells how far it is stored, one answer after the other."""

    def __init__(self, answers):
        self.answers = answers

    async def watermark(self):
        return next(self.answers)


# -- what can be judged --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end_ms", "times_ms"),
    [
        (None, [(0, 0)]),
        (100, [(100, 100)]),
        (101, [(100, 100), (101, 100), (100, 101), (102, 101)]),
        (100 + 60_000, [(100, 100)]),  # it is not worth while
    ],
)
async def test_an_audit_waits_for_a_window_that_ends_now(monkeypatch, end_ms, times_ms):
    """Until the topic and its reports are both stored so far."""
    monkeypatch.setattr(audit, "LOOK_S", 0.001)
    monkeypatch.setattr(audit, "CLOSING_S", 50.0)
    found = [waters(*pair) for pair in times_ms]
    topic, reports = iter([one.topic for one in found]), iter([one.reports for one in found])
    assert await audit._watermarks(Water(topic), Water(reports), end_ms) == found[-1]
    assert not list(topic)


@pytest.mark.parametrize(
    ("end_ms", "told"), [(None, False), (5, False), (6, True), (7, True), (8, True)]
)
def test_a_window_that_is_not_over_is_named(end_ms, told):
    """Where the topic or its reports are not stored so far, whichever is behind."""
    for found in (waters(5, 7), waters(7, 5)):
        assert bool(audit._not_over("t", found, end_ms)) is told


@pytest.mark.parametrize(
    ("start_ms", "partition"), [(None, 1), (0, 1), (8_999, 1), (9_000, None), (9_001, None)]
)
def test_a_window_that_begins_too_early_is_named(start_ms, partition):
    """By the read partition in which retention has come furthest."""
    since = [RetainedSince(0, 5_000), RetainedSince(1, 9_000), RetainedSince(2, -math.inf)]
    for some in itertools.permutations(since):
        lines = audit._not_retained("t", some, start_ms)
        assert len(lines) == (partition is not None)
        assert all("read partition 1 of 't'" in line for line in lines)
    nothing_removed = [RetainedSince(0, -math.inf)]
    assert audit._not_retained("t", nothing_removed, start_ms) == []


@pytest.mark.parametrize(
    ("incarnation", "stored_ms", "about"),
    [(LIFE, 0, True), ("f" * 16, 2_000, False), ("", 999, False), ("", 1_000, True)],
)
def test_a_report_is_about_one_life_of_a_topic(incarnation, stored_ms, about):
    """By what it says, or else by when it was stored."""
    stored = StoredReport(report(0, 0, incarnation=incarnation), stored_ms)
    assert audit._is_about(INFO, stored) is about


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "duplicates", "began_ms"),
    [
        (400, 500, 0, 400),
        (9_400, 9_500, 0, 900),  # a clock that is ahead: the report was stored after its window
        (400, 300, 0, 400),  # one that was set back
        (1_400, 1_300, 0, 1_000),
        (400, 500, 1, 350),
    ],
)
def test_messages_of_a_report_may_be_as_old_as_its_window(start_ms, end_ms, duplicates, began_ms):
    """Or as old as the dedup_window before it, where some had been published before."""
    about = report(0, 0, window_start_ms=start_ms, window_end_ms=end_ms, duplicates=duplicates)
    assert audit._began_ms(StoredReport(about, 1_000), 50) == began_ms


# -- which reports -------------------------------------------------------------------------------


async def test_only_reports_that_are_alike_are_joined(monkeypatch):
    """Not those of other producers, nor judged ones to others, nor of what may soon be removed."""
    monkeypatch.setattr(audit, "MAX_APART", 1)
    since_ms = 10_000
    ages_ms = {"old": 9_999, "soon": 10_000, "soon too": 3_609_999, "young": 3_610_000}
    reports = []
    for producer_id in ("p", "q", "no suspect"):
        first = itertools.count()
        for judged in (True, False):
            for began_ms in ages_ms.values():
                for _ in range(2):
                    at = next(first)
                    fields = {"window_start_ms": began_ms, "window_end_ms": began_ms}
                    about = report(at, at, producer_id=producer_id, incarnation=LIFE, **fields)
                    reports.append(StoredReport(about, began_ms + judged * 10**7))
    reports.append(StoredReport(JOB, 10**7))
    suspects = {
        stored.report.name for stored in reports[:-1] if stored.report.producer_id in ("p", "q")
    }
    found = await audit._suspected(
        each(reports), suspects, lambda stored: stored.stored_ms > 10**7, INFO, since_ms
    )
    runs = sorted(
        (one.report.producer_id, one.report.first, one.report.last, one.alike[1], one.began_ms)
        for one in audit._joined(found)
    )
    expected = [(0, 1, 9_999), (2, 5, 10_000), (6, 7, 3_610_000)]
    assert runs == [
        (producer_id, first + 8 * later, last + 8 * later, not later, began_ms)
        for producer_id in "pq"
        for later in range(2)
        for first, last, began_ms in expected
    ]
    assert await audit._suspected(each(reports), set(), bool, INFO, since_ms) == []


# -- looking into Batches ------------------------------------------------------------------------


def published(partition, offset, timestamp_ms=1_500, notification=NOTIFICATION):
    """A Batch of its topic."""
    return PublishedBatch(partition, offset, timestamp_ms, notification)


class Topic:
    """A topic whose Batches and starts are decided by a test."""

    def __init__(self, *batches):
        self.batches, self.first, self.asked = batches, {0: 0, 1: 0}, 0
        self.topic = "t"

    def batches_by_time(self, _ranges, _damaged):
        return each(self.batches)

    async def starts(self):
        self.asked += 1
        return dict(self.first)


class Told:
    """A reconciliation that needs everything, and keeps what it is told."""

    def __init__(self):
        self.unread, self.sound = [], []

    def needs(self, *_, **__):
        return True

    def unreadable(self, write_partition, run, *, gone, in_window):
        self.unread.append((write_partition, run.first, run.last, gone, in_window))

    def stored(self, name, sequence, records, crc, *, in_window):
        self.sound.append((name.write_partition, sequence, in_window))


def inspector(topic, damage, inspections, **options):
    """An inspector that finds what is decided."""

    async def inspect_batches(batches):
        async for batch in batches:
            yield batch, inspections(batch)

    options = {"deep": False, "progress": None} | options
    return BatchInspector(
        topic,
        None,
        damage,
        in_window=lambda time_ms: time_ms < 2_000,
        inspect_batches=inspect_batches,
        **options,
    )


async def test_what_cannot_be_read_is_told_and_named():
    """Damaged runs, those of a Batch that is gone, and what contradicts itself; nothing else."""
    few = msgspec.structs.replace(RUN, first=7, last=7, records=1)
    found = {
        0: Inspection(damaged=[few], findings=["bad"], sound=[]),
        1: Inspection(damaged=[few] * 7, findings=["bad", "worse"]),
        2: Inspection(findings=["contradicts"]),
        3: Inspection(),
        4: Inspection(damaged=[few], findings=["late"]),
    }
    times_ms = {4: 2_000}
    topic = Topic(*(published(0, at, times_ms.get(at, 1_500)) for at in found))
    damage, told, seen = Damage(), Told(), []
    look = inspector(
        topic, damage, lambda batch: found[batch.offset], progress=lambda *at: seen.append(at)
    )
    await look.look([OffsetRange(0, 0, 5)], told)
    assert told.unread == [(3, 7, 7, False, True)] * 8 + [(3, 7, 7, False, False)]
    lines = [line.partition(": ")[2] for line in damage.lines()]
    named = "producer producer-1 epoch 2 sequence 7 (1 LogMessage)"
    assert lines == [
        f"bad; it concerns {named}",
        f"bad; it concerns {', '.join([named] * 5)}, 2 more runs",
        f"worse; it concerns {', '.join([named] * 5)}, 2 more runs",
        "contradicts",
        f"late; it concerns {named}",
    ]
    assert topic.asked == 0
    await look.look([OffsetRange(0, 0, 3)], told)
    assert seen == [*((done, 5) for done in range(1, 6)), *((done, 8) for done in range(6, 11))]


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


# -- the window of an audit ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "held"),
    [
        (Window(None, None), [0, 5, 9]),
        (Window(5, None), [5, 9]),
        (Window(None, 5), [0]),
        (Window(5, 9), [5]),
    ],
)
def test_window_holds_its_start_and_not_its_end(window, held):
    """Windows that meet hold each time once."""
    assert [time_ms for time_ms in (0, 5, 9) if window.holds(time_ms)] == held


def test_window_widens_around_times():
    """A widened window has room on both sides of all that was asked for; no bound stays none."""
    assert Window(100, 200).widened(10, [50, 150, 300]) == Window(40, 310)
    assert Window(5, 6).widened(10) == Window(0, 16)
    assert Window(None, None).widened(10, [50]) == Window(None, None)
