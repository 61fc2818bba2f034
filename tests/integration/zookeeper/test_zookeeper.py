"""A real ZooKeeper passes the contract of coordination, and what only a real one can do."""

import asyncio
import secrets
import subprocess
import time

import pytest

from memq.core.governor.coordination import Set
from memq.errors import SessionLostError, UnauthorizedError, UnavailableError
from memq.runtime.system import SYSTEM
from memq.zookeeper import open_zookeeper
from memq.zookeeper.kazoo_link import ABORT_S, CLOSE_S
from memq.zookeeper.options import ZooKeeperOptions
from tests.contracts.coordination import *  # noqa: F403 - the suite is the module
from tests.contracts.coordination import SHORT_S, data_is, following, lost, within
from tests.harness.services.tcp_faults import TcpFaultProxy
from tests.harness.services.zookeeper import ZooKeeper
from tests.integration.zookeeper.servers import kazoo_threads

LATE_S = 5.0  # what a busy machine may add to what is prompt


@pytest.fixture
def own_server(tmp_path, service_jars):
    """A server to freeze and kill."""
    with ZooKeeper(tmp_path, jars=service_jars) as server:
        yield server
        server.thaw()


def options_for(server, **options):
    return ZooKeeperOptions(servers=f"{server.address}/memq", **options)


# -- sessions -------------------------------------------------------------------------------


async def test_a_session_outlives_a_server_that_is_killed(own_server):
    """After kill -9 and a start the same session goes on, with its ephemeral and its watch."""
    session = await open_zookeeper(options_for(own_server, session_timeout_ms=10_000))
    await session.create("/mine", b"0", ephemeral=True)
    watch = session.watch("/mine")
    await anext(watch)
    own_server.kill()
    await asyncio.to_thread(own_server.start)
    assert await session.set("/mine", b"1", 0) == 1
    await following(watch, data_is(b"1"))
    assert (await session.get("/mine")).owner == session.session_id
    assert session.lease.valid(SYSTEM.boot_s())
    await session.close()


@pytest.mark.parametrize("backup", ["older", "none"])
async def test_a_server_that_was_restored_from_a_backup(own_server, tmp_path, backup):
    """It refuses a session that has seen more, which is given up then; a new one is served."""
    earlier = await open_zookeeper(options_for(own_server))
    await earlier.create("/before")
    await earlier.close()
    await asyncio.to_thread(own_server.back_up, tmp_path / "backup")
    session = await open_zookeeper(options_for(own_server, session_timeout_ms=2_000))
    for number in range(5):  # with as many, sessions that end then make up for them
        await session.create(f"/after-{number}")
    copy = tmp_path / "backup" if backup == "older" else None
    await asyncio.to_thread(own_server.restore, copy)
    with pytest.raises(SessionLostError, match=r"take connections.*backup|EXPIRED"):
        await within(lost(session))
        session.check_alive()
    await session.close()
    other = await open_zookeeper(options_for(own_server))
    assert await other.children("/") == (("before",) if copy else ())
    await other.close()


async def test_no_new_session_under_an_old_one(service, other):
    """After its session has expired kazoo connects no more, also while the loop stands still."""
    session = await service.open(session_timeout_s=SHORT_S)
    await session.create("/mine", ephemeral=True)
    gone = other.watch("/mine")
    await anext(gone)
    service.freeze(session)
    assert await within(anext(gone)) is None
    service.thaw(session)
    time.sleep(4)  # noqa: ASYNC251 - it learns of its end, and would have begun another by now
    assert service.proxies[session].connections == 0
    await within(lost(session))


async def test_the_session_timeout_is_what_the_servers_agree_to(own_server):
    """They agree to no less than two ticks, and the lease goes by that."""
    session = await open_zookeeper(options_for(own_server, session_timeout_ms=600))
    assert session.lease.timeout_s == 1.0
    await session.close()


# -- where there is no server ----------------------------------------------------------------


async def test_closing_while_the_server_stands_still_is_prompt(own_server):
    """Whatever it waits for, it ends within seconds, and leaves no thread behind."""
    session = await open_zookeeper(options_for(own_server, session_timeout_ms=30_000))
    own_server.freeze()
    began_s = time.monotonic()
    await session.close()
    assert time.monotonic() - began_s < CLOSE_S + ABORT_S + LATE_S
    assert kazoo_threads() == []


@pytest.mark.parametrize("there", [False, True])
async def test_opening_without_a_server_ends_in_time(there):
    """The error names the servers and what is wrong, or that nobody answers; no thread is left."""
    with TcpFaultProxy(("127.0.0.1", 9)) as proxy:
        proxy.freeze()
        servers = proxy.address if there else "127.0.0.1:9,localhost:9/memq"
        options = ZooKeeperOptions(servers=servers, request_timeout_ms=1_000)
        problem = "within 1 s" if there else r"127\.0\.0\.1:9.*refused.*within 1 s"
        began_s = time.monotonic()
        with pytest.raises(UnavailableError, match=problem):
            await open_zookeeper(options)
        assert time.monotonic() - began_s < 1 + ABORT_S + LATE_S
        assert kazoo_threads() == []


# -- roots, access, TLS -----------------------------------------------------------------------


async def test_the_root_is_made(zookeeper_server):
    """All of it, once, whoever comes first; and what is in it is seen from above."""
    root = f"/{secrets.token_hex(6)}/cluster/memq"
    options = ZooKeeperOptions(servers=f"{zookeeper_server.address}{root}")
    first, second = await asyncio.gather(open_zookeeper(options), open_zookeeper(options))
    await first.create("/a", b"x")
    assert (await second.get("/a")).data == b"x"
    above = await open_zookeeper(ZooKeeperOptions(servers=zookeeper_server.address))
    assert (await above.get(f"{root}/a")).data == b"x"
    for session in (first, second, above):
        await session.close()


async def test_what_an_identity_made_is_its_own(service):
    """Another one, or none, can neither read nor change it; it says so, and nothing else breaks."""
    ours, theirs = await service.open(user="ours"), await service.open(user="theirs")
    anybody = await service.open()
    await anybody.create("/open", b"0")
    await ours.create("/ours", b"0")
    await ours.create("/ours/child")
    for session in (theirs, anybody):
        for call in (
            session.get("/ours"),
            session.children("/ours"),
            session.set("/ours", b"1", 0),
            session.create("/ours/another"),
            session.delete("/ours/child", 0),
            session.transact([Set("/open", b"1", 0), Set("/ours", b"1", 0)]),
            anext(session.watch("/ours")),
        ):
            with pytest.raises(UnauthorizedError, match="/ours"):
                await call
        assert (await session.get("/open")).version == 0
    assert await (await service.open(user="ours")).set("/ours", b"1", 0) == 1
    assert await ours.children("/ours") == ("child",)


def run(*command, cwd):
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


class TlsZooKeeper(ZooKeeper):
    """A server that speaks TLS, and wants to know who its clients are."""

    def _prepare(self):
        super()._prepare()
        with self._settings_path.open("a") as settings:
            settings.write(
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"secureClientPort={self._ports[1]}\n"
                f"ssl.keyStore.location={self.folder / 'server.pem'}\n"
                f"ssl.trustStore.location={self.folder / 'ca.pem'}\n"
                "ssl.clientAuth=need\n"
            )

    port_count = 2


@pytest.fixture
def authority(tmp_path):
    """A folder with an authority, and certificates of a server and a client."""
    new = ("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2")
    run(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", cwd=tmp_path)
    for name in ("server", "client"):
        run(
            *new, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE",
            "-CA", "ca.pem", "-CAkey", "ca.key", cwd=tmp_path,
        )  # fmt: skip
        pem = (tmp_path / f"{name}.key").read_text() + (tmp_path / f"{name}.crt").read_text()
        (tmp_path / f"{name}.pem").write_text(pem)
    return tmp_path


async def test_tls(authority, service_jars):
    """With the authority and a certificate there is a session; without either there is none."""
    with TlsZooKeeper(authority, jars=service_jars) as server:
        common = {
            "servers": f"127.0.0.1:{server._ports[1]}/memq",
            "request_timeout_ms": 8_000,
        }
        ours = {
            "client_certificate": str(authority / "client.crt"),
            "client_key": str(authority / "client.key"),
        }
        ca = {"ca_certificate": str(authority / "ca.pem")}
        session = await open_zookeeper(ZooKeeperOptions(**common, **ours, **ca))
        await session.create("/a", b"x" * 100_000)
        assert len((await session.get("/a")).data) == 100_000
        await session.close()
        common["request_timeout_ms"] = 2_000
        with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            await open_zookeeper(ZooKeeperOptions(**common, **ours, tls=True))
        with pytest.raises(UnavailableError):
            await open_zookeeper(ZooKeeperOptions(**common, **ca))
    assert kazoo_threads() == []
