"""The lag of groups on /metrics: what fails costs itself and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from memq.broker import group_lag
from memq.broker.group_lag import SCRAPE_WAIT_S, GroupLags
from memq.core.wire.messages import PartitionLag
from memq.errors import CorruptDataError, QueueError, UnavailableError
from tests.unit.core.governor.conftest import virtual_time  # noqa: F401 - a fixture


class Broker:
    """Topics with groups, each of which has committed some offsets.

    Attributes:
        groups: offsets by partition, by group, by topic.
        others: topics whose groups another broker keeps.
        failing: raised by what is asked about a topic, or about a group.
        warned: what was said.
    """

    def __init__(self, **groups):
        self.groups, self.others, self.failing, self.warned = groups, set(), {}, []
        self.metrics = SimpleNamespace(lag=SimpleNamespace(rows=[], left_out=0))
        self.queue, self.looks = self, 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.lags_of = GroupLags(self, SimpleNamespace(hosted=self.hosted), self)

    def hosted(self):
        topics = [SimpleNamespace(name=name, queue_topic=name) for name in self.groups]
        return [Hosted(each, each.name not in self.others) for each in topics]

    def warn(self, _, text):
        self.warned.append(text)

    def _fail(self, about):
        if about in self.failing:
            error = self.failing[about]
            if isinstance(error, str):  # it is deleted meanwhile
                del self.groups[error]
                raise UnavailableError("there is no such topic")
            raise error

    async def _groups(self, topic):
        self.looks += 1
        await self.gate.wait()
        self._fail(topic)
        return list(self.groups[topic])

    async def committed(self, group, topic):
        self._fail(group)
        return self.groups[topic][group]

    async def lags(self, topic, positions):
        self._fail(f"lag of {topic.name}")
        return [
            PartitionLag(
                partition=each.partition,
                offset=each.offset,
                start=0,
                end=9,
                error="damaged" if each.offset == 666 else "",
            )
            for each in positions
        ]

    def shown(self):
        """What is on /metrics: group, topic, partition and offset."""
        return [(r.group, r.topic, r.lag.partition, r.lag.offset) for r in self.metrics.lag.rows]


class Hosted(SimpleNamespace):
    """A topic that a broker has; the same when its topic is."""

    def __init__(self, topic, coordinated):
        super().__init__(topic=topic, coordinated=coordinated)


@pytest.fixture
def broker(monkeypatch):
    """Three topics, some with two groups; of `z` another broker keeps the groups."""
    found = Broker(
        z={"g": {0: 1}},
        t={"g": {1: 5, 0: 4}, "h": {0: 2}},
        u={"g": {0: 7}},
        v={"k": {0: 8}},
    )
    found.others.add("z")
    broker_groups = found._groups
    found.queue = SimpleNamespace(groups=broker_groups, committed=found.committed)
    return found


ALL = [("g", "t", 0, 4), ("g", "t", 1, 5), ("h", "t", 0, 2), ("g", "u", 0, 7), ("k", "v", 0, 8)]


@pytest.mark.parametrize(
    ("about", "error", "missing", "said"),
    [
        ("t", QueueError("away"), {"t"}, "t: lag is not known: away"),
        ("lag of t", UnavailableError("too fast"), {"t"}, "t: lag is not known: too fast"),
        ("h", CorruptDataError("not JSON"), {"h"}, "t: lag of h is not known: not JSON"),
        ("g", CorruptDataError("not JSON"), {"g"}, "t: lag of g is not known: not JSON"),
        ("h", QueueError("away"), {"h"}, "t: lag is not known: away"),
    ],
)
async def test_what_cannot_be_told_costs_itself(broker, about, error, missing, said):
    """It is said, and the topics and groups after it are shown."""
    broker.failing = {about: error}
    await broker.lags_of.refresh()
    assert broker.shown() == [each for each in ALL if not missing & {each[0], each[1]}]
    assert broker.warned[0] == said
    broker.failing = {}
    await broker.lags_of.refresh()
    assert broker.shown() == ALL


async def test_a_partition_that_cannot_be_counted_costs_no_other(broker):
    """What is damaged is said."""
    broker.groups["t"]["g"] = {0: 666, 1: 5}
    await broker.lags_of.refresh()
    assert broker.shown() == [each for each in ALL if each != ("g", "t", 0, 4)]
    assert broker.warned == ["t: lag is not known: damaged"]


@pytest.mark.parametrize(
    ("most", "left_out", "shown"),
    [(5, 0, ALL), (4, 1, ALL[:4]), (3, 2, ALL[:3]), (2, 3, ALL[:2]), (1, 3, [ALL[3]])],
)
async def test_groups_beyond_the_bound_are_counted(broker, monkeypatch, most, left_out, shown):
    """A group is shown in full or not at all, and how many are not is told over all topics."""
    monkeypatch.setattr(group_lag, "MAX_LAG_ROWS", most)
    await broker.lags_of.refresh()
    assert (broker.shown(), broker.metrics.lag.left_out) == (shown, left_out)


async def test_a_bug_keeps_what_was_known(broker, caplog):
    """It only reads, so the scrape is answered all the same, and the next one looks again."""
    await broker.lags_of.refresh()
    broker.failing = {"u": ZeroDivisionError("bug")}
    await broker.lags_of.refresh()
    assert broker.shown() == ALL
    assert "unexpected error looking up the lag of groups" in caplog.text
    broker.failing = {}
    broker.groups["v"]["k"] = {0: 9}
    await broker.lags_of.refresh()
    assert broker.shown()[-1] == ("k", "v", 0, 9)


@pytest.mark.usefixtures("virtual_time")
async def test_a_scrape_that_waits_long_enough_gets_what_was_known(broker):
    """The look goes on, and the next scrape waits for that one."""
    await broker.lags_of.refresh()
    looks = broker.looks
    broker.gate.clear()
    broker.groups["v"]["k"] = {0: 9}
    began_s = asyncio.get_running_loop().time()
    for scrapes in (1, 2):
        await broker.lags_of.refresh()
        waited_s = asyncio.get_running_loop().time() - began_s
        assert waited_s == pytest.approx(scrapes * SCRAPE_WAIT_S)
    assert broker.shown() == ALL
    assert broker.looks == looks + 1
    broker.gate.set()
    await broker.lags_of.refresh()
    assert broker.shown()[-1] == ("k", "v", 0, 9)
    assert broker.looks == looks + 3, "it was the same look, at three topics"
    await broker.lags_of.refresh()
    assert broker.looks == looks + 6
