"""One connection to one broker, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from memq.client.connection import BrokerConnection, parse_address
from memq.core.wire.messages import DeleteTopic, Metadata
from memq.errors import (
    ConfigError,
    CorruptDataError,
    MessageTooLargeError,
    UnavailableError,
)
from tests.fakes.tiny_broker import TinyBroker, write_request
from tests.integration.broker.support import broker as broker_of


@pytest.fixture
async def broker():
    async with TinyBroker().serve() as tiny:
        yield tiny


@pytest.fixture
async def connection(broker):
    connection = await BrokerConnection.open(broker.address, connect_timeout_s=10)
    yield connection
    await connection.close()


async def test_broken_connection_fails_all_that_wait_at_once(connection, broker):
    """When the connection breaks, each pending request and unsent post has its own error."""
    outcomes = []
    requests = [
        asyncio.ensure_future(connection.request(DeleteTopic(topic="events"), timeout_s=60))
        for _ in range(3)
    ]
    await connection.request(Metadata(), timeout_s=10)
    connection.pause_writing()
    connection.post(write_request(acks=0), b"x" * 100, None, outcomes.append)
    broker.cut()
    errors = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(error) for error in errors] == [UnavailableError] * 3
    assert len(set(map(id, errors))) == 3
    assert [type(error) for error in outcomes] == [UnavailableError]
    assert connection.closed
    with pytest.raises(UnavailableError, match="is over"):
        connection.send(Metadata(), b"", None, print)
    with pytest.raises(UnavailableError, match="is over"):
        connection.post(write_request(acks=0), b"", None)


async def test_body_beyond_the_brokers_limit_is_refused_here():
    """What the broker would refuse is not sent."""
    async with TinyBroker(max_body_bytes=10).serve() as broker:
        connection = await BrokerConnection.open(broker.address, connect_timeout_s=10)
        with pytest.raises(MessageTooLargeError):
            await connection.request(write_request(), b"x" * 11, timeout_s=10)
        await connection.request(Metadata(), timeout_s=10)
        await connection.close()


async def test_damaged_body_ends_the_connection(connection, broker):
    """A body that does not match its CRC is noticed by the broker, which says goodbye."""
    with pytest.raises(UnavailableError) as caught:
        await connection.request(write_request(), b"x" * 100, body_crc=1, timeout_s=10)
    assert isinstance(caught.value.__cause__, CorruptDataError)
    assert broker.published == {}


@pytest.mark.parametrize(
    ("address", "expected"),
    [("broker-1:6367", ("broker-1", 6367)), (" [::1]:80 ", ("::1", 80))],
)
def test_addresses_are_host_and_port(address, expected):
    """Names, numbers and bracketed IPv6 are addresses."""
    assert parse_address(address) == expected


@pytest.mark.parametrize(
    "address",
    ["", "broker", ":6367", "broker:", "broker:x", "broker:0", "broker:65536", "broker:\u00b2"],
)
def test_what_is_no_address_is_refused(address):
    """The error shows what was given and what an address looks like."""
    with pytest.raises(ConfigError, match="broker-1:6367"):
        parse_address(address)


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "ä" * 70, ".", "a\0b"])
async def test_a_host_that_can_be_no_name_is_refused(tmp_path, host):
    """Resolvers raise for it what is no error of a connection; so do servers that are to listen."""
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(f"{host}:6367")
    with pytest.raises(UnavailableError, match="cannot listen on"):
        async with broker_of(tmp_path, host=host):
            pass
