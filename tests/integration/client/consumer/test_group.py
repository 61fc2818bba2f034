"""Consumer groups, over real sockets: members that come, go, get stuck and are killed."""

import asyncio

import pytest

from memq.errors import ClosedError, RequestTimeoutError, UnavailableError
from tests.integration.broker.support import until
from tests.topics.reading import TIMEOUT_S, drain, take, values, world


@pytest.fixture
async def w(tmp_path):
    """A broker with a topic of one read partition."""
    async with world(tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def _quick_heartbeats(monkeypatch):
    """Members hear of each other soon, so that tests need not wait."""
    monkeypatch.setattr("memq.client.consumer.group.HEARTBEAT_S", 0.05)
    monkeypatch.setattr("memq.client.consumer.group.MOVING_HEARTBEAT_S", 0.02)


async def polled(*consumers):
    """Poll all of them once; what they handed out."""
    batches = [await consumer.poll(0.02) for consumer in consumers]
    return [batch for batch in batches if batch]


async def balance(*consumers, partitions):
    """Poll until the consumers share all partitions evenly; what they handed out meanwhile."""
    found = []
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found += await polled(*consumers)
            held = [consumer.assignment for consumer in consumers]
            sizes = [len(each) for each in held]
            if sum(sizes) == partitions and max(sizes) - min(sizes) <= 1:
                assert sorted(p for each in held for p in each) == list(range(partitions))
                return found


async def test_what_the_group_gave_to_another_meanwhile_is_not_taken_up(tmp_path):
    """A member that looks up offsets for long takes up only what is still its own."""
    async with world(tmp_path, read_partitions=2, write_partitions=2) as w:
        committed, asked, go_on = w.queue.committed, asyncio.Event(), asyncio.Event()

        async def late(*of):
            w.queue.committed = committed
            asked.set()
            await go_on.wait()
            return await committed(*of)

        taken_up = []
        w.queue.committed = late
        async with w.consumer(group="g", on_assign=taken_up.append) as first:
            polling = asyncio.ensure_future(first.poll(TIMEOUT_S))
            await asked.wait()
            async with w.consumer(group="g") as second:
                while not second.assignment:
                    await second.poll(0.01)
                go_on.set()
                (left,) = {0, 1} - {*second.assignment}
                await w.write_to(left)
                await polling
                assert (taken_up, first.assignment) == ([[left]], [left])


async def _fail_with(consumer):
    async with consumer:
        await take(consumer, 1)
        raise ZeroDivisionError


async def test_members_share_the_partitions(tmp_path):
    """Members come and go and share the partitions; nothing is missed and nothing doubled."""
    revoked = []
    async with world(tmp_path, read_partitions=4) as w:
        for n in range(12):
            await w.write(b"%d" % n)
        options = {"group": "g", "auto_commit": True}
        found = []
        async with w.consumer(on_revoke=revoked.append, **options) as a:
            found += await take(a, 6)
            async with w.consumer(**options) as b, w.consumer(**options) as c:
                found += await balance(a, b, c, partitions=4)
                assert sorted(p for each in revoked for p in each) == sorted(
                    b.assignment + c.assignment
                )
                for n in range(12, 24):
                    await w.write(b"%d" % n)
                async with asyncio.timeout(TIMEOUT_S):
                    while len(found) < 24:
                        found += await polled(a, b, c)
            found += await balance(a, partitions=4)
            for n in range(24, 30):
                await w.write(b"%d" % n)
            found += await drain(a)
        assert sorted(values(found)) == sorted(b"%d" % n for n in range(30))
        assert await w.queue.committed("g", w.queue_topic) == {
            p: (await w.queue.offsets(w.queue_topic, p))[1] for p in range(4)
        }


async def test_revoked_partition_may_be_committed(tmp_path):
    """In `on_revoke`, however long, the member holds the partition: its last commit counts."""
    committed = {}

    async def commit_last(partitions):
        membership = a._session.membership
        sent = membership.sequence
        await until(lambda: membership.sequence >= sent + 2)  # one was made and answered meanwhile
        await a.commit()
        committed.update(await a.committed())

    async with world(tmp_path, read_partitions=2) as w:
        for _ in range(4):
            await w.write(b"v")
        async with w.consumer(group="g", on_revoke=commit_last) as a:
            seen = await take(a, 4)
            async with w.consumer(group="g") as b:
                await balance(a, b, partitions=2)
                assert committed == {0: 2, 1: 2}
                assert await b.lag() == {b.assignment[0]: 0}
                assert len(seen) == 4


@pytest.mark.parametrize("fails", ["commit", "on_revoke", "both"])
async def test_what_is_given_up_goes_to_others_whatever_fails(tmp_path, fails):
    """The commit or the callback: the error comes out of a poll, once, and nobody waits for it."""
    revoked = []

    def on_revoke(partitions):
        revoked.extend(partitions)
        if fails != "commit":
            raise ZeroDivisionError

    async def away(offsets):
        raise UnavailableError("no broker")

    async with world(tmp_path, read_partitions=2) as w:
        await w.write_to(0, b"v")
        await w.write_to(1, b"v")
        options = {"auto_commit": True, "auto_commit_interval": "1h", "on_revoke": on_revoke}
        async with w.consumer(group="g", **options) as a:
            await take(a, 2)
            commit = a._commits.commit_if_owner
            if fails != "on_revoke":
                a._commits.commit_if_owner = away
            async with w.consumer(group="g") as b:
                expected = UnavailableError if fails == "commit" else ZeroDivisionError
                with pytest.raises(expected):
                    async with asyncio.timeout(TIMEOUT_S):
                        while True:
                            await asyncio.gather(a.poll(0.01), b.poll(0.01))
                await balance(a, b, partitions=2)
                assert revoked == b.assignment
                assert a._commits.pending().keys() <= set(a.assignment)
            a._commits.commit_if_owner = commit
            if fails != "commit":
                with pytest.raises(ZeroDivisionError):
                    await a.close()


@pytest.mark.parametrize("slow", [False, True])
async def test_a_last_commit_that_fails_does_not_keep_the_partitions(w, slow):
    """Closing tells of it, leaves the group all the same and lets go of all; once."""
    await w.write(b"v")
    consumer = await w.consumer(group="g", auto_commit=True).start()
    await take(consumer, 1)

    async def fail(*_):
        if slow:
            await asyncio.Event().wait()
        raise UnavailableError("no broker")

    consumer._commits.commit_if_owner = fail
    with pytest.raises(
        RequestTimeoutError if slow else UnavailableError,
        match="the last commit took longer than 0.05 s" if slow else "no broker",
    ):
        await consumer.close(0.05 if slow else TIMEOUT_S)
    await consumer.close()
    for call in (consumer.poll, consumer.commit, consumer.lag, consumer.committed):
        with pytest.raises(ClosedError, match="closed"):
            await call()
    assert w.broker.groups.members("g", "t", 0) == []
    with pytest.raises(ClosedError):
        await consumer._cluster.topic("t", refresh=True)
    assert not consumer._fetcher._tasks
    with pytest.raises(RuntimeError):
        consumer._executor.submit(print)


async def test_a_body_that_failed_ends_as_a_crash(w):
    """Nothing is committed and `on_revoke` is not called; but the group need not wait for it."""
    revoked = []
    await w.write(b"v")
    options = {"auto_commit": True, "on_revoke": revoked.append}
    with pytest.raises(ZeroDivisionError):
        await _fail_with(w.consumer(group="g", **options))
    assert revoked == []
    assert await w.queue.committed("g", w.queue_topic) == {0: 0}  # where it began
    assert w.broker.groups.members("g", "t", 0) == []
    async with w.consumer(group="g", **options) as consumer:
        await take(consumer, 1)
    assert revoked == [[0]], "what ends in order calls it once"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_poll_sees_first_that_the_session_is_over(w, fails):
    """Though nobody has told it, as after a freeze: what is ready is not handed out, also when the
    callback fails.
    """
    lost = []

    def on_lost(partitions):
        lost.append((partitions, consumer.assignment, consumer._commits.pending()))
        if fails:
            raise ZeroDivisionError

    for n in range(3):
        await w.write(b"%d" % n)
    async with w.consumer(group="g", on_lost=on_lost) as consumer:
        await take(consumer, 1)
        fetcher = consumer._fetcher
        await until(lambda: fetcher._held_bytes and not fetcher._fetching)
        session = consumer._session
        session._task.cancel()  # frozen: it hears of nothing
        session.membership._expires_ms = 0
        if fails:
            with pytest.raises(ZeroDivisionError):
                await consumer.poll(TIMEOUT_S)
        assert await consumer.poll(0.01) is None
        assert lost == [([0], [], {})]
        assert consumer.assignment == []
