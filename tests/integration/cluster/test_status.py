"""What brokers of a cluster say of themselves, and of what they do not host."""

from __future__ import annotations

import aiohttp

from memq import AsyncAdminClient
from memq.core.wire import messages as m
from tests.integration.broker.support import until


async def page(broker, path):
    """Status and JSON, or text, of a page of the admin HTTP."""
    url = f"http://127.0.0.1:{broker.admin_port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        is_json = answer.content_type == "application/json"
        return answer.status, await (answer.json() if is_json else answer.text())


async def test_a_frozen_zookeeper_is_named_before_the_session_is_over(cluster, monkeypatch):
    """Each broker says that ZooKeeper does not answer, since when, and when it does again."""
    monkeypatch.setattr("memq.broker.membership.SILENT_S", 0.2)
    cluster.session_timeout_s = 20.0
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", write_partitions=2)
    await cluster.all_owned("t")
    for broker in (one, two):
        cluster.zookeeper.freeze(broker.sessions[-1])
        await until(broker.context.not_ready)
        assert broker.context.leased()
        assert broker.context.not_ready()[0].startswith("zookeeper (zk:2181) refuses since 20")
    async with AsyncAdminClient(f"{one.address},{two.address}", request_timeout_s=5) as admin:
        found = await admin.status()
        assert "zookeeper (zk:2181) refuses since" in found.problems()[0]
        assert "(at one, two); mend zookeeper" in found.problems()[0]
        for broker in (one, two):
            cluster.zookeeper.thaw(broker.sessions[-1])
        await until(lambda: not (one.context.not_ready() or two.context.not_ready()))
        found = await admin.status()
        assert found.problems() == []
        assert [each.id for each in found.brokers] == ["one", "two"]
        assert found.cluster.governor in ("one", "two")


async def test_only_the_hosts_of_a_topic_have_a_page_and_metrics_of_it(cluster):
    """Where no write partition of a topic runs, it is not found, and nothing of it is counted."""
    cluster.admin_http = True
    one, two = await cluster.start("one", "two")
    c = await cluster.connect(one)
    await c.create("t", write_partitions=1)
    await cluster.all_owned("t")
    owner, other = (one, two) if cluster.owners("t") == ["one"] else (two, one)
    at_owner = await cluster.connect(owner)
    at_owner.schema_id = c.schema_id
    await at_owner.write(0)
    assert (await page(owner, "/topics/t"))[0] == 200
    assert 'memq_stored_through_seconds{topic="t"}' in (await page(owner, "/metrics"))[1]
    status, said = await page(other, "/topics/t")
    assert (status, said["error"]) == (404, "not_hosted")
    assert (await page(other, "/topics/nothing"))[0] == 404

    await at_owner.ask(m.DrainBroker(broker_id=owner.config.broker_id))  # and it moves
    await until(lambda: cluster.owners("t") == [other.config.broker_id])
    assert (await page(owner, "/topics/t"))[0] == 404
    assert 'topic="t"' not in (await page(owner, "/metrics"))[1]
    assert (await page(other, "/topics/t"))[0] == 200
    assert 'memq_stored_through_seconds{topic="t"}' in (await page(other, "/metrics"))[1]
