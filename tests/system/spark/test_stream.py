"""`spark.readStream`: the same rows as a range, through stops, kills and limits."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException

from memq import AdminClient
from tests.system.spark.follow import Follower, start
from tests.system.spark.reading import (
    ends_of,
    produce,
    read_all,
    rows_of,
    rows_of_table,
)

TIMEOUT_S = 120
INDEX_BYTES = 2_000  # about, of a Batch of one Message, with its schema
SMALL = {"batch_bytes": "4KiB", "message_bytes": "2KiB", "batch_age": "10ms"}


def fill(address, topic, number):
    """Send some hundred values in a few Batches."""
    produce(address, topic, [b"%d-%04d" % (number, at) for at in range(400)])


def run_available(spark, address, topic, folder, **options):
    """Read what there is now, and end; the micro-batches' numbers of rows."""
    query = start(spark, address, topic, folder, **options).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def written(spark, folder):
    """What the file sink holds, by its manifest."""
    return rows_of(spark.read.parquet(str(folder / "output")))


def test_a_stream_that_is_stopped_and_killed_reads_each_row_once(
    spark, broker, make_topic, tmp_path
):
    """Stopped and restarted from its checkpoint five times, one of them by SIGKILL in mid-batch, a
    stream writes exactly the rows that `read_range` and `spark.read` give.
    """
    topic = make_topic(write_partitions=2, read_partitions=2, **SMALL)
    folder = tmp_path
    for number in range(2):
        fill(broker.address, topic, number)

    with Follower(
        broker.address, topic, folder, "maxOffsetsPerTrigger=1", "minPartitions=2"
    ) as job:
        job.wait_for_batches(2)
    fill(broker.address, topic, 2)
    for number in range(3, 7):
        limits = {"maxOffsetsPerTrigger": "2"} if number % 2 else {"maxBytesPerTrigger": "9KiB"}
        query = start(spark, broker.address, topic, folder, **limits).start()
        while query.lastProgress is None or not query.lastProgress.numInputRows:
            assert query.exception() is None
        query.stop()
        fill(broker.address, topic, number)
    run_available(spark, broker.address, topic, folder)

    expected = rows_of_table(read_all(broker.address, topic))
    batch = spark.read.format("memq").options(bootstrap=broker.address, topic=topic).load()
    assert written(spark, folder) == expected
    assert rows_of(batch) == expected
    assert expected.total() == 7 * 400
    assert set(expected.values()) == {1}


def test_limits_bound_each_micro_batch(spark, broker, make_topic, tmp_path):
    """No micro-batch has more Batches or bytes than the options allow, and nothing is left out."""
    topic = make_topic(read_partitions=2, batch_age="1ms")
    for number in range(7):
        produce(broker.address, topic, [b"%d" % number])
    messages = spark.read.format("memq").options(
        bootstrap=broker.address, topic=topic, view="messages", columns="offset,bytes"
    )
    size = max(row.bytes for row in messages.load().collect()) + INDEX_BYTES

    by_count = run_available(
        spark, broker.address, topic, tmp_path / "count", maxOffsetsPerTrigger="3"
    )
    by_bytes = run_available(
        spark, broker.address, topic, tmp_path / "bytes", maxBytesPerTrigger=str(2 * size)
    )
    least = run_available(
        spark,
        broker.address,
        topic,
        tmp_path / "both",
        maxBytesPerTrigger="1",
        maxOffsetsPerTrigger="3",
    )

    assert by_count == [3, 3, 1]
    assert by_bytes == [2, 2, 2, 1]
    assert least == [1] * 7  # always one Batch
    for name in ("count", "bytes", "both"):
        assert written(spark, tmp_path / name).total() == 7


def test_progress_has_the_lag(spark, broker, make_topic, tmp_path):
    """The progress of each micro-batch says how much is left after it."""
    topic = make_topic(batch_age="1ms")
    for number in range(3):
        produce(broker.address, topic, [b"%d" % number] * 10)
    options = {"maxOffsetsPerTrigger": "1", "startingOffsets": "earliest"}

    query = start(spark, broker.address, topic, tmp_path, **options)
    query = query.trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)

    lags = [
        json.loads(progress.sources[0].latestOffset)["lag"]
        for progress in query.recentProgress
        if progress.numInputRows
    ]
    assert [(lag["batches"], lag["records"]) for lag in lags] == [(2, 20), (1, 10), (0, 0)]
    assert lags[0]["bytes"] > lags[1]["bytes"] > 0
    assert lags[1]["seconds"] > 0


def test_a_stream_ends_where_it_is_told(spark, broker, make_topic, tmp_path):
    """`endingOffsets` ends a stream, so that a range can be read with a checkpoint."""
    topic = make_topic(batch_age="1ms")
    for number in range(4):
        produce(broker.address, topic, [b"%d" % number])
    ends = {"startingOffsets": '{"0": 1}', "endingOffsets": '{"0": 3}'}

    run_available(spark, broker.address, topic, tmp_path, **ends)

    assert {row[-1] for row in written(spark, tmp_path)} == {b"1", b"2"}


def test_the_checkpoint_says_where_it_stands(spark, broker, make_topic, tmp_path):
    """Positions are JSON by read partition, with where the stream began."""
    topic = make_topic(read_partitions=2, batch_age="1ms")
    produce(broker.address, topic, [b"one"])

    run_available(spark, broker.address, topic, tmp_path)

    saved = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    ends = ends_of(broker.address, topic)
    with AdminClient(broker.address) as admin:
        incarnation = admin.describe_topic(topic).incarnation
    assert json.loads(saved) == {
        "incarnation": incarnation,
        "partitions": {str(partition): {"from": 0, "next": end} for partition, end in ends.items()},
    }


def test_a_topic_made_anew_stops_a_stream(spark, broker, make_topic, tmp_path):
    """A checkpoint of the topic before is an error that says to begin with a new one, though the
    topic recreated is longer, and none of its data is skipped.
    """
    topic = make_topic(batch_age="1ms")
    produce(broker.address, topic, [b"one"])
    run_available(spark, broker.address, topic, tmp_path)
    with AdminClient(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, batch_age="1ms")
    for number in range(3):
        produce(broker.address, topic, [b"new %d" % number])

    with pytest.raises(StreamingQueryException, match="begin with a new checkpoint"):
        run_available(spark, broker.address, topic, tmp_path)
