"""What a connection tells its caller about the frames it received."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from memq.core.wire.frame import Buffer
from memq.core.wire.messages import HandshakeAnswer, Struct
from memq.errors import MemqError


class HandshakeReceived(msgspec.Struct):
    """Server: the client is welcome. Send the buffers; then the reader may take bodies.

    Attributes:
        buffers_to_send: the answer.
        client: how the client names itself, for logs.
    """

    buffers_to_send: list[Buffer]
    client: str


class Request(msgspec.Struct, gc=False):
    """Server: a request to carry out, then to `answer` or to `fail`, unless it is one way.

    Attributes:
        correlation_id: to answer it with.
        header: one of the structs of `REQUESTS`.
        body: raw bytes, not to be written to.
        body_crc: their CRC32C, checked.
        oneway: True when no answer may be given.
    """

    correlation_id: int
    header: Struct
    body: bytes | memoryview
    body_crc: int
    oneway: bool


class Refused(msgspec.Struct):
    """Server: a request that cannot be carried out. Send the buffers; the connection lives.

    Attributes:
        buffers_to_send: the error answer; empty when the request was one way.
        error: what was wrong, for logs.
    """

    buffers_to_send: list[Buffer]
    error: MemqError


class HandshakeDone(msgspec.Struct):
    """Client: the connection is open, with these limits."""

    answer: HandshakeAnswer


class Answer(msgspec.Struct, gc=False):
    """Client: the answer to a request; `header` is the struct that `REQUESTS` pairs with it."""

    correlation_id: int
    header: Struct
    body: bytes | memoryview
    body_crc: int


class Failure(msgspec.Struct):
    """Client: a request failed with `error`; the connection lives."""

    correlation_id: int
    error: MemqError


class LateAnswer(msgspec.Struct):
    """Client: the answer to a request that was forgotten; there is nothing to do."""

    correlation_id: int


ServerEvent: TypeAlias = HandshakeReceived | Request | Refused
ClientEvent: TypeAlias = HandshakeDone | Answer | Failure | LateAnswer
