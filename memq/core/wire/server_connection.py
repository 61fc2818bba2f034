"""The broker's end of a connection; the rules stand in `connection`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.wire.connection import (
    CLIENT_MAX_BODY_BYTES,
    CLIENT_MAX_HEADER_BYTES,
    GOODBYE,
    HANDSHAKE_CODE,
    MAX_IN_FLIGHT,
    ROUTES,
    SERVER_MAX_BODY_BYTES,
    SERVER_MAX_HEADER_BYTES,
    SERVER_MOVES,
    ConnectionState,
    HandshakeReceived,
    Refused,
    Request,
    Route,
    ServerEvent,
    Step,
    check_size,
    encode_error,
    encode_header,
    move,
)
from memq.core.wire.frame import ONEWAY, RESPONSE, Buffer, Frame, encode_frame
from memq.core.wire.messages import PROTOCOL_VERSION, Handshake, HandshakeAnswer, Struct, Write
from memq.errors import (
    InvalidRequestError,
    MemqError,
    ProtocolError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_decode_handshake: Callable[[bytes], Handshake] = msgspec.msgpack.Decoder(Handshake).decode


class ServerConnection:
    """The broker's end of one connection.

    Args:
        cluster_id: told in the handshake.
        broker_id: told in the handshake.
        authorize: says whether a client with this token is welcome.
        max_header_bytes: longest header of a request, told in the handshake.
        max_body_bytes: longest body of a request, told in the handshake.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        broker_id: str,
        authorize: Callable[[str], bool],
        max_header_bytes: int = SERVER_MAX_HEADER_BYTES,
        max_body_bytes: int = SERVER_MAX_BODY_BYTES,
    ) -> None:
        self._authorize = authorize
        self._welcome = HandshakeAnswer(
            version=PROTOCOL_VERSION,
            cluster_id=cluster_id,
            broker_id=broker_id,
            max_header_bytes=max_header_bytes,
            max_body_bytes=max_body_bytes,
        )
        self._in_flight: dict[int, Route] = {}
        self._client = ""
        self._state = ConnectionState.NEW

    def __repr__(self) -> str:
        return (
            f"<ServerConnection {self._state.value}, client {self._client!r}, "
            f"{len(self._in_flight)} in flight>"
        )

    @property
    def in_flight(self) -> int:
        """Requests that await their answer."""
        return len(self._in_flight)

    def receive(self, frame: Frame) -> ServerEvent:
        """What a frame from the client means.

        Raises:
            ProtocolError: the client broke rule 1 or 2. After this or any other error, send
                `goodbye(error)` and close.
            UnsupportedVersionError: client and broker have no version in common.
            UnauthorizedError: the token is not welcome.
            ClosedError: the connection has ended.
        """
        try:
            if frame.type == HANDSHAKE_CODE:
                return self._handshake(frame)
            if self._state is not ConnectionState.OPEN:
                move(SERVER_MOVES, self._state, Step.REQUEST)
            return self._request(frame)
        except MemqError:
            self._state = ConnectionState.CLOSED
            raise

    def answer(
        self,
        correlation_id: int,
        header: Struct,
        body: Buffer = b"",
        body_crc: int | None = None,
    ) -> list[Buffer]:
        """The buffers that answer a request; its correlation id is free again.

        No buffers when the connection has ended: who finishes later need not know.

        Args:
            correlation_id: of the request.
            header: the struct that `REQUESTS` pairs with the request.
            body: raw bytes; sent as they are, not copied.
            body_crc: CRC32C of the body where it is known; computed when None.

        Raises:
            ProtocolError: no request of that id awaits this answer.
            MessageTooLargeError: no client would accept it; the request still awaits an answer.
        """
        if self._state is ConnectionState.CLOSED:
            return []
        route = self._in_flight.get(correlation_id)
        if route is None or type(header) is not route.answer_type:
            raise ProtocolError(
                f"{type(header).__name__} does not answer request {correlation_id}, which is "
                f"{route.name if route else 'not in flight'}"
            )
        encoded = encode_header(header)
        check_size(encoded, body, CLIENT_MAX_HEADER_BYTES, CLIENT_MAX_BODY_BYTES)
        del self._in_flight[correlation_id]
        return encode_frame(
            route.code, correlation_id, encoded, body, flags=RESPONSE, body_crc=body_crc
        )

    def fail(self, correlation_id: int, error: Exception) -> list[Buffer]:
        """The buffers that tell a request's failure; its correlation id is free again.

        An error that is not a `MemqError` is told as `internal`, with its type and text. No buffers
        when the connection has ended.

        Raises:
            ProtocolError: no request of that id awaits an answer.
        """
        if self._state is ConnectionState.CLOSED:
            return []
        route = self._in_flight.pop(correlation_id, None)
        if route is None:
            raise ProtocolError(f"request {correlation_id} is not in flight; it cannot fail")
        return encode_error(route.code, correlation_id, error)

    def goodbye(self, error: Exception) -> list[Buffer]:
        """The last buffers of the connection: they tell the client why it ends."""
        self._state = ConnectionState.CLOSED
        self._in_flight.clear()
        return encode_error(GOODBYE, GOODBYE, error)

    def _handshake(self, frame: Frame) -> HandshakeReceived:
        opened = move(SERVER_MOVES, self._state, Step.HANDSHAKE)
        if frame.flags or not frame.correlation_id:
            raise _misnumbered(frame)
        try:
            asked = _decode_handshake(frame.header)
        except UNDECODABLE as exc:
            raise ProtocolError(f"header of Handshake does not fit: {exc}") from exc
        if PROTOCOL_VERSION not in asked.versions:
            raise UnsupportedVersionError(
                f"the client speaks protocol versions {asked.versions[:20]}, the broker "
                f"{[PROTOCOL_VERSION]}: upgrade the older one"
            )
        if not self._authorize(asked.token):
            raise UnauthorizedError(
                f"the broker refused the token of client {asked.client!r}: set `token` (--token or "
                "MEMQ_TOKEN for commands)"
            )
        self._client = asked.client
        self._state = opened
        encoded = encode_header(self._welcome)
        return HandshakeReceived(
            encode_frame(frame.type, frame.correlation_id, encoded, flags=RESPONSE),
            asked.client,
            asked.zone,
        )

    def _request(self, frame: Frame) -> Request | Refused:
        flags, correlation_id = frame.flags, frame.correlation_id
        if (flags and flags != ONEWAY) or not correlation_id or correlation_id in self._in_flight:
            raise _misnumbered(frame)
        route = ROUTES.get(frame.type)
        if route is None:
            return _refuse(
                frame, InvalidRequestError(f"unknown request type {frame.type}: upgrade the broker")
            )
        try:
            header = route.decode_request(frame.header)
        except UNDECODABLE as exc:
            return _refuse(
                frame, InvalidRequestError(f"header of {route.name} does not fit: {exc}")
            )
        if flags:
            if type(header) is not Write or header.acks != 0:
                raise ProtocolError(f"{route.name} is one way; only a Write with acks=0 may be")
        elif len(self._in_flight) < MAX_IN_FLIGHT:
            self._in_flight[correlation_id] = route
        else:
            return _refuse(
                frame,
                UnavailableError(
                    f"{MAX_IN_FLIGHT} requests of this connection are in flight: await answers"
                ),
            )
        return Request(correlation_id, header, frame.body, frame.body_crc, flags == ONEWAY)


def _refuse(frame: Frame, error: MemqError) -> Refused:
    if frame.flags & ONEWAY:
        return Refused([], error)
    return Refused(encode_error(frame.type, frame.correlation_id, error), error)


def _misnumbered(frame: Frame) -> ProtocolError:
    return ProtocolError(
        f"request of type {frame.type} with flags {frame.flags:#x} and correlation id "
        f"{frame.correlation_id}: only ONEWAY ({ONEWAY}) may be set, not on a handshake, and the "
        "id must be neither 0 nor in flight"
    )
