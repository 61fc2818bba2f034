"""Planning a read: times are exact for every unit, and which Batches can have them."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memq.core.format.message import timestamp_range_us
from memq.core.format.schema import serialize_schema
from memq.core.notification import PublishedBatch
from memq.core.topic import TopicConfig
from memq.core.wire.messages import PartitionOffsets
from memq.errors import ConfigError, InvalidRequestError, OffsetOutOfRangeError
from memq.reading.log import RetainedSince
from memq.reading.plan import ATTEMPTS, EventTimes, Selection, plan_read
from memq.reading.start import time_ms
from tests.unit.reading.batches import Sent, notify, records, seal

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INT64 = st.integers(-(2**63), 2**63 - 1)
NEAR = st.builds(lambda steps, more: steps * 1_000 + more, st.integers(-2, 2), st.integers(-1, 1))
"""Numbers of which many are the same time in units that differ by thousands."""
BOUND = st.none() | NEAR | st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)

BASE = notify(seal(Sent("p", 0, records(b"v"))))
UNITS = st.sampled_from(sorted(PER_SECOND))


def rows_of(ticks, unit="us", zone="UTC"):
    """Rows of a typed topic with some times, in ticks."""
    kind = pa.timestamp(unit, zone)
    return pa.record_batch({"timestamp": pa.array(ticks, pa.int64()).view(kind)})


@given(st.lists(st.none() | NEAR | INT64), UNITS, BOUND, BOUND)
@example([1, 2, 3], "us", 1, 3)
@example([999, 1_000, 2_999, 3_000], "ns", 1, 3)
@example([0, 1, 2], "s", 1_000_000, 2_000_000)
@example([1, 2], "us", 2, 9)
@example([1_000, 2_999], "ns", 2, 9)
@example([3, 4], "us", 1, 4)
def test_rows_are_selected_exactly(ticks, unit, start_us, end_us):
    """A row is taken when its time is at the start or later, and before the end, in any unit.

    What the notification says never hides a row that would be selected.
    """
    per_second = PER_SECOND[unit]
    expected = [
        tick
        for tick in ticks
        if tick is not None
        and (start_us is None or tick * 10**6 >= start_us * per_second)
        and (end_us is None or tick * 10**6 < end_us * per_second)
    ]

    times, rows = EventTimes(start_us, end_us), rows_of(ticks, unit)
    assert times.select(rows).column(0).view(pa.int64()).to_pylist() == expected
    least, greatest = timestamp_range_us(rows)
    told = msgspec.structs.replace(BASE, min_timestamp_us=least, max_timestamp_us=greatest)
    assert not expected or times.may_be_in(told)


def test_a_message_of_the_year_1970_hides_nothing():
    """Times of 0 also stand for unknown ones and are not in the range of a Batch: it is read."""
    sealed = seal(
        Sent("p", 0, records(b"a", times_us=[0])), Sent("p", 1, records(b"b", times_us=[500]))
    )

    assert notify(sealed).min_timestamp_us == 500
    assert EventTimes(0, 1).may_be_in(notify(sealed))
    assert not EventTimes(1, 500).may_be_in(notify(sealed))
    assert EventTimes(None, 100).may_be_in(notify(sealed))


def test_rows_without_a_time_are_in_no_range():
    """A null, a column that is no timestamp, and no column at all: none of them has a time."""
    times = EventTimes(None, 10)

    assert times.select(rows_of([None, 1, 11])).num_rows == 1
    assert times.select(pa.record_batch({"timestamp": ["then"]})).num_rows == 0
    assert times.select(pa.record_batch({"at": [1]})).num_rows == 0


def test_times_round_down():
    """A time between two milliseconds counts as the earlier, so that nothing is skipped."""
    assert time_ms(datetime(1970, 1, 1, 0, 0, 1, 1_999, tzinfo=UTC)) == 1_001
    assert time_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)) == -1


# -- planning a read ----------------------------------------------------------------------------


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC"))])


def at_us(time_us):
    """That time."""
    return EPOCH + timedelta(microseconds=time_us)


class Topic:
    """A topic whose Batches have 10 records and 100 bytes each, and times in microseconds.

    Attributes:
        times: least and greatest of each Batch, by partition, in the order of offsets.
        starts: first offset that is retained, by partition.
        overtaken: how often retention removes what is being planned.
        since_ms: since when each partition is retained, by partition.
    """

    topic, topic_id = "t", "i"

    def __init__(self, *times, starts=None):
        self.times, self.starts = times, starts or [0] * len(times)
        self.overtaken, self.plans = 0, 0
        self.since_ms = {}
        self.config = TopicConfig.create("t")
        self.schemas = {"old": pa.schema([("x", pa.int64())]), "s": SCHEMA}

    async def info(self):
        schemas = {name: serialize_schema(each) for name, each in self.schemas.items()}
        return SimpleNamespace(config=self.config, schemas=schemas, schema_id="s")

    async def offsets(self):
        self.plans += 1
        return [
            PartitionOffsets(p, self.starts[p], len(times), None)
            for p, times in enumerate(self.times)
        ]

    async def batches(self, ranges):
        for partition, start, end, topic_id in ranges:
            assert topic_id == "i"
            for offset in range(start, end):
                if self.overtaken and offset:
                    self.overtaken -= 1
                    raise OffsetOutOfRangeError("retention was quicker")
                least, greatest = self.times[partition][offset]
                yield PublishedBatch(
                    partition,
                    offset,
                    0,
                    msgspec.structs.replace(
                        BASE,
                        records=10,
                        size_bytes=100,
                        min_timestamp_us=least,
                        max_timestamp_us=greatest,
                    ),
                )

    async def retained_since(self):
        return [RetainedSince(p, since) for p, since in self.since_ms.items()]


def shown(plan):
    """Its pieces in short."""
    return [
        (*each.range[:3], each.contents.batches, each.contents.records, each.contents.bytes)
        for each in plan.pieces
    ]


async def test_all_that_is_retained_is_one_piece_for_each_partition():
    """One that has nothing has none."""
    topic = Topic([(1, 2)] * 3, [], [(1, 2)] * 5, starts=[1, 0, 0])
    plan = await plan_read(topic, Selection())
    assert shown(plan) == [(0, 1, 3, 2, 20, 200), (2, 0, 5, 5, 50, 500)]
    assert plan.size_bytes == 700
    assert [each.range.topic_id for each in plan.pieces] == ["i", "i"]
    assert (plan.times, plan.incomplete_before_ms) == (None, None)


@pytest.mark.parametrize(
    ("piece_bytes", "pieces"),
    [
        (100, [(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 0, 1), (1, 1, 2)]),
        (101, [(0, 0, 2), (0, 2, 3), (1, 0, 2)]),
        (200, [(0, 0, 2), (0, 2, 3), (1, 0, 2)]),
        (201, [(0, 0, 3), (1, 0, 2)]),
    ],
)
async def test_a_piece_ends_once_it_is_large_enough(piece_bytes, pieces):
    """And no piece has Batches of two partitions; together they are what is read."""
    plan = await plan_read(Topic([(1, 2)] * 3, [(1, 2)] * 2), Selection(), piece_bytes=piece_bytes)
    assert [each.range[:3] for each in plan.pieces] == pieces
    assert plan.size_bytes == 500


async def test_batches_of_other_times_are_in_no_piece():
    """A piece begins with the first Batch that is read and ends with the last; those between that
    are not read do not count.
    """
    topic = Topic([(5, 6), (10, 11), (5, 6), (19, 25), (20, 21)], [(30, 31)])
    plan = await plan_read(topic, Selection(start_time=at_us(10), end_time=at_us(20)))
    assert shown(plan) == [(0, 1, 4, 2, 20, 200)]
    assert plan.times == EventTimes(10, 20, "timestamp")


@pytest.mark.parametrize("start", [None, 2])
@pytest.mark.parametrize("end", [None, 3])
async def test_offsets_are_of_one_partition(start, end):
    """What is not given is where it begins, or ends now."""
    topic = Topic([(1, 2)] * 9, [(1, 2)] * 4, starts=[0, 1])
    plan = await plan_read(topic, Selection(partition=1, start=start, end=end))
    assert [each.range[:3] for each in plan.pieces] == [(1, start or 1, end or 4)]
    assert (await plan_read(topic, Selection(partition=1, start=3, end=3))).pieces == []
    assert (await plan_read(topic, Selection(partition=0, end=0))).pieces == []


@pytest.mark.parametrize("offsets", [{"start": 0}, {"end": 5}, {"start": 0, "end": 2}])
async def test_offsets_that_are_not_there_are_an_error_at_once(offsets):
    """They do not come by trying again."""
    topic = Topic([(1, 2)] * 9, [(1, 2)] * 4, starts=[0, 1])
    with pytest.raises(OffsetOutOfRangeError, match="t/1"):
        await plan_read(topic, Selection(partition=1, **offsets))
    assert topic.plans == (1 if "start" in offsets else ATTEMPTS)
    with pytest.raises(InvalidRequestError, match="no partition 2"):
        await plan_read(topic, Selection(partition=2))


@pytest.mark.parametrize("overtaken", [1, ATTEMPTS - 1, ATTEMPTS])
async def test_retention_that_is_quicker_is_planned_anew_a_few_times(overtaken):
    """What was asked for from the first on is what is there by then; nothing is in it twice."""
    topic = Topic([(1, 2)] * 3)
    topic.overtaken = overtaken
    if overtaken == ATTEMPTS:
        with pytest.raises(OffsetOutOfRangeError):
            await plan_read(topic, Selection())
    else:
        assert shown(await plan_read(topic, Selection())) == [(0, 0, 3, 3, 30, 300)]
        assert topic.plans == overtaken + 1
    topic.overtaken, topic.plans = 1, 0
    with pytest.raises(OffsetOutOfRangeError):
        await plan_read(topic, Selection(partition=0, start=0))
    assert topic.plans == 1, "some of what was asked for by name is gone"


@pytest.mark.parametrize(
    ("start_us", "starts", "since_ms", "expected"),
    [
        (5_000, [0, 2], {0: -1e9, 1: 6.0}, 6.0),
        (5_000, [1, 2], {0: 9.0, 1: 6.0}, 9.0),
        (5_000, [0, 2], {0: -1e9, 1: 5.0}, None),
        (5_000, [0, 2], {0: -1e9, 1: 4.0}, None),
        (5_000, [0, 0], {0: 9.0, 1: 9.0}, None),
        (None, [0, 2], {0: -1e9, 1: 6.0}, None),
    ],
)
async def test_what_retention_may_have_removed_of_the_times_is_told(
    start_us, starts, since_ms, expected, caplog
):
    """Of the partition that is retained for the shortest, where something was removed at all."""
    topic = Topic([(1, 9)] * 3, [(1, 9)] * 3, starts=starts)
    topic.since_ms = since_ms
    selection = Selection(
        start_time=None if start_us is None else at_us(start_us), end_time=at_us(9_000)
    )
    plan = await plan_read(topic, selection)
    assert plan.incomplete_before_ms == expected
    assert ("retention has removed" in caplog.text) is (expected is not None)


@pytest.mark.parametrize(
    ("selection", "error"),
    [
        (Selection(start=1), InvalidRequestError),
        (Selection(partition=-1), InvalidRequestError),
        (Selection(partition=True), InvalidRequestError),
        (Selection(partition=0, start=-1), InvalidRequestError),
        (Selection(partition=0, start=2, end=1), InvalidRequestError),
        (Selection(start_time=at_us(2), end_time=at_us(1)), InvalidRequestError),
        (Selection(start_time="yesterday"), ConfigError),
        (Selection(end_time=datetime(2025, 1, 1)), ConfigError),  # noqa: DTZ001
    ],
)
async def test_what_is_no_selection_asks_nobody(selection, error):
    """It is refused before anything is sent."""
    topic = Topic([(1, 2)])
    with pytest.raises(error):
        await plan_read(topic, selection)
    assert topic.plans == 0
