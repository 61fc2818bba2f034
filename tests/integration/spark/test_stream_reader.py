"""The stream's reader, call by call: removed offsets, new read partitions."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from memq.errors import ConfigError, OffsetOutOfRangeError
from tests.integration.spark.here import Stream
from tests.integration.spark.stored import Stored
from tests.unit.client.batches import Sent, records

MESSAGES = [Sent("p", number, records(b"%d" % number)) for number in range(6)]


def values(tables):
    """Values of each micro-batch."""
    return [sorted(int(value) for value in table.column("value").to_pylist()) for table in tables]


def test_a_micro_batch_planned_again_has_the_same_rows(tmp_path):
    """Spark plans a micro-batch again after a crash, and sometimes without one: it has the same
    rows each time.
    """
    with Stored(tmp_path) as found:
        found.publish(*((0, found.batch(each, batch_id=f"b{each.sequence}")) for each in MESSAGES))
        stream = Stream(found.address, maxOffsetsPerTrigger="2")
        stream.run()
        ends = [stream.at({"0": {"from": 0, "next": at}}) for at in (0, 2, 4, 6)]

        once = values(stream.rows(*pair) for pair in pairwise(ends))
        again = values(stream.rows(*pair) for pair in [ends[1:3], ends[1:3], ends[2:4]])
        stream.stop()

    assert once == [[0, 1], [2, 3], [4, 5]]
    assert again == [[2, 3], [2, 3], [4, 5]]


def test_removed_offsets_stop_a_stream_unless_told_otherwise(tmp_path, caplog):
    """A stream whose next offsets retention has removed fails; failOnDataLoss=false goes on."""
    with Stored(tmp_path) as found:
        batches = [(0, found.batch(each, batch_id=f"b{each.sequence}")) for each in MESSAGES]
        found.publish(*batches[:2])
        stream = Stream(found.address)
        assert values(stream.run()) == [[0, 1]]
        found.publish(*batches[2:])
        planned = (stream.offset, stream.all_that_is_left())
        found.truncate(0, 4)

        for fails in (stream.run, lambda: stream.rows(*planned)):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                fails()
            gone = "offsets 2 to 3 of t/0: removed by retention; 4 is the first that is left"
            assert gone in str(caught.value)
        stream.restart(failOnDataLoss="false")
        assert values([stream.rows(*planned)]) == [[4, 5]]
        assert values(stream.run()) == [[4, 5]]
        stream.stop()

    assert gone in caplog.text


def test_new_read_partitions_are_picked_up(tmp_path):
    """A read partition that the checkpoint does not know is read from its earliest offset; JSON
    offsets keep a stream to the read partitions they name.
    """
    with Stored(tmp_path, partitions=2) as found:
        found.publish(*((n % 2, found.batch(MESSAGES[n], batch_id=f"b{n}")) for n in range(4)))
        grown, kept = Stream(found.address), Stream(found.address, startingOffsets='{"0": 0}')
        grown.offset = grown.at(
            {"0": {"from": 0, "next": 1}}
        )  # as a topic of one read partition left it

        assert values(grown.run()) == [[1, 2, 3]]
        assert list(grown.offset["partitions"]) == ["0", "1"]
        assert values(kept.run()) == [[0, 2]]
        grown.stop()
        kept.stop()


def test_an_end_keeps_a_stream_to_the_read_partitions_it_names(tmp_path):
    """Retention of a read partition that `endingOffsets` does not name never stops the stream."""
    with Stored(tmp_path, partitions=2) as found:
        found.publish(*((n % 2, found.batch(MESSAGES[n], batch_id=f"b{n}")) for n in range(4)))
        stream = Stream(found.address, endingOffsets='{"0": 3}')
        assert values(stream.run()) == [[0, 2]]
        assert list(stream.offset["partitions"]) == ["0"]

        found.truncate(1, 2)
        found.publish((0, found.batch(MESSAGES[4], batch_id="b4")))

        assert values(stream.run()) == [[4]]
        stream.stop()


def test_progress_says_how_far_the_stream_lags(tmp_path):
    """Lag is what the stream is to read and no micro-batch has taken, up to its own end."""
    with Stored(tmp_path, partitions=2) as found:
        found.publish(*((n % 2, found.batch(MESSAGES[n], batch_id=f"b{n}")) for n in range(6)))
        stream = Stream(found.address, maxOffsetsPerTrigger="2")
        bounded = Stream(found.address, maxOffsetsPerTrigger="2", endingOffsets='{"0": 3}')
        lags = []
        for each in (stream, bounded):
            each.take()
            lags.append(each.lag())
        stream.run()
        done = stream.lag()
        stream.stop()
        bounded.stop()

    assert [(lag["batches"], lag["records"]) for lag in lags] == [(4, 4), (1, 1)]
    assert lags[0]["bytes"] == 4 * lags[1]["bytes"] > 0
    assert lags[0]["seconds"] > 0
    assert done == {"batches": 0, "records": 0, "bytes": 0, "seconds": 0.0}


def test_a_stream_begins_at_what_is_published(tmp_path):
    """A start after the end or in the future is refused, and the message says which it is."""
    with Stored(tmp_path) as found:
        found.publish((0, found.batch(MESSAGES[0], batch_id="b0")))
        after = Stream(found.address, startingOffsets='{"0": 9}')
        future = Stream(
            found.address,
            startingOffsets=None,
            startingTimestamp=(datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        )

        with pytest.raises(
            OffsetOutOfRangeError, match="not published yet; retained is only offset 0"
        ):
            after.run()
        with pytest.raises(ConfigError, match=r"'startingTimestamp' is 3\d\d\d s in the future"):
            future.run()
        after.stop()
        future.stop()


def test_a_stream_begins_and_ends_at_times_by_partition(tmp_path):
    """Each read partition begins and ends at a time of its own, and others are not read."""
    with Stored(tmp_path, partitions=3) as found:
        found.publish(*((n % 3, found.batch(MESSAGES[n], batch_id=f"b{n}")) for n in range(6)))
        offsets = Stream(found.address)
        published = {}
        for table in offsets.run():
            for row in table.select(["partition", "value"]).to_pylist():
                published.setdefault(row["partition"], []).append(int(row["value"]))
        offsets.stop()
        hour = datetime.now(UTC) + timedelta(hours=1)
        stream = Stream(
            found.address,
            startingOffsets=None,
            startingOffsetsByTimestamp='{"0": 0, "2": 0}',
            endingOffsetsByTimestamp=json.dumps({"0": 0, "2": hour.isoformat()}),
        )
        future = Stream(
            found.address,
            startingOffsets=None,
            startingOffsetsByTimestamp=json.dumps({"0": 0, "1": hour.isoformat()}),
        )

        assert values(stream.run()) == [sorted(published[2])]
        assert list(stream.offset["partitions"]) == ["0", "2"]
        with pytest.raises(ConfigError, match=r"'startingOffsetsByTimestamp' is 3\d\d\d s in"):
            future.run()
        stream.stop()
        future.stop()


def test_everything_is_counted_once_however_it_is_cut(tmp_path):
    """Micro-batches of any size hold each row once, or as often as it is stored."""
    with Stored(tmp_path, partitions=2) as found:
        placed = [
            (n % 2, found.batch(MESSAGES[n], MESSAGES[(n + 1) % 6], batch_id=f"b{n}"))
            for n in range(6)
        ]
        found.publish(*placed)
        for limit in ("1", "2", "3", "6"):
            stream = Stream(found.address, maxOffsetsPerTrigger=limit)
            found_values = Counter(value for some in values(stream.run()) for value in some)
            stream.stop()
            assert found_values == Counter([*range(6), *range(6)]), limit
