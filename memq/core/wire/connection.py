"""A connection, without I/O: frames in, events out; calls in, buffers out.

This is what both ends share; `server_connection` and `client_connection` hold one end each.

Rules

1. The client speaks first, and its first request is the handshake. It sends nothing else until that
   is answered: the answer tells it the version and the limits that hold.
2. Every request has a correlation id of the client's choice, not 0 and not that of a request in
   flight. Its answer has the same id and type code. Answers come in any order.
3. A request is answered exactly once: by its answer, or by an error. A `ONEWAY` request (a Write
   with acks=0) is never answered.
4. What is wrong inside a well-framed request (an unknown type, a header that does not fit, too many
   in flight) fails that request alone. What makes the framing or the pairing of answers doubtful
   ends the connection.
5. A server that ends a connection says why in a goodbye: an error answer of type 0 and correlation
   id 0. Requests in flight then count as not answered; they may or may not have been done.

Theory of operation

A connection is in one `ConnectionState`. What may happen in it, and where that leads, is a table:
one row of `SERVER_MOVES` or `CLIENT_MOVES`. A step that has no row is an error, and an error raised
by `receive` leads to CLOSED, which no row leaves; a server then sends `goodbye(error)`, and either
side closes the socket.

In OPEN, the path of a request is one look-up of its `Route`, one decode and one entry in a table of
what is in flight. That table remembers the route of each id that awaits an answer, so an answer
always gets the right type code and is decoded as the right struct. A client that gives up on a
request calls `forget`: the id stays taken until the late answer comes, because for the server it
still is in flight.

One connection belongs to one thread. The caller owns sockets, time and the frames' limits: it gives
`FrameReader` the limits named below.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from memq.core.wire.frame import ERROR, RESPONSE, Buffer, encode_frame, size_bytes
from memq.core.wire.messages import REQUESTS, ErrorAnswer, HandshakeAnswer, Struct
from memq.errors import (
    ClosedError,
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    NotHostedError,
    ProtocolError,
    UnavailableError,
    from_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_IN_FLIGHT = 32_768
"""Unanswered requests of one connection: enough for 160,000 writes a second at 200 ms latency."""

HANDSHAKE_MAX_HEADER_BYTES = 4 << 10
"""Longest header of a Handshake, which has no body; a signed token takes 1 to 2 KiB."""

SERVER_MAX_HEADER_BYTES = 64 << 10
"""Longest header of a request, unless the broker gives another limit."""

SERVER_MAX_BODY_BYTES = 64 << 20
"""Longest body of a request, unless the broker gives another limit."""

CLIENT_MAX_HEADER_BYTES = 8 << 20
"""Longest header of an answer."""

CLIENT_MAX_BODY_BYTES = 256 << 20
"""Longest body of an answer."""

MAX_ERROR_CHARS = 2_000
"""Longest text of an error; longer ones are cut."""

HANDSHAKE_CODE = 1
"""Type code of the handshake."""

GOODBYE = 0
"""Type code and correlation id of a goodbye."""


class ConnectionState(enum.Enum):
    """Where a connection is."""

    NEW = "new"
    OPENING = "waiting for the answer to its handshake"
    OPEN = "open"
    CLOSED = "closed"


class Step(enum.Enum):
    """What happens to a connection."""

    HANDSHAKE = "a handshake"
    WELCOME = "an answer to a handshake"
    REQUEST = "a request"
    ANSWER = "an answer"


Moves: TypeAlias = dict[tuple[ConnectionState, Step], ConnectionState]

SERVER_MOVES: Moves = {
    (ConnectionState.NEW, Step.HANDSHAKE): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.REQUEST): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.ANSWER): ConnectionState.OPEN,
}
CLIENT_MOVES: Moves = {
    (ConnectionState.NEW, Step.HANDSHAKE): ConnectionState.OPENING,
    (ConnectionState.OPENING, Step.WELCOME): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.REQUEST): ConnectionState.OPEN,
    (ConnectionState.OPEN, Step.ANSWER): ConnectionState.OPEN,
}


def move(moves: Moves, state: ConnectionState, step: Step) -> ConnectionState:
    """The state after a step.

    Raises:
        ClosedError: the connection has ended.
        ProtocolError: the step is not allowed in this state.
    """
    if state is ConnectionState.CLOSED:
        raise ClosedError(f"{step.value} on a connection that has ended; open another")
    if (state, step) not in moves:
        raise ProtocolError(f"{step.value} on a connection that is {state.value}")
    return moves[state, step]


class Route:
    """One line of `REQUESTS`, with its decoders made once."""

    __slots__ = ("answer_type", "code", "decode_answer", "decode_request", "name")

    def __init__(self, code: int, request: type[Struct], answer: type[Struct]) -> None:
        self.code = code
        self.name = request.__name__
        self.answer_type = answer
        self.decode_request: Callable[[bytes], Struct] = msgspec.msgpack.Decoder(request).decode
        self.decode_answer: Callable[[bytes], Struct] = msgspec.msgpack.Decoder(answer).decode


ROUTES = {code: Route(code, *pair) for code, pair in REQUESTS.items() if code != HANDSHAKE_CODE}
"""The requests of an open connection, by type code."""

_encode = msgspec.msgpack.Encoder().encode
_decode_error = msgspec.msgpack.Decoder(ErrorAnswer).decode


def encode_header(header: Struct) -> bytes:
    """The msgpack of a header.

    Raises:
        InvalidRequestError: a field has a value that msgpack cannot carry: an integer of more than
            64 bits, a text with lone surrogates, another type.
    """
    try:
        return _encode(header)
    except (ValueError, OverflowError, TypeError) as exc:
        raise InvalidRequestError(f"{type(header).__name__} cannot be sent: {exc}") from exc


def encode_error(code: int, correlation_id: int, error: Exception) -> list[Buffer]:
    """The buffers of an error answer; what is not a `MemqError` is told as `internal`."""
    if not isinstance(error, MemqError):
        error = MemqError(f"{type(error).__name__}: {error}")
    # A text may quote a file name or input that is no UTF-8.
    text = str(error)[:MAX_ERROR_CHARS].encode(errors="backslashreplace").decode()
    header = ErrorAnswer(
        code=error.code,
        message=text,
        retriable=error.retriable,
        address=error.address if isinstance(error, NotHostedError) else "",
    )
    return encode_frame(code, correlation_id, encode_header(header), flags=RESPONSE | ERROR)


def decode_error(header: bytes) -> MemqError:
    """The error that an error answer tells.

    A code that this side does not know becomes the root, or `UnavailableError` when the peer says
    that it is retriable.

    Raises:
        one of UNDECODABLE: it is not an `ErrorAnswer`.
    """
    answer = _decode_error(header)
    error = from_code(answer.code, answer.message, answer.address)
    if answer.retriable and not error.retriable:
        return UnavailableError(str(error))
    return error


def check_size(header: bytes, body: Buffer, max_header_bytes: int, max_body_bytes: int) -> None:
    """Refuse what the peer would refuse.

    Raises:
        MessageTooLargeError: header or body exceed their limit.
    """
    body_bytes = size_bytes(body) if body else 0
    if len(header) > max_header_bytes or body_bytes > max_body_bytes:
        raise MessageTooLargeError(
            f"a header of {len(header)} and a body of {body_bytes} bytes; the limits of the "
            f"connection are {max_header_bytes} and {max_body_bytes}: send or ask for less at a "
            "time"
        )


# -- events: what a connection tells its caller about the frames it received -----------------


class HandshakeReceived(msgspec.Struct):
    """Server: the client is welcome. Send the buffers; then the reader may take bodies.

    Attributes:
        buffers_to_send: the answer.
        client: how the client names itself, for logs.
        zone: where it runs; empty when it does not say.
    """

    buffers_to_send: list[Buffer]
    client: str
    zone: str


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
