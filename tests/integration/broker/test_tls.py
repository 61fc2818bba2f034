"""Listeners with TLS: who gets in, what the others are told, and files that are replaced."""

import asyncio
import contextlib
import os
import re
import socket
import ssl
import threading
import time
import warnings
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from memq import AdminClient, Consumer, Producer, read_range
from memq.broker.connection import TLS_BYTES, ServedConnection
from memq.client.connection import BrokerConnection
from memq.client.security import Security
from memq.core.wire import messages as m
from memq.errors import ConfigError, TlsError, UnavailableError
from memq.runtime.system import SYSTEM
from memq.testing.broker import BrokerProcess
from tests.harness.certificates import DAY, Certificates
from tests.integration.broker.support import TIMEOUT_S, broker, failing, until


@pytest.fixture
def certificates(tmp_path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def opened(address: str, **security):
    """A connection with this security."""
    connection = await BrokerConnection.open(
        address, security=Security.parse(security), connect_timeout_s=TIMEOUT_S
    )
    try:
        yield connection
    finally:
        await connection.close()


async def told(address: str, **security) -> str:
    """What a client that does not get in is told; with TLS 1.3 by what it asks first."""
    with pytest.raises(TlsError) as error:
        async with opened(address, **security):
            pass
    return str(error.value)


async def test_a_client_that_knows_the_ca_gets_in(tmp_path, certificates) -> None:
    """What was written over TLS is read over TLS, whatever the sizes of what travels."""
    async with broker(tmp_path, **certificates.broker_options()) as b:
        security = {"ca": certificates.ca}
        values = [b"%d" % number * (1 + number % 997) for number in range(5_000)]

        def work() -> list[bytes]:
            with AdminClient(b.address, security=security) as admin:
                admin.create_topic("t", batch_age="10ms")
            with Producer(b.address, topic="t", security=security) as producer:
                for value in values:
                    producer.write(value)
            options = {"security": security, "read_through": "broker"}
            with Consumer(b.address, topic="t", **options) as consumer:
                found: list[bytes] = []
                while len(found) < len(values):
                    found += [each.value for each in consumer.poll(TIMEOUT_S) or ()]
            return found

        assert sorted(await asyncio.to_thread(work)) == sorted(values)


@pytest.mark.parametrize(
    "issued", [{"begins": -3 * DAY, "lasts": DAY}, {"begins": DAY}], ids=["late", "early"]
)
async def test_a_broker_does_not_start_outside_the_time_of_its_certificate(
    tmp_path, certificates, issued
) -> None:
    """The error names the time of the certificate, and what to do."""
    with pytest.raises(ConfigError, match=r"valid from .* and it is .*: renew it, or set"):
        async with broker(tmp_path, **certificates.broker_options(**issued)):
            pass


async def test_a_broker_does_not_start_under_another_name(tmp_path, certificates) -> None:
    """Clients could not connect, so the error names both names."""
    options = certificates.broker_options() | {"advertised": "broker-1.example.com:6367"}
    match = "clients that connect to broker-1.example.com refuse .*: its certificate has another"
    with pytest.raises(ConfigError, match=match):
        async with broker(tmp_path, **options):
            pass


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tls_key": ""}, "needs both tls_cert and tls_key"),
        ({"tls_cert": "", "tls_key": "", "tls_ca": "/x"}, "needs both tls_cert and tls_key"),
        ({"tls_cert": "", "tls_key": "", "client_auth": "required"}, "needs both tls_cert"),
        ({"tls_cert": "/none"}, "cannot read tls_cert = /none"),
        ({"tls_key": "/none"}, "cannot read tls_key = /none"),
        ({"host": "::", "insecure": "true"}, "has TLS and listens on ::, without advertised"),
        ({"client_auth": "required"}, "client_auth = required without tls_ca"),
        ({"tls_ca": "/none", "client_auth": "optional"}, "cannot read tls_ca = /none"),
    ],
)
async def test_files_that_cannot_be_used_are_named(tmp_path, certificates, change, match) -> None:
    """A broker does not start with files that are missing, or not those it needs."""
    with pytest.raises(ConfigError, match=match):
        async with broker(tmp_path, **certificates.broker_options() | change):
            pass


async def test_a_key_of_another_certificate_is_refused(tmp_path, certificates) -> None:
    """The error says which two files do not belong together."""
    cert, _ = certificates.write(certificates.issue())
    _, other = certificates.write(certificates.issue(), "other")
    with pytest.raises(
        ConfigError, match=f"tls_key = {other} is not that of the certificate {cert}"
    ):
        async with broker(tmp_path, tls_cert=cert, tls_key=other):
            pass


@pytest.mark.parametrize(
    ("issued", "match"),
    [
        ({"begins": -3 * DAY, "lasts": DAY}, "has expired: renew it"),
        ({"begins": DAY}, "not valid yet"),
    ],
)
async def test_clients_refuse_what_is_not_valid_now(tmp_path, certificates, issued, match) -> None:
    """A broker whose clock is wrong starts; its clients see the time and say so."""
    wrong_s = time.time() + (issued["begins"] + DAY / 2).total_seconds()
    runtime = replace(SYSTEM, wall_ns=lambda: int(wrong_s * 1e9))
    options = certificates.broker_options(**issued)
    async with broker(tmp_path, runtime=runtime, **options) as b:
        assert match in await told(b.address, ca=certificates.ca)


async def test_clients_refuse_another_name_and_another_ca(tmp_path, certificates) -> None:
    """Each is told what to change, and `server_name` names what the certificate has."""
    options = certificates.broker_options()
    other = Certificates(tmp_path, "others")
    async with broker(tmp_path, **options) as b:
        assert "of a CA that is not in `ca`" in await told(b.address, ca=other.ca)
        said = await told(b.address, ca=certificates.ca, server_name="broker-9")
        assert "another name" in said
        assert "server_name" in said
        async with opened(b.address, ca=certificates.ca, server_name="localhost"):
            pass
        with pytest.raises(ConfigError, match="can be no name in a certificate"):
            async with opened(b.address, ca=certificates.ca, server_name=".x"):
                pass


async def test_a_common_name_is_no_name(tmp_path, certificates) -> None:
    """A client's certificate whose common name is a broker's does not make it that broker."""
    issued = certificates.issue("localhost", "127.0.0.1")
    cert, key = certificates.write(issued)
    async with broker(tmp_path, tls_cert=cert, tls_key=key) as b:
        assert "another name" in await told(b.address, ca=certificates.ca, server_name="localhost")


async def test_no_session_is_taken_up_again(tmp_path, certificates) -> None:
    """It would let a client in whose certificate has expired or was revoked meanwhile."""
    context = ssl.create_default_context(cafile=certificates.ca)

    def session(version: ssl.TLSVersion, before=None):
        context.maximum_version = version
        with (
            socket.create_connection((host, int(port)), TIMEOUT_S) as sock,
            context.wrap_socket(sock, server_hostname=host, session=before) as tls,
        ):
            with contextlib.suppress(TimeoutError):
                tls.settimeout(0.05)
                tls.recv(1)
            assert not tls.session_reused
            return tls.session

    async with broker(tmp_path, **certificates.broker_options()) as b:
        host, _, port = b.address.rpartition(":")
        found = await asyncio.to_thread(session, ssl.TLSVersion.TLSv1_3)
        assert found is None or not found.has_ticket
        await asyncio.to_thread(session, ssl.TLSVersion.TLSv1_3, found)


async def test_the_wrong_kind_is_told_on_both_sides(tmp_path, certificates, caplog) -> None:
    """TLS on a plain listener and plain bytes on one with TLS end in one clear line each."""
    async with broker(tmp_path / "plain") as plain:
        said = await told(plain.address, ca=certificates.ca)
        assert "does not speak TLS there" in said
        assert "this looks like TLS, and a plain listener" in caplog.text
    async with broker(tmp_path / "tls", **certificates.broker_options()) as b:
        assert "the broker speaks TLS there: give `ca`" in await told(b.address)
        assert "at listener 'default': it does not speak TLS, which this listener" in caplog.text


async def test_a_look_at_the_port_is_not_reported(tmp_path, certificates, caplog) -> None:
    """A load balancer that connects and closes, as they do, fills no log."""
    async with broker(tmp_path, **certificates.broker_options()) as b:
        host, _, port = b.address.rpartition(":")
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            await writer.wait_closed()
        async with opened(b.address, ca=certificates.ca):
            pass
        assert "no TLS with" not in caplog.text


async def test_a_handshake_that_does_not_go_on_makes_room_for_others(
    tmp_path, certificates, monkeypatch
) -> None:
    """Connections that send the beginning of TLS and no more do not keep clients out."""
    monkeypatch.setattr("memq.broker.listeners.MAX_HANDSHAKES", 2)
    async with broker(tmp_path, **certificates.broker_options()) as b:
        host, _, port = b.address.rpartition(":")
        (listener,) = b.listeners.values()
        writers = []
        for _ in range(5):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\x16\x03\x01")
            writers.append(writer)
        await until(lambda: len(listener._shaking) == 2)
        async with opened(b.address, ca=certificates.ca) as connection:
            await connection.request(m.Metadata(), timeout_s=TIMEOUT_S)
        for writer in writers:
            writer.close()


async def test_a_bug_under_tls_stops_the_broker_as_any_other(tmp_path, certificates) -> None:
    """An error that nothing expected, met in a connection with TLS, is not taken for another's."""
    error = RuntimeError("a bug")
    async with broker(tmp_path, **certificates.broker_options()) as b:
        with failing(ServedConnection, "_receive_all", error):
            with pytest.raises(UnavailableError):
                async with opened(b.address, ca=certificates.ca):
                    pass
            assert await b.failed() is error


async def test_connections_of_the_admin_http_are_bounded_from_their_first_byte(
    tmp_path, certificates, monkeypatch
) -> None:
    """The oldest makes room, also while its handshake goes on."""
    monkeypatch.setattr("memq.broker.admin.MAX_CONNECTIONS", 2)
    async with broker(tmp_path, admin_tls=True, **certificates.broker_options()) as b:
        opened_ = [await asyncio.open_connection("127.0.0.1", b.admin_port) for _ in range(3)]
        first, _ = opened_[0]
        assert await asyncio.wait_for(first.read(), TIMEOUT_S) == b""
        for _, writer in opened_:
            writer.close()


async def test_large_messages_come_whole(tmp_path, certificates) -> None:
    """Those of many records of TLS, and those of more than the broker reads in a turn."""
    async with broker(tmp_path, **certificates.broker_options()) as b:
        security = {"ca": certificates.ca}
        values = [os.urandom(size << 10) for size in (1_000, 64, 20_000, 7_000, 300, 20_000)]

        def work() -> list[bytes]:
            with AdminClient(b.address, security=security) as admin:
                admin.create_topic(
                    "t", batch_age="10ms", message_bytes="32MiB", batch_bytes="32MiB"
                )
            with Producer(b.address, topic="t", security=security) as producer:
                for each in [producer.write(value) for value in values]:
                    each.result(TIMEOUT_S)
            options = {"security": security, "read_through": "broker"}
            with Consumer(b.address, topic="t", **options) as consumer:
                found: list[bytes] = []
                while len(found) < len(values):
                    found += [each.value for each in consumer.poll(TIMEOUT_S) or ()]
            return found

        assert sorted(await asyncio.to_thread(work)) == sorted(values)


async def test_a_producer_outlives_a_broker_that_is_killed(tmp_path, certificates) -> None:
    """A connection that ends in its handshake is one to try again, as without TLS."""

    def work() -> None:
        with BrokerProcess(tmp_path / "data", **certificates.broker_options()) as process:
            security = {"ca": certificates.ca}
            with AdminClient(process.address, security=security) as admin:
                admin.create_topic("t", batch_age="5ms")
            with Producer(process.address, topic="t", security=security) as producer:
                producer.write(b"a").result(TIMEOUT_S)
                process.kill()
                later = producer.write(b"b")
                process.restart()
                later.result(TIMEOUT_S)

    await asyncio.to_thread(work)


async def test_the_admin_http_over_tls(tmp_path, certificates) -> None:
    """With `admin_tls` pages are served over TLS, and metrics tell when the certificate ends."""
    context = ssl.create_default_context(cafile=certificates.ca)
    async with (
        broker(tmp_path, admin_tls=True, **certificates.broker_options()) as b,
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{b.admin_port}/metrics", ssl=context) as answer,
    ):
        text = await answer.text()
        (listener,) = b.listeners.values()
        (told_s,) = re.findall(r'not_after_seconds\{listener="default"\} (.*)', text)
        assert float(told_s) == listener.not_after_s


async def test_tls_1_1_is_refused(tmp_path, certificates) -> None:
    """An old client is told by TLS itself."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(certificates.ca)
    with warnings.catch_warnings(action="ignore"):
        old.maximum_version = old.minimum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with broker(tmp_path, **certificates.broker_options()) as b:
        host, _, port = b.address.rpartition(":")

        def connect() -> None:
            with (
                socket.create_connection((host, int(port)), TIMEOUT_S) as sock,
                old.wrap_socket(sock, server_hostname=host),
            ):
                pass

        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            await asyncio.to_thread(connect)


async def test_certificates_of_clients(tmp_path, certificates) -> None:
    """Where they are required only those of the CA get in that are valid and not revoked."""
    other = Certificates(tmp_path, "others")
    good, revoked = (certificates.issue(name, client=True) for name in ("alice", "bob"))
    late = certificates.issue("carol", begins=-3 * DAY, lasts=DAY, client=True)
    foreign = other.issue("alice", client=True)
    options = certificates.broker_options() | {
        "tls_ca": certificates.ca,
        "tls_crl": certificates.revoke(revoked),
        "client_auth": "required",
    }

    def files(name: str, issued) -> dict[str, str]:
        cert, key = certificates.write(issued, name)
        return {"ca": certificates.ca, "cert": cert, "key": key}

    async with broker(tmp_path, **options) as b:
        async with opened(b.address, **files("good", good)) as connection:
            await connection.request(m.Metadata(), timeout_s=TIMEOUT_S)
        assert "asks for a certificate: give `cert`" in await told(b.address, ca=certificates.ca)
        assert "has been revoked" in await told(b.address, **files("revoked", revoked))
        assert "has expired" in await told(b.address, **files("late", late))
        assert "does not know the CA" in await told(b.address, **files("foreign", foreign))


# -- files that are replaced -----------------------------------------------------------------


async def serial(address: str, ca: str) -> int:
    """Serial number of the certificate that a broker shows."""
    async with opened(address, ca=ca) as connection:
        assert connection._transport is not None
        return int(connection._transport.get_extra_info("peercert")["serialNumber"], 16)


async def test_a_reload_takes_new_connections_and_leaves_the_others(tmp_path, certificates) -> None:
    """After `reload` new connections have the new certificate, and who is connected stays so."""
    first, second = certificates.issue(), certificates.issue()
    cert, key = certificates.write(first)
    async with (
        broker(tmp_path, tls_cert=cert, tls_key=key) as b,
        opened(b.address, ca=certificates.ca) as connection,
    ):
        assert await serial(b.address, certificates.ca) == first.certificate.serial_number
        certificates.write(second)
        b.reload()
        assert await serial(b.address, certificates.ca) == second.certificate.serial_number
        await connection.request(m.Metadata(), timeout_s=TIMEOUT_S)


async def test_files_that_were_replaced_are_seen_at_the_next_look(tmp_path, certificates) -> None:
    """A look that finds them as they were loads nothing."""
    cert, key = certificates.write(certificates.issue())
    async with broker(tmp_path, tls_cert=cert, tls_key=key) as b:
        (listener,) = b.listeners.values()
        before = listener._tls
        listener.look()
        assert listener._tls is before
        second = certificates.issue()
        certificates.write(second)
        listener.look()
        assert await serial(b.address, certificates.ca) == second.certificate.serial_number


async def test_a_reload_that_fails_changes_nothing(tmp_path, certificates, caplog) -> None:
    """The certificate before stays in use, and one line says why."""
    first = certificates.issue()
    cert, key = certificates.write(first)
    async with broker(tmp_path, tls_cert=cert, tls_key=key) as b:
        certificates.write(certificates.issue(begins=-3 * DAY, lasts=DAY))
        b.reload()
        assert "TLS not reloaded, the files before stay in use: the certificate" in caplog.text
        assert await serial(b.address, certificates.ca) == first.certificate.serial_number


async def test_reloads_under_load_lose_and_double_nothing(tmp_path, certificates) -> None:
    """While a producer writes and clients come and go, each reload leaves every ack in place."""
    cert, key = certificates.write(certificates.issue())
    security = {"ca": certificates.ca}
    async with broker(tmp_path, tls_cert=cert, tls_key=key) as b:
        done = threading.Event()

        def write() -> int:
            with AdminClient(b.address, security=security) as admin:
                admin.create_topic("t", batch_age="5ms")
            written = 0
            with Producer(b.address, topic="t", security=security) as producer:
                while not done.is_set():
                    producer.write(b"%d" % written).result(TIMEOUT_S)
                    written += 1
            return written

        writing = asyncio.get_running_loop().run_in_executor(None, write)
        for _ in range(20):
            issued = certificates.issue()
            certificates.write(issued)
            b.reload()
            assert await serial(b.address, certificates.ca) == issued.certificate.serial_number
        done.set()
        written = await writing
        options = {"topic": "t", "security": security, "read_through": "broker"}
        table = await asyncio.to_thread(read_range, b.address, **options)
        found = table.column("value").to_pylist()
        assert sorted(found, key=int) == [b"%d" % number for number in range(written)]


async def test_files_that_could_not_be_used_are_tried_again(tmp_path, certificates, caplog) -> None:
    """A certificate that is valid from a moment ahead is taken when that has come."""
    now_ns = [time.time_ns()]
    runtime = replace(SYSTEM, wall_ns=lambda: now_ns[0])
    cert, key = certificates.write(certificates.issue())
    async with broker(tmp_path, runtime=runtime, tls_cert=cert, tls_key=key) as b:
        (listener,) = b.listeners.values()
        certificates.write(certificates.issue(begins=DAY / 24))
        before = listener._tls
        listener.look()
        assert listener._tls is before
        assert "TLS not reloaded" in caplog.text
        now_ns[0] += 3_600 * 10**9
        listener.look()
        assert listener._tls is not before


@pytest.mark.parametrize(("days", "warned"), [(20, 0), (10, 1), (2, 1)])
async def test_a_certificate_that_ends_soon_is_told_of_in_time(
    tmp_path, certificates, caplog, days, warned
) -> None:
    """A warning 14 days before and another 3 days before, once each."""
    async with broker(tmp_path, **certificates.broker_options(lasts=days * DAY)) as b:
        (listener,) = b.listeners.values()
        listener.look()
        listener.look()
        await until(lambda: caplog.text.count("renew it") == warned)
        assert caplog.text.count("renew it") == warned


# -- more than one listener ------------------------------------------------------------------


async def test_clients_are_told_the_addresses_of_their_own_listener(tmp_path, certificates) -> None:
    """Over TLS a client learns TLS addresses only, and over the plain one the plain only."""
    secure = certificates.broker_options() | {"port": 0}
    async with broker(tmp_path, listeners={"secure": secure}) as b:
        addresses = {name: each.address for name, each in b.listeners.items()}
        assert len(set(addresses.values())) == 2
        for name, security in (("default", {}), ("secure", {"ca": certificates.ca})):
            async with opened(addresses[name], **security) as connection:

                async def ask(request: m.Struct, connection=connection):
                    answer, _ = await connection.request(request, timeout_s=TIMEOUT_S)
                    return answer

                metadata = await ask(m.Metadata())
                described = await ask(m.DescribeCluster(own=True))
            told = {
                *(each.address for each in metadata.brokers),
                *(host for topic in metadata.topics for host in topic.hosts),
                *(topic.queue_address for topic in metadata.topics),
                *(each.address for each in described.brokers),
                described.status.address,
            }
            assert told == {addresses[name]}


@pytest.mark.parametrize(
    ("listeners", "match"),
    [
        ([], "write a table"),
        ({"a": 1}, "expected a table"),
        ({"default": {"port": 1}}, "that is the listener of `host`"),
        ({"a": {}}, "port is missing"),
        ({"a": {"port": 1, "x": 2}}, "listeners.a: unknown option 'x'"),
    ],
)
async def test_listeners_that_make_no_sense_are_refused(tmp_path, listeners, match) -> None:
    """The error names the table."""
    with pytest.raises(ConfigError, match=match):
        async with broker(tmp_path, listeners=listeners):
            pass


async def test_connections_with_tls_count_in_the_memory(tmp_path, certificates) -> None:
    """They take half of it at most: the next one is told so, and what one took is given back."""
    options = certificates.broker_options() | {"memory_bytes": "8MiB"}
    async with broker(tmp_path, **options) as b, contextlib.AsyncExitStack() as stack:
        most = (4 << 20) // TLS_BYTES
        for _ in range(most):
            first = await stack.enter_async_context(opened(b.address, ca=certificates.ca))
        assert b.context.memory.used_bytes == b.connections.tls_bytes == most * TLS_BYTES
        with pytest.raises(UnavailableError, match="may take half of its memory_bytes"):
            async with opened(b.address, ca=certificates.ca):
                pass
        await until(lambda: len(b.connections) == most)
        await first.close()
        await until(lambda: len(b.connections) == most - 1)
        async with opened(b.address, ca=certificates.ca):
            pass
    assert b.context.memory.used_bytes == b.connections.tls_bytes == 0
