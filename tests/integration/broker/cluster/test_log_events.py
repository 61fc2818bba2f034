"""What becomes of brokers and write partitions is in JSON lines, with fields that programs read."""

import json
import logging

from memq import AsyncAdminClient
from memq.runtime.log_format import JsonFormatter
from tests.integration.broker.cluster.test_membership import all_expected, kill, until_lost
from tests.integration.broker.support import until


async def test_each_event_of_a_cluster_has_its_fields(cluster, caplog, monkeypatch):
    """Brokers join, take over, move write partitions, are lost, leave: a line with fields each."""
    monkeypatch.setattr("memq.core.governor.governor.SETTLE_MS", 0)

    def events(name):
        lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
        return [line for line in lines if line.get("event") == name]

    with caplog.at_level(logging.INFO):
        one, two, three = await cluster.start("one", "two", "three")
        await all_expected(cluster)
        assert {each["broker"] for each in events("broker_joined")} == {"one", "two", "three"}
        await (await cluster.connect(one)).create("t", write_partitions=3, audited=False)
        await cluster.all_owned("t")
        taken = {
            (each["broker"], each["write_partition"])
            for each in events("write_partition_taken_over")
            if each["topic"] == "t"
        }
        assert taken == {(owner, n) for n, owner in enumerate(cluster.owners("t"))}
        async with AsyncAdminClient(one.address) as admin:
            await admin.drain_broker("two")
        number = cluster.owners("t").index("two")
        await until(lambda: cluster.owners("t")[number] in ("one", "three"))
        (moved,) = [e for e in events("write_partition_moved") if e["topic"] == "t"]
        assert moved["write_partition"] == number
        assert moved["from_broker"] == "two"
        assert moved["broker"] == cluster.owners("t")[number]
        assert moved["message"] == f"Governor: moves t/{number} to broker {moved['broker']}"
        kill(cluster, three)
        await until_lost(one, "three")
        await until(lambda: len(events("broker_lost")) >= 2)
        for lost in events("broker_lost"):
            assert (lost["broker"], lost["address"]) == ("three", three.address)
        cluster.zookeeper.expire(two.sessions[-1])
        await until(lambda: len(events("broker_joined")) == 4)
        (left,) = events("broker_left")
        assert left["broker"] == "two"
        assert left["reason"]
        await one.stop()
        del cluster.brokers["one"]
        (left,) = [each for each in events("broker_left") if each["broker"] == "one"]
        assert left["drained"] is True
