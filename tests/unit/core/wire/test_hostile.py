"""Hostile peers: whatever they send, the answer is an event or a typed error, within the limits."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memq.core.wire.connection import HandshakeReceived, Refused, Request
from memq.core.wire.frame import FrameReader, encode_frame
from memq.core.wire.messages import REQUESTS, Handshake
from memq.errors import ClosedError, MemqError
from tests.unit.core.wire.builders import ConnectionPair, client_reader, new_server

MAX_HEADER, MAX_BODY = 1_000, 5_000
MSGPACK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
NAMES = sorted(
    {
        field.name
        for each in REQUESTS.values()
        for s in each[:2]
        for field in msgspec.structs.fields(s)
    }
)
HEADERS = st.one_of(
    st.binary(max_size=50),
    MSGPACK.map(msgspec.msgpack.encode),
    st.dictionaries(st.sampled_from(NAMES), MSGPACK).map(msgspec.msgpack.encode),
)
CODES = st.sampled_from([0, *REQUESTS]) | st.integers(0, 255)
WELL_FRAMED = st.builds(
    lambda code, cid, header, body, flags: encode_frame(code, cid, header, body, flags=flags),
    CODES,
    st.integers(0, 5) | st.integers(0, 2**64 - 1),
    HEADERS,
    st.binary(max_size=50),
    st.sampled_from([0, 0, 0, 1, 2, 3, 4]) | st.integers(0, 2**16 - 1),
).map(b"".join)
HELLO = b"".join(
    encode_frame(1, 1, msgspec.msgpack.encode(Handshake(versions=[1]), order="deterministic"))
)


def damage(data, position, value):
    """Data with one byte replaced."""
    if not data:
        return data
    position %= len(data)
    return data[:position] + bytes([value]) + data[position + 1 :]


STREAMS = st.lists(
    st.one_of(
        WELL_FRAMED,
        st.just(HELLO),
        st.binary(max_size=60),
        st.builds(damage, WELL_FRAMED, st.integers(0, 500), st.integers(0, 255)),
    ),
    max_size=8,
).map(b"".join)


@given(st.booleans(), STREAMS, st.integers(1, 200))
@example(True, HELLO, 200)
def test_server_survives_any_bytes(opened, stream, step):
    """A server turns random bytes into events, or ends with a `MemqError` and stays ended.

    However they are cut, no allocation and no buffer exceeds a limit.
    """
    asked = []

    def allocate(size):
        asked.append(size)
        return memoryview(bytearray(size))

    server = new_server()
    reader = FrameReader(max_header_bytes=MAX_HEADER, max_body_bytes=MAX_BODY, allocate=allocate)
    stream = HELLO * opened + stream
    try:
        for start in range(0, len(stream), step):
            for frame in reader.feed(stream[start : start + step]):
                event = server.receive(frame)
                assert isinstance(event, HandshakeReceived | Request | Refused)
                if not isinstance(event, Request):
                    assert all(client_reader().feed(buffer) for buffer in event.buffers_to_send)
            assert reader.buffered_bytes <= 32 + MAX_HEADER + MAX_BODY
    except MemqError as exc:
        [goodbye] = client_reader().feed(b"".join(server.goodbye(exc)))
        assert (goodbye.type, goodbye.correlation_id) == (0, 0)
        with pytest.raises(ClosedError):
            server.receive(goodbye)
    assert server.in_flight <= len(stream)
    assert all(0 < size <= MAX_BODY for size in asked)


@given(st.booleans(), st.integers(0, 4), STREAMS)
def test_client_survives_any_bytes(opened, requests, stream):
    """A client turns random frames into events, or ends with a `MemqError` and stays ended."""
    pair = ConnectionPair(opened=opened)
    if opened:
        for request_type, _, _ in list(REQUESTS.values())[1 : 1 + requests]:
            fields = msgspec.structs.fields(request_type)
            nothing = {field.name: None for field in fields if field.required}
            pair.client.request(request_type(**nothing))
    before = pair.client.in_flight
    try:
        for frame in pair.to_client.feed(stream):
            pair.client.receive(frame)
    except MemqError:
        pass
    assert pair.client.in_flight <= before
