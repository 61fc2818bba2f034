"""The wire protocol as sans-I/O state machines.

`frame` cuts bytes into frames, `messages` lists every request and answer, `connection` states the
rules of a connection, `server` and `client` are its two ends, `events` what they tell.
"""

from memq.core.wire.client_connection import ClientConnection
from memq.core.wire.connection import (
    CLIENT_MAX_BODY_BYTES,
    CLIENT_MAX_HEADER_BYTES,
    HANDSHAKE_MAX_HEADER_BYTES,
    MAX_IN_FLIGHT,
    SERVER_MAX_BODY_BYTES,
    SERVER_MAX_HEADER_BYTES,
)
from memq.core.wire.events import (
    Answer,
    ClientEvent,
    Failure,
    HandshakeDone,
    HandshakeReceived,
    LateAnswer,
    Refused,
    Request,
    ServerEvent,
)
from memq.core.wire.frame import Buffer, Frame, FrameReader, encode_frame
from memq.core.wire.server_connection import ServerConnection

__all__ = [
    "CLIENT_MAX_BODY_BYTES",
    "CLIENT_MAX_HEADER_BYTES",
    "HANDSHAKE_MAX_HEADER_BYTES",
    "MAX_IN_FLIGHT",
    "SERVER_MAX_BODY_BYTES",
    "SERVER_MAX_HEADER_BYTES",
    "Answer",
    "Buffer",
    "ClientConnection",
    "ClientEvent",
    "Failure",
    "Frame",
    "FrameReader",
    "HandshakeDone",
    "HandshakeReceived",
    "LateAnswer",
    "Refused",
    "Request",
    "ServerConnection",
    "ServerEvent",
    "encode_frame",
]
