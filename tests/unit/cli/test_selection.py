"""Where `memq consume` begins and ends, from what a topic retains."""

import random
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from memq.cli import selection
from memq.cli.selection import Asked, BatchSelection, select, tail_of
from memq.core.ranges import OffsetRange
from memq.core.wire.messages import PartitionOffsets


def batch(partition, offset, records=1, at_ms=0, times_us=(0, 0)):
    """A Batch as its notification tells of it."""
    first, last = times_us
    told = SimpleNamespace(records=records, min_timestamp_us=first, max_timestamp_us=last)
    return SimpleNamespace(
        partition=partition, offset=offset, timestamp_ms=at_ms, notification=told
    )


class Client:
    """A topic with these Batches; start and end by partition."""

    def __init__(self, spans, batches=()):
        self.retained = [PartitionOffsets(n, *span) for n, span in enumerate(spans)]
        self.held = list(batches)
        self.looked = []

    def offsets(self):
        return self.retained

    def info(self):
        return None

    def batches(self, ranges):
        for each in ranges:
            self.looked.append(tuple(each[:3]))
            for one in self.held:
                if one.partition == each.partition and each.start <= one.offset < each.end:
                    yield one


def asked(**given):
    """What was asked for, and nothing else."""
    nothing = Asked(None, (), None, None, None, from_beginning=False, exit_at_end=False)
    return nothing._replace(**given)


SPANS = [(2, 9), (0, 0), (4, 6)]


@pytest.mark.parametrize(
    ("given", "start", "stop"),
    [
        ({}, None, None),
        ({"from_beginning": True}, None, None),
        ({"exit_at_end": True}, None, {0: 9, 1: 0, 2: 6}),
        ({"partitions": (2,)}, {2: 6}, None),
        ({"partitions": (2, 0)}, {0: 9, 2: 6}, None),
        ({"partitions": (2, 0), "from_beginning": True}, {0: 2, 2: 4}, None),
        ({"partitions": (0,), "exit_at_end": True}, {0: 9}, {0: 9}),
        ({"wanted": OffsetRange(0, 3, 7)}, {0: 3}, {0: 7}),
        ({"wanted": OffsetRange(0, 2, 9)}, {0: 2}, {0: 9}),
        ({"tail": 1}, {0: 9, 1: 0, 2: 6}, None),
        ({"tail": 1, "partitions": (1,), "exit_at_end": True}, {1: 0}, {1: 0}),
    ],
)
def test_where_it_begins_and_ends(given, start, stop):
    """Offsets only where something was asked for that a consumer does not know by itself."""
    assert select(Client(SPANS), "t", asked(**given)) == BatchSelection(start, stop)


def at(us):
    """A time so many microseconds after 1970."""
    return datetime.fromtimestamp(us / 1e6, UTC)


def test_times_begin_with_the_first_batch_that_may_have_them(monkeypatch):
    """In each partition by itself; where there is none it begins, and ends, at the end."""
    monkeypatch.setattr(selection.EventTimes, "of_topic", lambda times, _: times)
    held = [
        batch(0, 2, times_us=(1_000, 2_000)),
        batch(0, 3, times_us=(9_000, 9_500)),
        batch(0, 5, times_us=(4_000, 6_000)),
        batch(2, 4, times_us=(1_000, 3_000)),
        batch(2, 5, times_us=(7_000, 8_000)),
    ]
    client = Client(SPANS, held)
    found = select(client, "t", asked(since=at(5_000)))
    assert (found.start, found.stop) == ({0: 3, 1: 0, 2: 5}, None)
    assert (found.times.start_us, found.times.end_us) == (5_000, None)
    found = select(client, "t", asked(since=at(4_500), until=at(6_500)))
    assert (found.start, found.stop) == ({0: 5, 1: 0, 2: 6}, {0: 9, 1: 0, 2: 6})
    found = select(client, "t", asked(since=at(1), until=at(1_500), partitions=(2,)))
    assert (found.start, found.stop) == ({2: 4}, {2: 6})
    none = asked(since=at(500), until=at(1_000))
    assert select(client, "t", none).start == {0: 9, 1: 0, 2: 6}
    # A LogMessage that says no time has that of 1970, and its Batch does not tell.
    assert select(client, "t", asked(until=at(1_000))).start == {0: 2, 1: 0, 2: 4}


@pytest.mark.parametrize("count", [1, 99, 100, 101, 150, 200, 201, 249, 250, 251, 10_000])
def test_a_tail_is_looked_for_from_the_end(count):
    """A page at a time and no further than needed; of a gap, or a short topic, what there is."""
    held = [batch(0, offset) for offset in range(50, 300) if offset not in (298, 299)]
    client = Client([(50, 300)], held)
    found = select(client, "t", asked(tail=count))
    expected = [each.offset for each in held][-count:]
    assert found == BatchSelection({0: expected[0]})
    ends = [300, 200, 100]
    pages = [(0, max(50, end - 100), end) for end in ends]
    needed = next((n for n, seen in enumerate((98, 198, 248), 1) if seen >= count), 3)
    assert client.looked == pages[:needed]


def test_a_tail_is_the_newest_of_all_partitions():
    """By the time of publication, whatever their sizes; the oldest Batch is cut to fit."""
    random.seed(5)
    for _ in range(300):
        held, ends = [], dict.fromkeys(range(3), 0)
        for at_ms in range(random.randrange(18)):
            number = random.randrange(3)
            held.append(batch(number, ends[number], random.randrange(1, 5), at_ms))
            ends[number] += 1
        messages = [
            ((each.partition, each.offset), n)
            for each in held
            for n in range(each.notification.records)
        ]
        want = random.randrange(1, 30)
        start, skipped = tail_of(random.sample(held, len(held)), ends, want)
        assert messages[-want:] == [
            (place, n)
            for place, n in messages
            if place[1] >= start[place[0]] and n >= skipped.get(place, 0)
        ]
