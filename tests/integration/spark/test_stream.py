"""A stream over real brokers, call by call; over brokers that fail it is in the unit tests."""

from __future__ import annotations

import asyncio
import pickle

from pyspark.sql.streaming.datasource import ReadAllAvailable

from memq.client.audit.audit import audit_topic
from memq.errors import (
    UnavailableError,
)
from memq.spark import stream_reports
from tests.integration.spark.conftest import values
from tests.integration.spark.here import Stream, table


def test_a_micro_batch_is_planned_again_and_read_elsewhere(topics):
    """Planned again, by this process or another one, it has the same rows; the lag is what no
    micro-batch has taken yet, of each topic.
    """
    topics.make("a", "1", "2")
    topics.make("b", "1")
    stream = Stream(topics.address, **topics.pattern, maxOffsetsPerTrigger="1")
    stream.take()
    report = stream._reader.reportLatestOffset()
    assert report["lag"]["batches"] == 2
    lags = [each["lag"]["batches"] for each in report["topics"].values()]
    assert lags == [1, 1]
    start = stream._reader.initialOffset()
    end = stream._reader.latestOffset(start, ReadAllAvailable())
    expected = [("a", "1"), ("a", "2"), ("b", "1")]
    assert values(stream.rows(start, end)) == expected
    assert stream._reader.reportLatestOffset()["lag"]["batches"] == 0
    topics.write("b", "later")

    worker = pickle.loads(pickle.dumps(stream._reader))  # noqa: S301 - it is our own
    planned = stream._reader.partitions(start, end)
    assert values(table(worker, planned, stream._schema)) == expected
    stream.restart()
    assert values(stream.rows(start, end)) == expected
    stream.stop()


def test_a_killed_driver_leaves_no_gap_in_what_the_audit_is_told(topics, monkeypatch):
    """A micro-batch is told when Spark asks for the next one; one that was not told, as the audit
    was away or the driver died, is told by the next process. The audit finds all consumed.
    """
    told, sent = [], stream_reports.report_consumed

    def report(bootstrap, reports, **options):
        if away:
            raise UnavailableError("the audit topic is away")
        sent(bootstrap, reports, **options)
        told.extend((each.start, each.end, each.records) for each in reports)

    monkeypatch.setattr(stream_reports, "report_consumed", report)
    topics.make("a", "0", "1")
    name, away = topics.name("a"), False
    stream = Stream(topics.address, topic=name, consumer="follower", maxOffsetsPerTrigger="1")
    stream.take()
    start = stream.offset
    assert told == []
    away = True
    stream.run()
    topics.write("a", "2")
    stream.take()
    assert told == []
    stream.rows(start, stream.offset)

    away = False
    stream.restart()
    stream.run()
    stream.stop()

    covered = {at for first, last, _ in told for at in range(first, last)}
    assert covered == {0, 1, 2}
    result = asyncio.run(audit_topic(topics.address, name, consumers=["follower"], grace_ms=0))
    (consumer,) = result.consumers
    figures = [(each.consumed.records, each.missed.records) for each in consumer.producers]
    assert sum(consumed for consumed, _ in figures) == 3
    assert all(missed == 0 for _, missed in figures)
    assert not consumer.mismatches
