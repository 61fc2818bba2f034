"""`spark.readStream`: the same rows as a range, through stops, kills and limits."""

import time

from memq import read_range
from tests.system.spark.follow import following, start
from tests.system.spark.reading import produce, rows_of, rows_of_table

SMALL = {"batch_bytes": "4KiB", "message_bytes": "2KiB", "batch_age": "10ms"}


def fill(address, topic, number):
    """Send some hundred values in a few Batches."""
    produce(address, topic, [b"%d-%04d" % (number, at) for at in range(400)])


def run_until(begin, done):
    """Run a query until something shows in it; again where Spark waited in vain for its Python.

    Spark gives that ten seconds to start, which a busy machine exceeds.
    """
    for _ in range(5):
        query = begin().start()
        while query.exception() is None and not done(query):
            time.sleep(0.05)
        if query.exception() is None:
            return query
        assert "Python worker failed to connect back" in str(query.exception())
    raise AssertionError("Python does not start")


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

    limits = ("maxOffsetsPerTrigger=1", "minPartitions=2")
    with following(broker.address, topic, folder, *limits) as printed:
        for _ in range(2):  # another one is under way by then
            assert printed.readline().startswith("done ")
    fill(broker.address, topic, 2)
    for number in range(3, 7):
        limits = {"maxOffsetsPerTrigger": "2"} if number % 2 else {"maxBytesPerTrigger": "9KiB"}
        query = run_until(
            lambda limits=limits: start(spark, broker.address, topic, folder, **limits),
            lambda query: query.lastProgress and query.lastProgress.numInputRows,
        )
        query.stop()
        fill(broker.address, topic, number)
    run_until(
        lambda: start(spark, broker.address, topic, folder).trigger(availableNow=True),
        lambda query: not query.isActive,
    )

    expected = rows_of_table(read_range(broker.address, topic=topic, metadata=True))
    batch = spark.read.format("memq").options(bootstrap=broker.address, topic=topic).load()
    assert rows_of(spark.read.parquet(str(folder / "output"))) == expected
    assert rows_of(batch) == expected
    assert expected.total() == 7 * 400
    assert set(expected.values()) == {1}
