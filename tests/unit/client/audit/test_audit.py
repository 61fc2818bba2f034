"""The steps of an audit, each by itself: what can be judged, and which reports are compared."""

import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from memq.client.audit import audit
from memq.client.audit.audit import Window
from memq.client.topic import RetainedSince
from memq.core.audit.reports import StoredReport
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire.messages import WatermarkAnswer
from memq.errors import InvalidRequestError
from tests.unit.client.audit.test_stored import JOB, NOTIFICATION, each
from tests.unit.core.audit.test_produced import report

LIFE = NOTIFICATION.topic_id
INFO = SimpleNamespace(
    topic_id=LIFE,
    created_ms=1_000,
    config=SimpleNamespace(name="t", dedup_window_ms=50, retention_ms=100_000, audited=True),
)


def waters(topic_ms, reports_ms, partitions=()):
    """How far a topic and the reports about it are stored."""
    answers = [
        WatermarkAnswer(
            stored_through_ms=ms,
            write_partitions=write_partitions,
            read_partitions=[],
            retained_since_ms=0,
        )
        for ms, write_partitions in ((topic_ms, list(partitions)), (reports_ms, []))
    ]
    return audit._Watermarks(*answers)


# -- what can be judged --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end_ms", "stored_ms"),
    [
        (None, [0]),
        (101, [100, 101]),
        (60_100, [100]),  # it is not worth while
    ],
)
async def test_an_audit_waits_for_a_window_that_ends_now(monkeypatch, end_ms, stored_ms):
    """Until the topic and its reports are stored so far; not for one that ends much later."""
    monkeypatch.setattr(audit, "LOOK_S", 0.001)
    monkeypatch.setattr(audit, "CLOSING_S", 50.0)
    answers = [waters(each, each) for each in stored_ms]
    left = iter(answers)

    async def watermark():
        return next(left).topic

    async def of_reports():
        return answers[-1].reports

    topic, reports = SimpleNamespace(watermark=watermark), SimpleNamespace(watermark=of_reports)
    found = await audit._watermarks(topic, reports, end_ms)
    assert (found.stored_through_ms, list(left)) == (stored_ms[-1], [])


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
    ("topic_id", "stored_ms", "about"),
    [(LIFE, 0, True), ("f" * 16, 2_000, False), ("", 999, False), ("", 1_000, True)],
)
def test_a_report_is_about_one_life_of_a_topic(topic_id, stored_ms, about):
    """By what it says, or else by when it was stored."""
    stored = StoredReport(report(0, 0, topic_id=topic_id), stored_ms)
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


@pytest.mark.parametrize(
    ("config", "window", "said"),
    [
        ({"audited": False}, (None, None), "do not report"),
        ({"name": AUDIT_TOPIC}, (None, None), "audit the other topics"),
        ({}, (5, 5), r"ends at 1970-01-01T00:00:00\.005Z, but"),
        ({}, (5, 6), ""),
    ],
)
def test_what_cannot_be_audited_says_so(config, window, said):
    """A topic without reports, that of the reports, and a window that holds no time."""
    info = SimpleNamespace(config=SimpleNamespace(**vars(INFO.config) | config))
    with pytest.raises(InvalidRequestError, match=said) if said else nullcontext():
        audit._check(info, Window(*window))


@pytest.mark.parametrize(("stored_ms", "judged"), [(9, False), (10, True), (20, True), (21, False)])
def test_a_report_is_judged_once_the_topic_is_stored_so_far(stored_ms, judged):
    """Not one that was stored later: what it names may be on its way."""
    inspector = SimpleNamespace(topic=None)
    one = audit._TopicAudit(INFO, Window(10, 30), inspector, SimpleNamespace(audit_topic=None))
    one._watermarks = waters(15, 30, [20, 5])
    assert one._is_judged(StoredReport(report(0, 0), stored_ms)) is judged


# -- which reports -------------------------------------------------------------------------------


async def test_reports_of_suspects_are_bounded(monkeypatch):
    """Those of other producers, and of consumers, are left out; too many are refused."""
    reports = [StoredReport(JOB, 5)]
    for at in range(6):
        about = report(at, at, producer_id="pq"[at % 2], topic_id=LIFE)
        reports.append(StoredReport(about, at))
    suspects = {reports[1].report.name}

    class Told(audit._TopicAudit):
        def _reports(self):
            return each(reports)

    inspector = SimpleNamespace(topic=SimpleNamespace(topic="t"))
    told = Told(INFO, Window(None, None), inspector, SimpleNamespace(audit_topic=None))
    assert await told._suspected(suspects) == reports[1::2]
    monkeypatch.setattr(audit, "MAX_REPORTS", 2)
    with pytest.raises(InvalidRequestError, match="choose a shorter one"):
        await told._suspected(suspects)


# -- the window of an audit ---------------------------------------------------------------------


def test_window_widens_around_times():
    """A widened window has room on both sides of all that was asked for; no bound stays none."""
    assert Window(100, 200).widened(10, [50, 150, 300]) == Window(40, 310)
    assert Window(5, 6).widened(10) == Window(0, 16)
    assert Window(None, None).widened(10, [50]) == Window(None, None)
