"""The client's end of a connection; the rules stand in `connection`."""

from __future__ import annotations

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.wire.connection import (
    CLIENT_MOVES,
    GOODBYE,
    HANDSHAKE_CODE,
    HANDSHAKE_MAX_HEADER_BYTES,
    MAX_IN_FLIGHT,
    ROUTES,
    Answer,
    ClientEvent,
    ConnectionState,
    Failure,
    HandshakeDone,
    LateAnswer,
    Route,
    Step,
    check_size,
    decode_error,
    encode_header,
    move,
)
from memq.core.wire.frame import ERROR, ONEWAY, RESPONSE, Buffer, Frame, encode_frame
from memq.core.wire.messages import (
    PROTOCOL_VERSION,
    REQUESTS,
    Handshake,
    HandshakeAnswer,
    Struct,
)
from memq.errors import (
    InvalidRequestError,
    MemqError,
    ProtocolError,
    UnavailableError,
    UnsupportedVersionError,
)

_HANDSHAKE_ID = 1
_ANSWER_FLAGS = (RESPONSE, RESPONSE | ERROR)
_ROUTE_OF = {REQUESTS[code][0]: route for code, route in ROUTES.items()}
_decode_welcome = msgspec.msgpack.Decoder(HandshakeAnswer).decode


class ClientConnection:
    """The client's end of one connection.

    Args:
        client: names the client in the broker's logs.
        token: credential; empty where the broker asks for none.
        zone: where the client runs; empty when it is not said.
    """

    def __init__(self, client: str, token: str = "", zone: str = "") -> None:
        self._handshake = Handshake(
            versions=[PROTOCOL_VERSION], client=client, token=token, zone=zone
        )
        self._max_header_bytes = 0
        self._max_body_bytes = 0
        self._pending: dict[int, Route] = {}
        self._forgotten: set[int] = set()
        self._next_id = _HANDSHAKE_ID + 1
        self._state = ConnectionState.NEW

    def __repr__(self) -> str:
        return (
            f"<ClientConnection {self._state.value}, {len(self._pending)} pending, "
            f"{len(self._forgotten)} forgotten>"
        )

    @property
    def in_flight(self) -> int:
        """Requests that the broker has not answered yet, the forgotten ones included."""
        return len(self._pending) + len(self._forgotten)

    def open(self) -> list[Buffer]:
        """The buffers of the handshake request, the first to be sent.

        Raises:
            ProtocolError: it has been called before.
            ClosedError: the connection has ended.
            MessageTooLargeError: the token or the name is too long for a handshake.
        """
        opening = move(CLIENT_MOVES, self._state, Step.HANDSHAKE)
        encoded = encode_header(self._handshake)
        check_size(encoded, b"", HANDSHAKE_MAX_HEADER_BYTES, 0)
        self._state = opening
        return encode_frame(HANDSHAKE_CODE, _HANDSHAKE_ID, encoded)

    def request(
        self,
        header: Struct,
        body: Buffer = b"",
        body_crc: int | None = None,
        *,
        oneway: bool = False,
    ) -> tuple[int, list[Buffer]]:
        """The correlation id of a new request and the buffers to send.

        Args:
            header: a request of `REQUESTS`, but not the handshake.
            body: raw bytes; sent as they are, not copied.
            body_crc: CRC32C of the body where it is known; computed when None.
            oneway: no answer will come; only for a Write with acks=0.

        Raises:
            ProtocolError: the handshake is not done.
            ClosedError: the connection has ended.
            InvalidRequestError: the header is not a request.
            MessageTooLargeError: the broker would not accept it.
            UnavailableError: too many requests are in flight; await answers.
        """
        if self._state is not ConnectionState.OPEN:
            move(CLIENT_MOVES, self._state, Step.REQUEST)
        route = _ROUTE_OF.get(type(header))
        if route is None:
            raise InvalidRequestError(f"{type(header).__name__} is not a request")
        encoded = encode_header(header)
        check_size(encoded, body, self._max_header_bytes, self._max_body_bytes)
        correlation_id = self._next_id
        flags = ONEWAY
        if not oneway:
            flags = 0
            if self.in_flight >= MAX_IN_FLIGHT:
                raise UnavailableError(f"{MAX_IN_FLIGHT} requests are in flight: await answers")
            self._pending[correlation_id] = route
        self._next_id += 1
        return correlation_id, encode_frame(
            route.code, correlation_id, encoded, body, flags=flags, body_crc=body_crc
        )

    def forget(self, correlation_id: int) -> None:
        """Give up on a request; its answer will be a `LateAnswer`. No-op when it is answered."""
        if self._pending.pop(correlation_id, None) is not None:
            self._forgotten.add(correlation_id)

    def receive(self, frame: Frame) -> ClientEvent:
        """What a frame from the broker means.

        Raises:
            MemqError: the broker refused the handshake, or said goodbye with this error.
            ProtocolError: the broker broke a rule. After any error close the connection.
            ClosedError: the connection has ended.
        """
        try:
            return (
                self._answer(frame) if self._state is ConnectionState.OPEN else self._welcome(frame)
            )
        except MemqError:
            self._state = ConnectionState.CLOSED
            raise

    def _welcome(self, frame: Frame) -> HandshakeDone:
        opened = move(CLIENT_MOVES, self._state, Step.WELCOME)
        if frame.flags == RESPONSE | ERROR:
            raise _error_of(frame)
        place = (frame.type, frame.flags, frame.correlation_id)
        if place != (HANDSHAKE_CODE, RESPONSE, _HANDSHAKE_ID):
            raise ProtocolError(f"type, flags and correlation id {place} do not answer a handshake")
        try:
            answer = _decode_welcome(frame.header)
        except UNDECODABLE as exc:
            raise ProtocolError(f"the answer to Handshake does not fit: {exc}") from exc
        if answer.version not in self._handshake.versions:
            raise UnsupportedVersionError(
                f"the broker chose protocol version {answer.version}; this client offered "
                f"{self._handshake.versions}"
            )
        self._max_header_bytes = answer.max_header_bytes
        self._max_body_bytes = answer.max_body_bytes
        self._state = opened
        return HandshakeDone(answer)

    def _answer(self, frame: Frame) -> Answer | Failure | LateAnswer:
        correlation_id = frame.correlation_id
        if frame.flags not in _ANSWER_FLAGS:
            raise ProtocolError(f"the broker sent a frame with flags {frame.flags:#x}: no answer")
        route = self._pending.pop(correlation_id, None)
        if route is None or route.code != frame.type:
            return self._unexpected(frame)
        if frame.flags & ERROR:
            return Failure(correlation_id, _error_of(frame))
        try:
            header = route.decode_answer(frame.header)
        except UNDECODABLE as exc:
            return Failure(
                correlation_id, ProtocolError(f"the answer to {route.name} does not fit: {exc}")
            )
        return Answer(correlation_id, header, frame.body, frame.body_crc)

    def _unexpected(self, frame: Frame) -> LateAnswer:
        if frame.correlation_id in self._forgotten:
            self._forgotten.remove(frame.correlation_id)
            return LateAnswer(frame.correlation_id)
        if frame.type == frame.correlation_id == GOODBYE and frame.flags & ERROR:
            raise _error_of(frame)
        raise ProtocolError(
            f"the broker answered request {frame.correlation_id} of type {frame.type}, which is "
            "not in flight"
        )


def _error_of(frame: Frame) -> MemqError:
    try:
        return decode_error(frame.header)
    except UNDECODABLE as exc:
        raise ProtocolError(f"an error answer does not fit: {exc}") from exc
