from contextlib import nullcontext

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memq import errors
from memq.core.features import MAX_LEVEL, MIN_LEVEL
from memq.core.wire import connection
from memq.core.wire.connection import (
    AUTHENTICATE_CODE,
    CLIENT_MAX_HEADER_BYTES,
    HANDSHAKE_MAX_HEADER_BYTES,
    MAX_ERROR_CHARS,
    Answer,
    ClientConnection,
    Failure,
    LateAnswer,
    Refused,
)
from memq.core.wire.frame import ERROR, ONEWAY, RESPONSE, encode_frame
from memq.core.wire.messages import (
    MAX_LISTED,
    REQUESTS,
    AlterTopic,
    Authenticate,
    AuthenticateAnswer,
    CommitOffsets,
    DeleteTopic,
    Done,
    ErrorAnswer,
    FetchLag,
    FetchNotifications,
    GroupHeartbeat,
    Handshake,
    HandshakeAnswer,
    Metadata,
    MetadataAnswer,
    PartitionOffset,
    WriteAnswer,
)
from memq.errors import (
    ClosedError,
    InvalidRequestError,
    MemqError,
    MessageTooLargeError,
    NotHostedError,
    ProtocolError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedVersionError,
)
from tests.unit.core.wire.builders import (
    ConnectionPair,
    bodies,
    client_reader,
    new_server,
    structs,
    write,
)
from tests.unit.core.wire.builders import server_reader as reader

OPEN_REQUESTS = {code: pair for code, pair in REQUESTS.items() if code != 1}
ALL_ERRORS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, MemqError)
]
POSITION = PartitionOffset(0, 0)
encode = msgspec.msgpack.encode


def frame(code, correlation_id, header=b"\x80", body=b"", flags=0):
    """A frame as the reader of either side gives it."""
    [made] = client_reader().feed(
        b"".join(encode_frame(code, correlation_id, header, body, flags=flags))
    )
    return made


# -- the handshake --------------------------------------------------------------------------


def test_handshake_opens_both_ends():
    """The handshake tells the client who answers, which limits hold and which levels are known."""
    pair = ConnectionPair(max_header_bytes=5_000, max_body_bytes=6_000)

    assert pair.limits == HandshakeAnswer(
        version=2,
        cluster_id="c",
        broker_id="b",
        max_header_bytes=5_000,
        max_body_bytes=6_000,
        principal="User:anyone",
        min_level=MIN_LEVEL,
        max_level=MAX_LEVEL,
    )
    assert repr(pair.client) == "<ClientConnection open, 0 pending, 0 forgotten>"
    assert repr(pair.server) == "<ServerConnection open, client 'tester', 0 in flight>"


def test_no_common_version():
    """A client that speaks no version of the broker is told both lists."""
    server = new_server()
    with pytest.raises(UnsupportedVersionError, match=r"versions \[7, 8\], the broker \[2\]") as no:
        server.receive(frame(1, 1, encode(Handshake(versions=[7, 8]))))

    client = ClientConnection("tester")
    client.open()
    with pytest.raises(UnsupportedVersionError, match=r"\[7, 8\].*\[2\]"):
        client.receive(reader().feed(b"".join(server.goodbye(no.value)))[0])


@pytest.mark.parametrize(("token", "welcome"), [("right", True), ("wrong", False)])
def test_token(token, welcome):
    """The token decides who is welcome, and is shown nowhere."""

    def admit(asked: Handshake) -> tuple[str, int]:
        if asked.token != "right":  # noqa: S105 - an example
            raise UnauthorizedError(f"not {asked.client!r}")
        return "User:me", 0

    client, server = ClientConnection("me", token), new_server(admit)
    [opening] = reader().feed(b"".join(client.open()))
    with nullcontext() if welcome else pytest.raises(UnauthorizedError, match="'me'") as refusal:
        server.receive(opening)
    assert token not in f"{client!r} {server!r} {refusal}"


@pytest.mark.parametrize("code", [code for code in OPEN_REQUESTS if code != AUTHENTICATE_CODE])
def test_nothing_is_served_before_the_client_is_known(code):
    """A server that asks who a client is takes nothing but Authenticate, and neither side errs."""
    pair = ConnectionPair(admit=lambda _: None, mechanisms=["M"])
    assert (pair.limits.mechanisms, pair.limits.principal) == (["M"], "")
    request = REQUESTS[code].request
    nothing = {each.name: None for each in msgspec.structs.fields(request) if each.required}
    with pytest.raises(ProtocolError, match="not authenticated yet"):
        pair.client.request(request(**nothing))
    [frame] = pair.to_server.feed(b"".join(encode_frame(code, 7, b"\x80")))
    with pytest.raises(ProtocolError, match="not authenticated yet"):
        pair.server.receive(frame)
    with pytest.raises(ClosedError):
        pair.server.receive(frame)


def test_a_client_that_has_authenticated_may_ask():
    """After Authenticate both sides go on as if there had been nothing to ask."""
    pair = ConnectionPair(admit=lambda _: None, mechanisms=["M"])
    step, request = pair.request(Authenticate(mechanism="M", data=b"me"))
    pair.server.authenticated()
    answer = AuthenticateAnswer(data=b"you", principal="User:me")
    [heard] = pair.reply(pair.server.answer(request.correlation_id, answer))
    assert (heard.correlation_id, heard.header) == (step, answer)
    pair.client.authenticated()
    _, request = pair.request(Metadata())
    assert request.header == Metadata()


def test_token_that_is_too_long():
    """A handshake that the broker would not read fails at the client."""
    client = ClientConnection("me", "x" * HANDSHAKE_MAX_HEADER_BYTES)
    with pytest.raises(MessageTooLargeError, match="16384"):
        client.open()
    assert repr(client).startswith("<ClientConnection new")


# -- requests and answers -------------------------------------------------------------------


@pytest.mark.parametrize("code", OPEN_REQUESTS)
@given(data=st.data())
@settings(max_examples=5)
def test_every_request_and_answer_travels(code, data):
    """Every request and its answer, with any values and body, arrive as they were sent."""
    request_type, answer_type, _ = REQUESTS[code]
    header, answer = data.draw(structs(request_type)), data.draw(structs(answer_type))
    body, answer_body = data.draw(bodies()), data.draw(bodies())
    pair = ConnectionPair()

    correlation_id, request = pair.request(header, body)
    assert type(request.header) is request_type
    assert (request.header, bytes(request.body), request.oneway) == (header, body, False)

    [heard] = pair.reply(pair.server.answer(request.correlation_id, answer, answer_body))
    assert isinstance(heard, Answer)
    assert (heard.correlation_id, heard.header, heard.body) == (correlation_id, answer, answer_body)


@pytest.mark.parametrize(
    ("error", "told"),
    [(error("what was wrong"), (error, "what was wrong", "")) for error in ALL_ERRORS]
    + [
        (NotHostedError("no", "h:1"), (NotHostedError, "no", "h:1")),
        (KeyError("x"), (MemqError, "KeyError: 'x'", "")),
        (
            InvalidRequestError("\udcff" + "x" * 10_000),
            (InvalidRequestError, r"\udcff" + "x" * (MAX_ERROR_CHARS - 6), ""),
        ),
    ],
)
def test_every_error_travels(error, told):
    """It arrives as its own type, with its text and where to go instead; the connection lives.

    The type of one that is not ours stands in the text, which is cut, and mended if no UTF-8.
    """
    pair = ConnectionPair()
    correlation_id, request = pair.request(Metadata())
    [heard] = pair.reply(pair.server.fail(request.correlation_id, error))
    assert isinstance(heard, Failure)
    assert heard.correlation_id == correlation_id
    assert (type(heard.error), str(heard.error), getattr(heard.error, "address", "")) == told
    pair.request(Metadata())


@pytest.mark.parametrize(("retriable", "expected"), [(True, UnavailableError), (False, MemqError)])
def test_error_of_a_newer_broker(retriable, expected):
    """A code that the client does not know keeps its text, and whether to try again."""
    pair = ConnectionPair()
    correlation_id, _ = pair.request(Metadata())
    answer = encode(ErrorAnswer(code="new", message="text", retriable=retriable))

    heard = pair.client.receive(frame(2, correlation_id, answer, flags=RESPONSE | ERROR))

    assert (type(heard.error), str(heard.error)) == (expected, "new: text")


@pytest.mark.parametrize(
    "listing",
    [
        lambda some: Metadata(topics=[""] * some),
        lambda some: AlterTopic(topic="t", options={str(n): "" for n in range(some)}),
        lambda some: FetchNotifications(topic="t", positions=[POSITION] * some),
        lambda some: FetchLag(topic="t", positions=[POSITION] * some),
        lambda some: CommitOffsets(topic="t", group="", member_id="", offsets=[POSITION] * some),
        lambda some: GroupHeartbeat(
            topic="t", group="", member_id="", sequence=0, owned=[0] * some
        ),
    ],
)
def test_a_list_in_a_request_is_bounded(listing):
    """Decoded it takes many times its bytes, and 128 requests of a connection may wait."""
    pair = ConnectionPair()
    pair.request(listing(MAX_LISTED))
    _, buffers = pair.client.request(listing(MAX_LISTED + 1))
    [received] = reader().feed(b"".join(buffers))
    refused = pair.server.receive(received)
    assert isinstance(refused, Refused)
    assert f"of length <= {MAX_LISTED}" in str(refused.error)


def test_the_text_of_an_error_is_cut_by_who_is_told_it():
    """A broker could fill the log of a client with it."""
    pair = ConnectionPair()
    correlation_id, _ = pair.request(Metadata())
    answer = encode(ErrorAnswer(code="protocol", message="x" * (1 << 20)))

    heard = pair.client.receive(frame(2, correlation_id, answer, flags=RESPONSE | ERROR))

    assert str(heard.error) == "x" * MAX_ERROR_CHARS


def test_fields_of_a_newer_peer_are_skipped():
    """A field that the receiver does not know is no error."""
    pair = ConnectionPair()
    event = pair.server.receive(frame(5, 9, encode({"topic": "t", "new": [1, {"x": 2}]})))

    assert event.header == DeleteTopic(topic="t")


def test_one_way():
    """A one-way Write is never in flight and takes no answer."""
    pair = ConnectionPair()
    correlation_id, request = pair.request(write(acks=0), b"body", oneway=True)

    assert request.oneway
    assert pair.client.in_flight == pair.server.in_flight == 0
    with pytest.raises(ProtocolError, match="not in flight"):
        pair.server.answer(correlation_id, WriteAnswer())
    with pytest.raises(ProtocolError, match="not in flight"):
        pair.server.fail(correlation_id, UnavailableError("no"))


# -- what fails a request -------------------------------------------------------------------

DEEP = b"\x81\xa1x" + b"\x91" * 5_000 + b"\xc0"


@pytest.mark.parametrize(
    ("code", "header", "text"),
    [
        (99, b"\x80", "unknown request type 99"),
        (0, b"\x80", "unknown request type 0"),
        (2, b"", "Metadata does not fit: Input data was truncated"),
        (2, b"\xc1", "does not fit"),
        (2, b"\x90", "Expected `object`, got `array`"),
        (2, encode({"topics": [1]}), r"Expected `str`, got `int` - at `\$.topics\[0\]`"),
        (2, b"\x81\xa6topics\x91\xa1\xff", "utf-8"),
        (2, b"\x81\xa6topics\xdd\xff\xff\xff\xff", "of length <= 4096"),
        (2, b"\xdf\xff\xff\xff\xff", "truncated"),
        (2, b"\x80\x80", "trailing"),
        (2, DEEP, "recursion"),
        (5, b"\x80", "missing required field `topic`"),
        (10, encode({"topic": "t"}), "missing required field"),
        (30, encode({"group": "g", "topic": "t", "member_id": "", "offsets": [[1]]}), "length 2"),
    ],
)
def test_bad_header_fails_its_request_alone(code, header, text):
    """What is wrong inside a good frame is answered with an error; the next request works."""
    pair = ConnectionPair()
    event = pair.server.receive(frame(code, 77, header))

    assert isinstance(event, Refused)
    assert type(event.error) is InvalidRequestError
    with pytest.raises(InvalidRequestError, match=text):
        raise event.error
    [answer] = client_reader().feed(b"".join(event.buffers_to_send))
    assert (answer.type, answer.correlation_id, answer.flags) == (code, 77, RESPONSE | ERROR)
    assert pair.server.in_flight == 0
    pair.request(Metadata())


def test_bad_one_way_request_is_dropped():
    """Nobody wants to hear why a one-way request failed; it is told for the logs alone."""
    event = ConnectionPair().server.receive(frame(10, 77, b"\x80", flags=ONEWAY))

    assert event.buffers_to_send == []
    assert "Write does not fit" in str(event.error)


def test_too_many_in_flight(monkeypatch):
    """The request over the limit fails on its own, at the client or at the server."""
    monkeypatch.setattr(connection, "MAX_IN_FLIGHT", 3)
    pair = ConnectionPair()
    _, request = [pair.request(Metadata()) for _ in range(3)][-1]
    with pytest.raises(UnavailableError, match="3 requests are in flight"):
        pair.client.request(Metadata())
    pair.request(write(acks=0), oneway=True)

    event = pair.server.receive(frame(2, 99))
    assert isinstance(event, Refused)
    assert type(event.error) is UnavailableError
    assert pair.server.in_flight == 3

    pair.reply(pair.server.fail(request.correlation_id, UnavailableError("later")))
    pair.request(Metadata())


# -- what ends the connection ---------------------------------------------------------------


HELLO = encode(Handshake(versions=[1]))
NUMBER = "the id must be neither 0 nor in flight"
ONE_WAY = "only a Write with acks=0"


@pytest.mark.parametrize(
    ("opened", "options", "text"),
    [
        (False, {"code": 1, "header": HELLO, "flags": ONEWAY}, "not on a handshake"),
        (False, {"code": 1, "header": HELLO, "flags": RESPONSE}, "not on a handshake"),
        (False, {"code": 1, "header": HELLO, "correlation_id": 0}, "not on a handshake"),
        (False, {}, "a request on a connection that is new"),
        (True, {"code": 1, "header": HELLO}, "a handshake on a connection that is open"),
        (True, {"flags": RESPONSE}, NUMBER),
        (True, {"flags": ERROR}, NUMBER),
        (True, {"flags": RESPONSE | ONEWAY}, NUMBER),
        (True, {"correlation_id": 0}, NUMBER),
        (True, {"correlation_id": 2}, NUMBER),
        (True, {"flags": ONEWAY}, ONE_WAY),
        (True, {"code": 10, "header": encode(write(acks=1)), "flags": ONEWAY}, ONE_WAY),
    ],
)
def test_request_out_of_form(opened, options, text):
    """What comes at the wrong time, or makes the pairing of answers doubtful, ends a server."""
    pair = ConnectionPair(opened=opened)
    if opened:
        assert pair.request(Metadata())[0] == 2
    with pytest.raises(ProtocolError, match=text):
        pair.server.receive(frame(**{"code": 2, "correlation_id": 77} | options))
    with pytest.raises(ClosedError):
        pair.server.receive(frame(1, 78, HELLO))


def test_goodbye_ends_both_ends():
    """It raises the broker's error at the client, and nothing goes on after it.

    A handler that finishes after it has nothing to send, and no error.
    """
    pair = ConnectionPair()
    first, second = (pair.request(Metadata())[0] for _ in range(2))
    with pytest.raises(UnavailableError, match="draining"):
        pair.reply(pair.server.goodbye(UnavailableError("draining")))
    with pytest.raises(ClosedError):
        pair.client.receive(frame(2, first, flags=RESPONSE))
    assert pair.server.fail(first, UnavailableError("x")) == []
    assert pair.server.answer(second, Done()) == []
    assert pair.server.in_flight == 0


WELCOME = {"code": 1, "correlation_id": 1, "header": b"\xc0"}


@pytest.mark.parametrize(
    ("opened", "options", "text"),
    [
        (False, WELCOME | {"flags": 0}, "do not answer a handshake"),
        (False, WELCOME | {"code": 2}, "do not answer a handshake"),
        (False, WELCOME | {"correlation_id": 2}, "do not answer a handshake"),
        (False, WELCOME, "does not fit"),
        (True, {"flags": 0}, "no answer"),
        (True, {"flags": ERROR}, "no answer"),
        (True, {"flags": RESPONSE | ONEWAY}, "no answer"),
        (True, {"correlation_id": 3}, "request 3 of type 2, which is not in flight"),
        (True, {"correlation_id": 1}, "not in flight"),
        (True, {"correlation_id": 0, "code": 0}, "not in flight"),
        (True, {"code": 5}, "not in flight"),
        (True, {"flags": RESPONSE | ERROR, "header": b"\xc0"}, "an error answer does not fit"),
    ],
)
def test_answer_out_of_form(opened, options, text):
    """An answer that cannot be paired with its request, or with the handshake, ends a client."""
    pair = ConnectionPair(opened=opened)
    if opened:
        assert pair.request(Metadata())[0] == 2
    else:
        pair.client.open()
    with pytest.raises(ProtocolError, match=text):
        pair.client.receive(frame(**{"code": 2, "correlation_id": 2, "flags": RESPONSE} | options))
    with pytest.raises(ClosedError):
        pair.client.request(Metadata())


def test_answer_that_does_not_fit_fails_its_request_alone():
    """A header that the client cannot read fails one request."""
    pair = ConnectionPair()
    correlation_id, _ = pair.request(Metadata())

    heard = pair.client.receive(frame(2, correlation_id, b"\x80", flags=RESPONSE))

    assert isinstance(heard, Failure)
    assert type(heard.error) is ProtocolError
    assert "answer to Metadata does not fit" in str(heard.error)
    pair.request(Metadata())


# -- sizes and mistakes of the caller -------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "body", "error", "text"),
    [
        (write(), bytes(1_001), MessageTooLargeError, r"body of 1001 bytes; .* 500 and 1000"),
        (write(), memoryview(bytes(1_004)).cast("I"), MessageTooLargeError, "of 1004 bytes"),
        (write(topic="x" * 500), b"", MessageTooLargeError, "header of"),
        (Done(), b"", InvalidRequestError, "is not a request"),
        (Handshake(versions=[1]), b"", InvalidRequestError, "is not a request"),
        (DeleteTopic(topic="\udc80"), b"", InvalidRequestError, "DeleteTopic cannot be sent"),
        (DeleteTopic(topic=1 << 70), b"", InvalidRequestError, "DeleteTopic cannot be sent"),
        (DeleteTopic(topic=object()), b"", InvalidRequestError, "DeleteTopic cannot be sent"),
    ],
)
def test_what_the_broker_would_refuse_fails_at_the_client(header, body, error, text):
    """Its limits, what is no request and what msgpack cannot carry; the connection lives."""
    pair = ConnectionPair(max_header_bytes=500, max_body_bytes=1_000)
    with pytest.raises(error, match=text):
        pair.client.request(header, body)
    assert pair.client.in_flight == 0
    pair.request(write(topic="x" * 100), bytes(1_000))


def test_answer_that_no_client_would_take():
    """A server does not send what ends the client's connection; it can still fail the request."""
    pair = ConnectionPair()
    _, request = pair.request(Metadata())
    huge = MetadataAnswer(cluster_id="c" * CLIENT_MAX_HEADER_BYTES, brokers=[], topics=[])

    with pytest.raises(MessageTooLargeError, match="ask for less") as caught:
        pair.server.answer(request.correlation_id, huge)
    [heard] = pair.reply(pair.server.fail(request.correlation_id, caught.value))
    assert type(heard.error) is MessageTooLargeError


def test_wrong_answer_is_noticed():
    """An answer of the wrong type is the caller's mistake, not sent."""
    pair = ConnectionPair()
    _, request = pair.request(Metadata())
    with pytest.raises(ProtocolError, match="Done does not answer request 2, which is Metadata"):
        pair.server.answer(request.correlation_id, Done())
    with pytest.raises(ProtocolError, match="not in flight"):
        pair.server.answer(999, Done())


# -- everything at once ---------------------------------------------------------------------


class Conversation(RuleBasedStateMachine):
    """A client and a server against a model of what is in flight."""

    def __init__(self):
        super().__init__()
        self.pair = ConnectionPair()
        self.asked: dict[int, bool] = {}  # in flight: is it forgotten?

    def some(self, data):
        return data.draw(st.sampled_from(sorted(self.asked)))

    @rule(oneway=st.booleans(), body=bodies())
    def send(self, oneway, body):
        """Send a Write."""
        header = write(acks=0 if oneway else -1)
        correlation_id, request = self.pair.request(header, body, oneway=oneway)
        assert (request.correlation_id, request.oneway) == (correlation_id, oneway)
        assert request.body == body
        if not oneway:
            self.asked[correlation_id] = False

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), offset=st.none() | st.integers(0, 9))
    def settle(self, data, offset):
        """Answer or fail any request."""
        correlation_id = self.some(data)
        if offset is None:
            buffers = self.pair.server.fail(correlation_id, UnavailableError("no"))
        else:
            buffers = self.pair.server.answer(correlation_id, WriteAnswer(offset=offset))
        [heard] = self.pair.reply(buffers)
        if self.asked.pop(correlation_id):
            assert heard == LateAnswer(correlation_id)
        elif offset is None:
            assert (heard.correlation_id, type(heard.error)) == (correlation_id, UnavailableError)
        else:
            assert heard == Answer(correlation_id, WriteAnswer(offset=offset), b"", 0)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def forget(self, data):
        """Give up on any request."""
        correlation_id = self.some(data)
        self.pair.client.forget(correlation_id)
        self.asked[correlation_id] = True

    @rule(code=st.sampled_from([2, 10, 99]))
    def spoil(self, code):
        """Send something that fails alone."""
        heard = self.pair.server.receive(frame(code, 1_000_000, b"\xc0"))
        assert isinstance(heard, Refused)

    @invariant()
    def agree(self):
        """Both ends agree with the model on what is in flight."""
        assert self.pair.client.in_flight == self.pair.server.in_flight == len(self.asked)
        forgotten = sum(self.asked.values())
        assert repr(self.pair.client) == (
            f"<ClientConnection open, {len(self.asked) - forgotten} pending, {forgotten} forgotten>"
        )


test_conversation = Conversation.TestCase
test_conversation.settings = settings(stateful_step_count=30)
