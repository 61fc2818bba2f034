"""What an administrator's calls ask of brokers that answer as they are told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from memq.client import admin as admin_module
from memq.client.admin import AsyncAdminClient
from memq.core.wire import messages as m
from memq.errors import (
    StorageError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from tests.fakes.tiny_broker import TinyBroker


@pytest.fixture
async def broker():
    async with TinyBroker().serve() as tiny:
        yield tiny


@pytest.fixture
async def admin(broker):
    async with AsyncAdminClient(broker.address) as client:
        yield client


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), TopicRecreatedError("another")])
async def test_a_topic_that_is_gone_by_then_is_deleted(broker, admin, error):
    """An attempt whose answer was lost may have done it; a given incarnation must be there."""
    broker.incarnation = "7" * 16
    broker.answers[m.DeleteTopic] = error
    await admin.delete_topic("events")
    assert [each.incarnation for each in broker.asked] == ["7" * 16]
    with pytest.raises(type(error)):
        await admin.delete_topic("events", incarnation="1" * 16)
    assert broker.asked[-1].incarnation == "1" * 16


async def test_a_topic_is_described_as_it_is_now(broker, admin):
    """What was known before is not believed, by nobody who looks or deletes."""
    for incarnation in ("1" * 16, "2" * 16):
        broker.incarnation = incarnation
        assert (await admin.describe_topic("events")).incarnation == incarnation


async def test_each_creation_has_its_name(broker, admin):
    """A creation that is sent again is the same one, another one is not."""
    retried = [StorageError("slow")]

    def create(_):
        return retried.pop() if retried else m.TopicAnswer(topic=broker._info("events"))

    broker.answers[m.CreateTopic] = create
    for _ in range(2):
        await admin.create_topic("events")
    first, again, other = [request.request_id for request in broker.asked]
    assert first == again != other
    assert first


def group(name, topic):
    return m.GroupInfo(group=name, topic=topic, offsets=[], members=[])


async def test_groups_of_topics_that_nobody_knows_are_none(broker, admin):
    """A topic that was deleted meanwhile takes its groups with it; the others come sorted."""
    broker.add_topic("a.topic")
    told = [
        group("z", "events"),
        group("x", "deleted"),
        group("y", "a.topic"),
        group("a", "events"),
    ]
    answers = [UnavailableError("busy"), m.ListGroupsAnswer(groups=told)]
    broker.answers[m.ListGroups] = lambda _: answers.pop(0)
    found = [(each.topic, each.group) for each in await admin.groups()]
    assert found == [("a.topic", "y"), ("events", "a"), ("events", "z")]


async def test_no_question_for_groups_takes_longer_than_the_call(broker, admin):
    """Each coordinator has its own time, within what is left of the whole."""
    broker.answers[m.ListGroups] = m.ListGroupsAnswer(groups=[])
    limits = []
    attempt = admin._cluster.attempt

    async def timed(address, request, *, timeout_s):
        limits.append(timeout_s)
        return await attempt(address, request, timeout_s=timeout_s)

    admin._cluster.attempt = timed
    await admin.groups()
    admin._cluster.request_timeout_s = 0.5
    await admin.groups()
    assert limits[0] == admin_module.ATTEMPT_S
    assert limits[1] < 0.5


async def test_lag_of_some_groups(admin):
    """A group is looked for in each topic; a topic that is deleted meanwhile is left out."""
    asked = []

    async def groups(topic):
        return [group("g", "a"), group("h", "a"), group("g", "gone"), group("g", "z")]

    async def lags_of(topic, infos):
        asked.append((topic, [info.group for info in infos]))
        if topic == "gone":
            raise UnknownTopicError(topic)
        return [f"{topic}:{info.group}" for info in infos]

    admin.groups, admin._lags_of = groups, lags_of
    assert await admin.lag(group="g") == ["a:g", "z:g"]
    assert asked == [("a", ["g"]), ("gone", ["g"]), ("z", ["g"])]
    assert await admin.lag() == ["a:g", "a:h", "z:g"]
    with pytest.raises(UnknownTopicError):
        await admin.lag("gone")


@pytest.mark.parametrize("outcome", ["lags", StorageError("slow"), "hang", "problems"])
async def test_the_state_of_a_cluster_does_not_wait_for_lags(admin, monkeypatch, outcome):
    """They have a time of their own, and are not asked for while something is wrong."""

    class Found(SimpleNamespace):
        def problems(self):
            return ["a broker is silent"] if outcome == "problems" else []

        def _replace(self, worst_lag):
            return Found(worst_lag=worst_lag, within_s=self.within_s)

    async def cluster_status(_, timeout_s):
        return Found(worst_lag=None, within_s=timeout_s)

    async def every_lag():
        if outcome == "hang":
            await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome
        return [
            SimpleNamespace(total=SimpleNamespace(records=records), partitions=partitions)
            for records, partitions in ((3, [0]), (9, [0]), (5, [0]), (100, []))
        ]

    monkeypatch.setattr(admin_module, "cluster_status", cluster_status)
    monkeypatch.setattr(admin_module, "LAG_S", 0.02 if outcome == "hang" else 1.0)
    admin.lag = every_lag
    found = await admin.status(timeout_s=7.0)
    assert found.within_s == 7.0 - admin_module.LAG_S
    assert (found.worst_lag and found.worst_lag.total.records) == (9 if outcome == "lags" else None)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_group_is_moved_from_where_it_was(broker, admin, monkeypatch, caplog, dry_run):
    """What it had is read before it is overwritten; a report that fails is no failure of that."""
    offsets = [m.PartitionOffsets(partition=0, start=0, end=9)]
    broker.answers |= {
        m.FetchOffsets: m.FetchOffsetsAnswer(partitions=offsets),
        m.FetchCommitted: m.FetchCommittedAnswer(offsets=[m.PartitionOffset(0, 2)]),
        m.CommitOffsets: m.Done(),
    }
    moved = []

    async def report_moved(_, name, moves):
        moved.append((name, moves))
        raise StorageError("no audit")

    monkeypatch.setattr(admin_module, "report_moved", report_moved)
    assert await admin.reset_offsets("g", "events", "latest", dry_run=dry_run) == {0: 9}
    changes = [type(each) for each in broker.asked if not isinstance(each, m.FetchOffsets)]
    assert changes == ([] if dry_run else [m.FetchCommitted, m.CommitOffsets])
    assert moved == ([] if dry_run else [("g", {0: (2, 9)})])
    assert ("could not be told" in caplog.text) is not dry_run
