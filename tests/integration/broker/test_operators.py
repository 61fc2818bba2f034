"""What a broker tells operators: figures of topics and groups, clients, members."""

import asyncio

from memq.broker import figures as figures_module
from memq.broker import operators as operators_module
from memq.core.access.rules import Access, Rule, Rules
from memq.core.wire import messages as m
from tests.integration.broker.support import ANYBODY, broker, client


async def figures(c, *, list_groups=True):
    answer = await c.ask(m.DescribeTopics(list_groups=list_groups))
    return {each.topic: each for each in answer.topics}


async def commit(c, group, offset, partition=0):
    position = m.PartitionOffset(partition, offset)
    await c.ask(m.CommitOffsets(topic="t", group=group, member_id="", offsets=[position]))


async def test_figures_tell_zero_from_unknown(tmp_path):
    """Before a look nothing is known; after it 0 is a number, and no commit is no number."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("t", batch_messages=1)
        found = (await figures(c))["t"]
        assert (found.records, found.groups, found.lag_records, found.records_in_s) == (None,) * 4
        await b.figures.look()
        found = (await figures(c))["t"]
        assert (found.records, found.size_bytes, found.groups, found.records_out_s) == (0, 0, 0, 0)
        assert (found.lag_records, found.lag_s, found.worst_group) == (None, None, "")
        heartbeat = m.GroupHeartbeat(topic="t", group="g", member_id="me", sequence=1)
        await c.ask(heartbeat)
        await b.figures.look()
        found = (await figures(c))["t"]
        assert (found.groups, found.lag_records) == (1, None)
        assert [(each.group, each.members, each.lag_records) for each in found.of_groups] == [
            ("g", 1, None)
        ]


async def test_figures_count_what_is_retained_and_not_read(tmp_path):
    """Records, bytes and lag are those of the notifications; the worst group is the one named."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("t", batch_messages=1)
        for sequence in range(5):
            await c.write(sequence, b"a", b"b")
        await commit(c, "near", 5)
        await commit(c, "far", 2)
        await b.figures.look()
        found = (await figures(c))["t"]
        assert (found.records, found.groups) == (10, 2)
        assert (found.worst_group, found.lag_records) == ("far", 6)
        assert found.lag_s > 0
        assert [(each.group, each.lag_records) for each in found.of_groups] == [
            ("far", 6),
            ("near", 0),
        ]
        queue_topic = b.topics.get("t").topic.queue_topic
        await b.context.queue.truncate(queue_topic, 0, 3)
        await b.figures.look()
        found = (await figures(c))["t"]
        assert (found.records, found.lag_records) == (4, 4)


async def test_rates_are_those_between_two_looks(tmp_path):
    """What was published, and what groups committed, by the time that has passed."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("t", batch_messages=1)
        await c.write(0)
        await commit(c, "g", 0)
        await b.figures.look()
        started_s = b.context.runtime.mono_s()
        for sequence in range(1, 11):
            await c.write(sequence)
        await commit(c, "g", 7)
        await asyncio.sleep(0.05)
        await b.figures.look()
        passed_s = b.context.runtime.mono_s() - started_s
        found = (await figures(c))["t"]
        assert 10 / passed_s * 0.5 < found.records_in_s < 10 / 0.05
        assert 7 / passed_s * 0.5 < found.records_out_s < 7 / 0.05
        assert found.bytes_in_s > found.records_in_s
        await asyncio.sleep(0.01)
        await b.figures.look()
        found = (await figures(c))["t"]
        assert (found.records_in_s, found.records_out_s) == (0, 0)
        await commit(c, "g", 2)  # back: that is no negative rate
        await b.figures.look()
        assert (await figures(c))["t"].records_out_s == 0


async def test_a_recreated_topic_has_no_past(tmp_path):
    """Its history, rates and groups begin anew under another topic id."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("t", batch_messages=1)
        await c.write(0)
        await commit(c, "g", 0)
        await b.figures.look()
        await c.ask(m.DeleteTopic(topic="t"))
        await c.create("t", batch_messages=1)
        await b.figures.look()
        found = (await figures(c))["t"]
        assert (found.records, found.groups, found.records_in_s) == (0, 0, None)
        assert (await c.ask(m.FetchLagHistory(topic="t", group="g"))).times_s == []


async def test_history_grows_and_is_bounded(tmp_path, monkeypatch):
    """Each look adds a lag, the oldest goes; one group too many has none until another is gone."""
    monkeypatch.setattr(figures_module, "KEPT", 3)
    monkeypatch.setattr(figures_module, "MAX_HISTORIES", 1)
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("t", batch_messages=1)
        await commit(c, "a", 0)
        for sequence in range(5):
            await c.write(sequence)
            await b.figures.look()
        await commit(c, "b", 0)
        await b.figures.look()
        found = await c.ask(m.FetchLagHistory(topic="t", group="a"))
        assert (found.records, found.kept) == ([4, 5, 5], True)
        assert len(found.times_s) == len(found.ages_ms) == 3
        other = await c.ask(m.FetchLagHistory(topic="t", group="b"))
        assert (other.records, other.kept) == ([], False)
        await c.ask(m.DeleteGroup(topic="t", group="a"))
        await b.figures.look()
        assert (await c.ask(m.FetchLagHistory(topic="t", group="b"))).records == [5]


async def test_groups_without_a_rule_are_not_counted(tmp_path):
    """Neither their number, nor their lag, nor their rate shows."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("t", batch_messages=1)
        await c.write(0)
        await commit(c, "mine", 1)
        await commit(c, "theirs", 0)
        await b.figures.look()
        rules = [
            Rule(principal="User:a", operation="describe", type="topic", name="t"),
            Rule(principal="User:a", operation="describe", type="group", name="mine"),
        ]
        some = b.figures.of("t", Access("User:a", "?", Rules(rules)), list_groups=True)
        assert (some.groups, some.worst_group, some.lag_records) == (1, "mine", 0)
        assert [each.group for each in some.of_groups] == ["mine"]
        assert b.figures.of("t", ANYBODY).worst_group == "theirs"


async def test_lists_have_pages(tmp_path, monkeypatch):
    """Topics and clients come in several answers, each of them once."""
    monkeypatch.setattr(operators_module, "MAX_FIGURES", 2)
    monkeypatch.setattr(operators_module, "MAX_CONNECTIONS", 2)
    async with broker(tmp_path) as b, client(b) as c, client(b), client(b), client(b):
        for number in range(4):
            await c.create(f"t{number}")
        seen, after, more = [], "", True
        while more:
            answer = await c.ask(m.DescribeTopics(after=after))
            seen += [each.topic for each in answer.topics]
            after, more = seen[-1], answer.more
        assert seen == ["_memq_audit", "t0", "t1", "t2", "t3"]
        numbers, after, more = [], 0, True
        while more:
            answer = await c.ask(m.ListConnections(after=after))
            numbers += [each.number for each in answer.connections]
            after, more = numbers[-1], answer.more
        assert numbers == [1, 2, 3, 4]


async def test_clients_are_told_as_they_are(tmp_path):
    """Name, version, address and bytes of each; who has said nothing has no principal."""
    async with broker(tmp_path) as b, client(b, name="me") as c:
        before = (await c.ask(m.ListConnections())).connections[0]
        await c.ask(m.Metadata())
        (mine,) = (await c.ask(m.ListConnections())).connections
        assert (mine.client, mine.broker, mine.principal) == ("me", "broker-1", "User:anonymous")
        assert mine.version
        assert mine.address.startswith("127.0.0.1:")
        assert mine.bytes_in > before.bytes_in > 0
        assert mine.bytes_out > before.bytes_out > 0
        assert abs(b.context.runtime.wall_ms() - mine.connected_ms) < 60_000
        _, writer = await asyncio.open_connection(*b.address.split(":"))
        async with asyncio.timeout(10):
            while len(found := (await c.ask(m.ListConnections())).connections) < 2:
                await asyncio.sleep(0.01)
        assert (found[1].principal, found[1].client) == ("", "")
        writer.close()


async def test_members_say_where_they_are(tmp_path):
    """Host, last heartbeat and last commit of a member, which is unknown before there is one."""
    async with broker(tmp_path) as b, client(b) as c:
        await c.create("t", batch_messages=1)
        await c.write(0)
        heartbeat = m.GroupHeartbeat(topic="t", group="g", member_id="me", sequence=1, client="x")
        await c.ask(heartbeat)

        async def member():
            (group,) = (await c.ask(m.ListGroups(topic="t"))).groups
            return group.members[0]

        found = await member()
        assert (found.host, found.client, found.committed_ms) == ("127.0.0.1", "x", -1)
        assert 0 <= found.heard_ms < 60_000
        offsets = [m.PartitionOffset(0, 1)]
        request = m.CommitOffsets(
            topic="t", group="g", member_id="me", offsets=offsets, sequence=1, heartbeat=1
        )
        await c.ask(request)
        assert 0 <= (await member()).committed_ms < 60_000
        heartbeat.sequence, heartbeat.owned = 2, [0]
        await c.ask(heartbeat)
        assert (await member()).committed_ms >= 0
