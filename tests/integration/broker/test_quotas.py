"""Quotas at a broker: who has to wait, for what, and what is served meanwhile."""

import asyncio

import msgspec
import pytest

from memq import AsyncAdminClient, AsyncConsumer, AsyncProducer
from memq.broker import connection as connection_module
from memq.broker import throttling as throttling_module
from memq.broker.connection import ServedConnection
from memq.core.wire import messages as m
from memq.errors import ForbiddenError, InvalidRequestError, UnavailableError
from tests.integration.broker.support import TIMEOUT_S, Client, broker, client, until
from tests.integration.broker.test_access import asking, login, rule

ANONYMOUS = "User:anonymous"


async def limit(admin: Client, holder: str, **limits: int | None) -> None:
    await admin.ask(m.AlterQuota(holder=holder, limits=limits))


async def waited(admin: Client, holder: str, name: str) -> float:
    answer = await admin.ask(m.ListQuotas())
    return answer.waited_s.get(holder, {}).get(name, 0.0)


def served(running, number: int = -1) -> ServedConnection:
    """The broker's end of a connection; the newest if none is said."""
    return list(running.connections._open)[number]


async def test_who_sends_too_much_is_not_read_for_a_while(tmp_path):
    """Bytes beyond the quota are stored and acked; the ack says how long the client waits, and it
    is read again after that.
    """
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        await limit(admin, "client:web", bytes_in=100_000)
        async with client(b, name="web") as web:
            await web.know("t")
            answer = await web.write(0, bytes(130_000))
            assert answer.offset >= 0
            assert 200 < answer.throttle_ms < 600
            assert served(b)._paused
            second = await web.write(1, b"small")
            assert second.offset > answer.offset
            assert second.throttle_ms < 200
            await until(lambda: not served(b)._paused)
        assert (await waited(admin, "client:web", "bytes_in")) == pytest.approx(0.35, abs=0.2)
        assert (await admin.write(2, bytes(150_000))).throttle_ms == 0


async def test_requests_are_counted(tmp_path):
    """Each request counts, whatever it is; those beyond a second's worth have to wait."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:*", requests=5)
        await limit(admin, "client:test", requests=1_000)
        async with client(b, name="busy") as busy:
            loop = asyncio.get_running_loop()
            before_s = loop.time()
            for _ in range(11):
                await busy.ask(m.ListQuotas())
            assert loop.time() - before_s > 0.8
        assert await waited(admin, "client:*", "requests") > 0.8
        assert await waited(admin, "client:test", "requests") == 0


async def test_changes_are_counted_apart(tmp_path):
    """Changes of topics count as mutations, and reads do not."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, ANONYMOUS, mutations=2)
        for _ in range(20):
            assert (await admin.ask(m.ListQuotas())).throttle_ms == 0
        for number in range(3):
            await admin.create(f"t{number}")
        assert await waited(admin, ANONYMOUS, "mutations") > 0.2


async def test_who_reads_too_much_keeps_its_heartbeats(tmp_path):
    """A client that was sent too many bytes waits for Batches, and nothing else waits."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        await admin.write(0, bytes(30_000))
        fetch = m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)])
        await limit(admin, "client:reader", bytes_out=100)
        async with client(b, name="reader") as reader:
            first = await reader.ask(fetch)
            assert first.throttle_ms > 1_000
            reader.connection._fetch_at_s = 0.0  # it does not wait by itself
            second = asyncio.create_task(reader.ask(fetch))
            for sequence in range(20):
                await reader.ask(
                    m.GroupHeartbeat(topic="t", group="g", member_id="1", sequence=sequence)
                )
            assert not second.done()
            assert not served(b)._paused
            await second
        assert await waited(admin, "client:reader", "bytes_out") > 1


async def test_a_client_waits_as_it_is_told(tmp_path):
    """It asks for more when it may, and what it has waited is no part of its time limit."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        await admin.write(0)
        fetch = m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)])
        size = len((await admin.connection.request(fetch, timeout_s=TIMEOUT_S))[1])
        await limit(admin, ANONYMOUS, bytes_out=size // 6)
        assert (await admin.ask(fetch)).throttle_ms > 4_200
        await admin.ask(fetch, timeout_s=4.0)
        assert await waited(admin, ANONYMOUS, "bytes_out") > 2


async def test_only_old_batches_are_a_replay(tmp_path, monkeypatch):
    """Reading a new Batch through the broker is no replay; reading it later is."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        await admin.write(0, bytes(5_000))
        _, body = await admin.connection.request(
            m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)]),
            timeout_s=TIMEOUT_S,
        )
        uri = msgspec.json.decode(msgspec.msgpack.decode(bytes(body))[0][3])["uri"]
        fetch = m.FetchBatch(topic="t", uri=uri, start=0, length=4_000)
        await limit(admin, ANONYMOUS, replay_bytes=1_000)
        assert (await admin.ask(fetch)).throttle_ms == 0
        monkeypatch.setattr(connection_module, "REPLAY_AGE_MS", -60_000)
        assert (await admin.ask(fetch)).throttle_ms > 1_000


async def test_one_connection_too_many_is_closed(tmp_path):
    """A principal has as many connections as its quota allows; another is told why not."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:few", connections=1)
        async with client(b, name="few") as one:
            await one.ask(m.ListQuotas())
            with pytest.raises(UnavailableError, match="allows 1 connections at a time"):
                async with client(b, name="few") as two:
                    await two.ask(m.ListQuotas())
            await one.ask(m.ListQuotas())
        await until(lambda: not b.connections.throttling._open["User:anonymous", "client", "few"])
        async with client(b, name="few") as again:
            await again.ask(m.ListQuotas())


async def test_who_connects_again_waits_as_before(tmp_path):
    """Another connection of the same client has no quota of its own."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:web", requests=1)
        async with client(b, name="web") as web:
            assert (await web.ask(m.ListQuotas())).throttle_ms == 0
            assert (await web.ask(m.ListQuotas())).throttle_ms > 0
        before_s = await waited(admin, "client:web", "requests")
        async with client(b, name="web"):
            assert served(b)._paused
        assert await waited(admin, "client:web", "requests") > before_s


async def test_nobody_uses_up_the_quota_of_others(tmp_path):
    """Who takes the name of another's client, or of a group that it may not read, counts alone."""
    async with asking(tmp_path, rule("User:alice", "read", "group", "g")) as (b, root):
        for holder in ("client:etl", "group:g"):
            await limit(root, holder, requests=1)
        async with (
            client(b, name="etl", group="g", **login("bob")) as bob,
            client(b, name="etl", group="g", **login("alice")) as alice,
            client(b, group="g", **login("bob")) as stranger,
        ):
            for _ in range(3):
                with pytest.raises(ForbiddenError):
                    await bob.ask(m.ListQuotas())
            for _ in range(30):
                with pytest.raises(ForbiddenError):
                    await stranger.ask(m.ListQuotas())
            assert await waited(root, "group:g", "requests") == 0
            before_s = await waited(root, "client:etl", "requests")
            assert before_s > 1
            with pytest.raises(ForbiddenError):
                await alice.ask(m.ListQuotas())
            assert await waited(root, "client:etl", "requests") == before_s
            assert served(b, 2)._throttle


async def test_only_administrators_change_quotas(tmp_path):
    """Quotas are changed by who may alter the cluster, and seen by who may describe it."""
    async with asking(tmp_path, rule("User:alice", "describe", "cluster", "cluster")) as (b, root):
        await limit(root, "User:bob", requests=7)
        async with client(b, **login()) as alice, client(b, **login("bob")) as bob:
            assert (await alice.ask(m.ListQuotas())).quotas == {"User:bob": {"requests": 7}}
            with pytest.raises(ForbiddenError):
                await limit(alice, "User:bob", requests=None)
            with pytest.raises(ForbiddenError):
                await limit(bob, "User:bob", requests=1_000)
        with pytest.raises(InvalidRequestError, match="no quota of"):
            await limit(root, "User:carol", requests=None)


async def test_quotas_outlive_a_restart(tmp_path):
    """A broker that starts again holds to the quotas that were set."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:web", requests=1)
    async with broker(tmp_path) as b, client(b, name="web") as web:
        assert (await web.ask(m.ListQuotas())).quotas == {"client:web": {"requests": 1}}
        assert (await web.ask(m.ListQuotas())).throttle_ms > 0


async def test_buckets_are_bounded(tmp_path, monkeypatch):
    """Made-up names of clients take no more memory than the bound."""
    monkeypatch.setattr(throttling_module, "MAX_BUCKETS", 3)
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:*", requests=100)
        for number in range(9):
            async with client(b, name=f"made up {number} {'x' * 5_000}") as each:
                await each.ask(m.ListQuotas())
        buckets = b.connections.throttling._buckets
        assert len(buckets) == 3
        assert all(len(holder[2]) <= 250 for holder, _, _ in buckets)


async def test_a_throttled_producer_and_group_lose_nothing(tmp_path):
    """Producer and group go on below their quotas, say how long they waited, and lose nothing."""
    async with broker(tmp_path) as b, AsyncAdminClient(b.address) as admin:
        await admin.create_topic("t", batch_age="1ms")
        await admin.alter_quota("client:web", {"bytes_in": 20_000})
        await admin.alter_quota("group:g", {"bytes_out": 10_000, "requests": 50})
        async with AsyncProducer(b.address, topic="t", client="web", linger="1ms") as producer:
            for number in range(40):
                await producer.write(b"%03d" % number + bytes(1_000))
                if number % 8 == 7:
                    await producer.flush()
            stats = producer.stats
        assert stats.acked_records == 40
        assert stats.throttled_ms > 500
        values = []
        async with AsyncConsumer(
            b.address, topic="t", group="g", start="earliest", read_through="broker"
        ) as consumer:
            while len(values) < 40:
                batch = await consumer.poll(TIMEOUT_S)
                assert batch is not None
                values += [bytes(message.value[:3]) for message in batch]
            assert consumer.throttled_ms > 500
        assert values == [b"%03d" % number for number in range(40)]
        waits = {each.holder: each.waited_s for each in await admin.quotas()}
        assert waits["client:web"]["bytes_in"] > 0.5
        assert waits["group:g"]["bytes_out"] > 0.5
