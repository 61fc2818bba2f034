"""Strategies for frames and headers, and both ends of a connection in one hand."""

import types
import typing
from collections import deque

import msgspec
from hypothesis import strategies as st

from memq.core.wire.connection import (
    CLIENT_MAX_BODY_BYTES,
    CLIENT_MAX_HEADER_BYTES,
    SERVER_MAX_BODY_BYTES,
    SERVER_MAX_HEADER_BYTES,
    ClientConnection,
    HandshakeReceived,
    Refused,
    Request,
    ServerConnection,
)
from memq.core.wire.frame import DIRECT_BYTES, FrameReader, encode_frame
from memq.core.wire.messages import Write

INT64 = st.integers(-(2**63), 2**63 - 1)
_PLAIN = {
    int: INT64,
    bool: st.booleans(),
    str: st.text(max_size=5),
    bytes: st.binary(max_size=5),
    types.NoneType: st.none(),
}


def values(kind):
    """Values of a field's type."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    arguments = [values(argument) for argument in typing.get_args(kind)]
    if origin is list:
        return st.lists(arguments[0], max_size=2)
    if origin is dict:
        return st.dictionaries(*arguments, max_size=2)
    return st.one_of(arguments)


def structs(kind):
    """Headers, and the structs inside them."""
    fields = {field.name: values(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


def write(**fields):
    """The header of a Message, but for these fields the plainest one."""
    some = {"topic": "t", "write_partition": 0, "producer_id": "p", "epoch": 0, "sequence": 0}
    some |= {"first_unsettled": 0, "acks": -1, "schema_id": "s", "records": 1}
    return Write(**some | {"min_timestamp_us": 0, "max_timestamp_us": 0} | fields)


@st.composite
def bodies(draw):
    """Bodies: most of them small, some long enough to be received in place."""
    size = draw(st.sampled_from([0, 0, 1, 30, 100, DIRECT_BYTES, DIRECT_BYTES + 1, 40_000]))
    return draw(st.binary(min_size=1, max_size=8)).ljust(size, b"x")[:size]


@st.composite
def encoded_frames(draw):
    """The bytes of a frame, and what a reader should make of it."""
    code, flags = draw(st.integers(0, 255)), draw(st.integers(0, 7))
    correlation_id = draw(st.integers(0, 2**64 - 1))
    header, body = draw(st.binary(max_size=80)), draw(bodies())
    buffers = encode_frame(code, correlation_id, header, body, flags=flags)
    return b"".join(buffers), (code, flags, correlation_id, header, body)


def content(frame):
    """A frame as `encoded_frames` describes it."""
    return (frame.type, frame.flags, frame.correlation_id, frame.header, bytes(frame.body))


def server_reader(**options):
    """A reader with the limits of a server."""
    return FrameReader(
        max_header_bytes=SERVER_MAX_HEADER_BYTES, max_body_bytes=SERVER_MAX_BODY_BYTES, **options
    )


def client_reader(**options):
    """A reader with the limits of a client."""
    return FrameReader(
        max_header_bytes=CLIENT_MAX_HEADER_BYTES, max_body_bytes=CLIENT_MAX_BODY_BYTES, **options
    )


def new_server(admit=lambda _: ("User:anyone", 0), **options):
    """A server that welcomes everybody."""
    return ServerConnection(cluster_id="c", broker_id="b", admit=admit, **options)


class ConnectionPair:
    """A client and a server; all that one sends goes through frames into the other."""

    def __init__(self, *, opened=True, **options):
        self.client, self.server = ClientConnection("tester"), new_server(**options)
        self.to_server, self.to_client = server_reader(), client_reader()
        self.waiting: deque[Request] = deque()
        if opened:
            [done] = self.send(self.client.open())
            self.limits = done.answer

    def send(self, buffers):
        """Client to server; what the client hears at once, such as refusals."""
        heard = []
        for frame in self.to_server.feed(b"".join(buffers)):
            event = self.server.receive(frame)
            if isinstance(event, HandshakeReceived | Refused):
                heard += self.reply(event.buffers_to_send)
            else:
                self.waiting.append(event)
        return heard

    def reply(self, buffers):
        """Server to client; what the client makes of it."""
        return [self.client.receive(frame) for frame in self.to_client.feed(b"".join(buffers))]

    def request(self, header, body=b"", **options):
        """The client's correlation id, and the request as the server got it."""
        correlation_id, buffers = self.client.request(header, body, **options)
        assert self.send(buffers) == []
        return correlation_id, self.waiting.pop()
