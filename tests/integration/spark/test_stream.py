"""A stream over real brokers, call by call; over brokers that fail it is in the unit tests."""

from __future__ import annotations

import asyncio
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from memq.client.audit.audit import audit_topic
from memq.errors import (
    DataLossError,
    SchemaMismatchError,
    TopicRecreatedError,
    UnavailableError,
)
from memq.spark import stream_reports
from tests.integration.spark.conftest import values
from tests.integration.spark.here import Stream, table


def batches_of(stream):
    """Topic and value of the rows of each micro-batch that there is."""
    return [values(rows) for rows in stream.run()]


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


@pytest.mark.parametrize("restarted", [False, True])
def test_topics_come_and_go(topics, caplog, restarted):
    """A topic made while the stream runs is read from its first Batch, though the stream began at
    the latest; one that is gone, or has other columns, stops it; failOnDataLoss reads on.
    """

    def go_on(**options):
        if restarted or options:
            stream.restart(**options)

    topics.make("a", "before")
    stream = Stream(topics.address, **topics.pattern, startingOffsets="latest")
    assert stream.run() == []
    topics.make("b", "1", "2")
    topics.write("a", "after")

    go_on()
    assert batches_of(stream) == [[("a", "after"), ("b", "1"), ("b", "2")]]
    topics.write("a", "more")
    topics.delete("b")
    go_on()
    with pytest.raises(DataLossError, match=r"b' .* is not among the topics"):
        stream.run()
    go_on(failOnDataLoss="false")
    assert batches_of(stream) == [[("a", "more")]]
    assert list(stream.offset["topics"]) == [topics.name("a")]
    assert "reading on without it" in caplog.text
    topics.make("c", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="cannot be read together"):
        stream.run()
    stream.stop()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("how", ["topic", "names", "pattern"])
def test_a_topic_made_again_is_not_gone_on_with(topics, restarted, how):
    """A topic that was deleted and recreated stops the stream, also a longer one, and the first
    data of the new one is not skipped: neither by a plan nor by an end that was there before.
    """
    topics.make("a", "1")
    topics.make("b", "1")
    names = {"topic": {"topic": topics.name("b")}, "names": topics.subscribe("a", "b")}
    stream = Stream(topics.address, **names.get(how, topics.pattern))
    began = stream._reader.initialOffset()
    assert batches_of(stream)[0][-1] == ("b", "1")
    topics.make_again("b", "new 1", "new 2")

    for options in ({}, {"failOnDataLoss": "false"}):
        if restarted or options:
            stream.restart(**options)
        with pytest.raises(TopicRecreatedError, match="begin with a new checkpoint"):
            stream.run()
        with pytest.raises((TopicRecreatedError, DataLossError)):
            stream.rows(began, stream.offset)
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
