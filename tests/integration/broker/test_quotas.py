"""Quotas at a broker: who has to wait, for what, and what is served meanwhile."""

import asyncio
import json
from contextlib import AsyncExitStack

import msgspec
import pytest

from memq import AsyncAdminClient, AsyncConsumer, AsyncProducer
from memq.broker import connection as connection_module
from memq.broker import throttling as throttling_module
from memq.broker.connection import ServedConnection
from memq.broker.throttling import REQUESTS_A_PAUSE
from memq.core.wire import messages as m
from memq.core.wire.connection import ClientConnection, ConnectionState
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


async def test_names_of_clients_are_cut(tmp_path):
    """A made-up name takes no more memory than a name may."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:*", requests=100)
        async with client(b, name="x" * 5_000) as each:
            await each.ask(m.ListQuotas())
        assert {len(holder[2]) for holder, _ in b.connections.throttling._buckets} == {4, 250}


def test_buckets_are_bounded_and_forget_no_debt(monkeypatch):
    """Beyond the bound, those that are full go; if none is, new names of a principal share one."""
    monkeypatch.setattr(throttling_module, "MAX_BUCKETS", 3)
    throttling = throttling_module.Throttling(None)

    def bucket(name: str, now_s: float):
        return throttling.bucket(("User:a", "client", name), "requests", 1, now_s)

    for number in range(3):
        bucket(str(number), 0.0).take(1 + number, 0.0)
    shared = bucket("more", 0.0)
    assert bucket("still more", 0.0) is shared
    assert throttling.bucket(("User:b", "client", "more"), "requests", 1, 0.0) is not shared
    assert len(throttling._buckets) == 5
    owing = bucket("2", 1.5)
    for number in range(9):
        bucket(f"made up {number}", 1.5 + number / 100)
    assert bucket("2", 2.0) is owing
    assert len(throttling._buckets) <= 5
    assert throttling.bucket(("User:a", "client", "2"), "requests", 7, 2.0) is owing
    assert owing.rate == 7, "a limit that was changed"
    bucket("last", 99.0)
    assert len(throttling._buckets) == 1, "all that were full are forgotten"


async def test_a_new_quota_counts_from_then_on(tmp_path):
    """What a connection has sent before there was a quota is not owed."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        async with client(b, name="web") as web:
            await web.know("t")
            for sequence in range(5):
                await web.write(sequence, bytes(50_000))
            await limit(admin, "client:web", bytes_in=10_000)
            assert (await web.write(5)).throttle_ms == 0


async def test_a_changed_limit_keeps_the_debt(tmp_path):
    """Who has to wait has to after a change as well; the new limit says for how long."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:web", requests=1)
        async with client(b, name="web") as web:
            for _ in range(2):
                await web.ask(m.ListQuotas())
            await limit(admin, "client:web", requests=2)
            assert (await web.ask(m.ListQuotas())).throttle_ms > 0


# -- clients that do not wait --------------------------------------------------------------------


async def all_at_once(who: Client, *requests: m.Struct) -> list[asyncio.Future[m.Struct]]:
    """Send requests in one piece, whatever quotas say; their answers."""
    loop, connection = asyncio.get_running_loop(), who.connection
    answers = [loop.create_future() for _ in requests]
    connection._paused = True
    for request, answer in zip(requests, answers, strict=True):
        connection.send(
            request, b"", None, lambda header, _, answer=answer: answer.set_result(header)
        )
    data = b"".join(view for view, _ in connection._unsent)
    connection._unsent.clear()
    connection._paused = False
    connection._transport.write(data)
    return answers


def count(answers: list[asyncio.Future[m.Struct]]) -> int:
    """How many have come."""
    return sum(answer.done() for answer in answers)


async def test_requests_that_come_together_wait_as_well(tmp_path):
    """Of those in one piece some are served; the others after the pause, in their order."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:web", requests=10)
        async with client(b, name="web") as web:
            answers = await all_at_once(web, *[m.ListQuotas()] * 50)
            await answers[REQUESTS_A_PAUSE - 1]
            assert count(answers) == REQUESTS_A_PAUSE
            assert served(b)._paused
            await answers[REQUESTS_A_PAUSE]
            assert count(answers) <= 2 * REQUESTS_A_PAUSE
            await asyncio.gather(*answers)
        assert await waited(admin, "client:web", "requests") > 3
        assert b.context.memory.used_bytes == 0


async def test_what_waits_for_quotas_is_charged(tmp_path):
    """Frames that are kept count in the bound of the memory, until the client has gone."""
    async with broker(tmp_path) as b, client(b) as admin:
        await limit(admin, "client:web", requests=1)
        async with client(b, name="web") as web:
            big = m.Metadata(topics=["x" * 200] * 15)
            answers = await all_at_once(web, *[big] * 30)
            await answers[0]
            assert b.context.memory.used_bytes > 30_000
            served(b).end("test", UnavailableError("no more"))
            await until(lambda: not b.context.memory.used_bytes)


async def test_changes_that_come_together_wait_one_by_one(tmp_path):
    """Each is made when it may be, and what was not made by then is not made any more."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create()
        await limit(admin, "client:web", mutations=4)
        async with client(b, name="web") as web:
            changes = [
                m.AlterTopic(topic="t", options={"retention": f"{n + 1}d"}) for n in range(60)
            ]
            answers = await all_at_once(web, *changes)
            await answers[4]
            await web.ask(m.ListQuotas())
            assert count(answers) < 9, "what changes nothing is served meanwhile"
            await answers[13]
            for _ in range(20):
                await web.ask(m.ListQuotas())
            assert count(answers) < 20
        await until(lambda: len(b.connections._open) == 1)
        assert b.topics.get("t").topic.config.retention_ms < 25 * 86_400_000


async def test_nothing_follows_a_handshake_before_its_answer(tmp_path):
    """A client that sends more with it is closed: nobody has said yet what it may ask for."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create()
        await limit(admin, "client:web", connections=1)
        wire = ClientConnection(client="web")
        data = b"".join(wire.open())
        wire._state, wire._max_header_bytes = ConnectionState.OPEN, 1_000
        change = m.AlterTopic(topic="t", options={"retention": "99d"})
        _, buffers = wire.request(change, b"", None)
        host, _, port = b.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data + b"".join(buffers))
        assert b"nothing until its handshake" in await reader.read()
        writer.close()
        assert b.topics.get("t").topic.config.retention_ms < 99 * 86_400_000


async def stored_batch(admin: Client, size: int) -> m.FetchBatch:
    """Store a Batch; what reads it through the broker."""
    await admin.create(batch_age="1ms")
    await admin.write(0, bytes(size))
    _, body = await admin.connection.request(
        m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)]), timeout_s=TIMEOUT_S
    )
    uri = msgspec.json.decode(msgspec.msgpack.decode(bytes(body))[0][3])["uri"]
    return m.FetchBatch(topic="t", uri=uri, start=0, length=size)


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("kind", ["bytes_out", "replay_bytes"])
async def test_batches_asked_for_together_are_not_sent_together(
    tmp_path, monkeypatch, connections, kind
):
    """One is sent, and all others are told when to ask again, by whichever connections."""
    monkeypatch.setattr(connection_module, "REPLAY_AGE_MS", -60_000)
    async with broker(tmp_path) as b, client(b) as admin, AsyncExitStack() as stack:
        fetch = await stored_batch(admin, 30_000)
        await limit(admin, ANONYMOUS, **{kind: 1_000})
        readers = [await stack.enter_async_context(client(b)) for _ in range(connections)]
        answers = [each for who in readers for each in await all_at_once(who, *[fetch] * 20)]
        found = await asyncio.gather(*answers)
        assert [each.later for each in found].count(False) == 1
        assert all(each.throttle_ms > 2_000 for each in found if each.later)
        found = await asyncio.gather(*await all_at_once(readers[0], *[fetch] * 20))
        assert all(each.later for each in found)


async def test_notifications_asked_for_together_are_not_sent_together(tmp_path):
    """Nobody knows how many there will be, so one request is served at a time."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        await admin.write(0)
        await limit(admin, "client:reader", bytes_out=10)
        fetch = m.FetchNotifications(topic="t", positions=[m.PartitionOffset(0, 0)])
        async with client(b, name="reader") as reader:
            found = await asyncio.gather(*await all_at_once(reader, *[fetch] * 20))
        assert [each.later for each in found].count(False) == 1


async def test_a_large_request_waits_once(tmp_path):
    """One that comes in many pieces is paused when it is whole, and not at each of them."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        await limit(admin, "client:web", bytes_in=1_000)
        async with client(b, name="web") as web:
            await web.know("t")
            await web.write(0, bytes(100_000))
            await until(lambda: not served(b)._paused)
            began_s = asyncio.get_running_loop().time()
            header, body = web.message(1, bytes(1 << 20))
            _, buffers = web.connection._wire.request(header, body, None)
            data, transport = b"".join(buffers), web.connection._transport
            for start in range(0, len(data), 1 << 16):
                transport.write(data[start : start + (1 << 16)])
                await asyncio.sleep(0.005)
            await until(lambda: served(b)._reader.at_boundary)
            assert asyncio.get_running_loop().time() - began_s < 2


async def test_what_never_becomes_whole_counts(tmp_path):
    """Bytes of a frame that has no end are owed by the next connection."""
    async with broker(tmp_path) as b, client(b) as admin:
        await admin.create(batch_age="1ms")
        await limit(admin, "client:web", bytes_in=1_000)
        async with client(b, name="web") as web:
            await web.know("t")
            header, body = web.message(0, bytes(50_000))
            _, buffers = web.connection._wire.request(header, body, None)
            web.connection._transport.write(b"".join(buffers)[:-1])
            await until(lambda: served(b)._uncounted_bytes > 50_000)
        await until(lambda: len(b.connections._open) == 1)
        async with client(b, name="web"):
            assert served(b)._paused


async def test_a_change_that_nobody_waits_for_is_not_said_to_be_made(tmp_path):
    """The access log says of it that it was made or not."""
    path = tmp_path / "access.log"
    async with broker(tmp_path / "data", access_log=str(path)) as b, client(b) as admin:
        await admin.create()
        await limit(admin, "client:web", mutations=1)
        async with client(b, name="web") as web:
            changes = [m.AlterTopic(topic="t", options={"retention": f"{n}d"}) for n in (2, 3, 4)]
            answers = await all_at_once(web, *changes)
            await answers[0]
        await until(lambda: len(b.connections._open) == 1)
    told = [json.loads(line) for line in path.read_text().splitlines()]
    found = [each["outcome"] for each in told if each["event"] == "AlterTopic"]
    assert found[0] == "ok"
    assert found[-1] != "ok"


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


async def test_a_throttled_reader_gets_each_batch_once(tmp_path, caplog):
    """A reader of large Batches through a broker takes its time, and asks for none again."""
    async with broker(tmp_path) as b, AsyncAdminClient(b.address) as admin:
        await admin.create_topic("t", batch_age="1ms")
        async with AsyncProducer(b.address, topic="t") as producer:
            for number in range(3):
                await producer.write(b"%d" % number + bytes(300_000))
                await producer.flush()
        await admin.alter_quota("User:anonymous", {"bytes_out": 50_000, "requests": 5})
        read, values, reads = b.context.storage.get_range, [], []
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        b.context.storage.get_range = lambda *args: reads.append(args) or read(*args)
        async with AsyncConsumer(
            b.address, topic="t", group="g", start="earliest", read_through="broker"
        ) as consumer:
            while len(values) < 3:
                batch = await consumer.poll(TIMEOUT_S)
                assert batch is not None
                values += [bytes(message.value[:1]) for message in batch]
            waited_ms = (loop.time() - began_s) * 1000
            assert 5_000 < consumer.throttled_ms < waited_ms + 30_000, "the last wait may go on"
        assert values == [b"%d" % number for number in range(3)]
        assert len(reads) == len(set(reads))
    assert "did not answer" not in caplog.text
    assert "could not leave" not in caplog.text
