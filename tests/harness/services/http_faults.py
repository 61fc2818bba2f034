"""A proxy that makes an S3-compatible server fail as planned, request by request.

What the client sends reaches the server byte for byte, the Host header too, and so do the answers.
So a signature that a client makes for the address of the proxy is accepted by a server that goes by
the Host header. Each connection of a client has one of its own to the server, opened when it is
first needed; when the server closes one that is idle, the proxy closes the other.

A fault is a `Rule`: which requests it strikes, and one action. Rules come and go while requests are
served. For each request they are looked at in their order: a `Latency` lets the look go on, so
several add up, and the first of another kind that strikes ends it. Chance comes from a seed, the
method, and the number of the request among those of its method: it does not depend on what other
requests are under way.

    with HttpFaultProxy("127.0.0.1", server_port) as proxy:
        lost = proxy.add(Rule(LoseAnswer(), method="PUT", key=r"/batches/", after=2))
        proxy.add(Rule(Latency(lambda chance: chance.expovariate(10)), times=None))
        proxy.add(Rule(SLOW_DOWN, times=None, probability=0.05))
        store(endpoint=f"http://{proxy.address}")
        proxy.wait_struck(lost)       # the third matching PUT was stored, and its answer lost

An outage strikes everything, whatever the rules:

        proxy.outage("silent")        # connections stay open, nothing comes through
        proxy.restore()

Bodies are streamed. A request that hangs is kept in a file without a name, beyond its first MiB.
What reaches the proxy during a silent outage or a latency is handed on afterwards, even if its
client has given up meanwhile: so does a network or a server that was stuck. A client that gives up
a request that hangs takes it back.

When an answer comes before the whole request was sent, the connection ends after it: nobody knows
whether the client will send the rest.

What it does not do: TLS, upgrades to other protocols, clients that close half of a connection.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import unquote
from xml.sax.saxutils import escape

from tests.harness.services.proxy_loop import (
    CHUNK_BYTES,
    FaultProxy,
    Peer,
    PeerLeftError,
    cancel,
    connected,
    unless_left,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    Write: TypeAlias = Callable[[bytes], Awaitable[None]]

Framing = int | Literal["chunked", "until_close"]
"""How the end of a body is known; an int is its length."""

Outage = Literal["refuse", "reset", "silent"]

HEAD_END = b"\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
KEPT_IN_MEMORY_BYTES = 1 << 20  # of a request that hangs
STRUCK_TIMEOUT_S = 60.0  # of `wait_struck`: a backstop, no measure of speed


# -- what can happen to a request --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """Answer with a status; the server hears nothing of the request."""

    code: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection before the body of the request is read, or after it; the server hears
    nothing of the request.
    """

    after_body: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """Read the request, and go on with it when it is released, if the client is still there."""


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Have the server do it, read its whole answer, and reset the connection of the client."""


@dataclass(frozen=True, slots=True)
class CutBody:
    """Close the connection after so many bytes of the answer's body; its head promises all of them.

    An answer that is not longer passes.
    """

    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Go on with the request, of which the head was read, later; the time may depend on chance."""

    delay_s: float | Callable[[random.Random], float]


Action = Status | Reset | Hang | LoseAnswer | CutBody | Latency


@dataclass(frozen=True, eq=False)
class Rule:
    """Which requests meet what. Rules with the same contents are different rules.

    Attributes:
        action: what happens to them.
        method: of the request; None for any.
        key: expression that is searched for in the path and query, without percent-encoding, such
            as "/bucket/some key?partNumber=1"; None for any.
        times: how many requests it strikes; None for no limit.
        probability: that it strikes a request.
        after: how many matching requests pass before.

    Raises:
        ValueError: the numbers make no sense.
        re.error: the key is no regular expression.
    """

    action: Action
    method: str | None = None
    key: str | None = None
    times: int | None = 1
    probability: float = 1.0
    after: int = 0

    def __post_init__(self) -> None:
        if (self.times or 0) < 0 or self.after < 0 or not 0 <= self.probability <= 1:
            raise ValueError(f"{self}: times and after are 0 or more, probability is 0 to 1")
        re.compile(self.key or "")

    def matches(self, method: str, target: str) -> bool:
        """Whether it is for a request of that method to that path and query."""
        return self.method in (None, method) and bool(re.search(self.key or "", target))


def s3_error(code: str, message: str) -> bytes:
    """The body of an error as S3 writes it."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        "<RequestId>0000000000000000</RequestId></Error>"
    ).encode()


SLOW_DOWN = Status(
    503,
    s3_error("SlowDown", "Please reduce your request rate."),
    (("Content-Type", "application/xml"),),
)
"""How S3 asks a client to send less."""


# -- the proxy ---------------------------------------------------------------------------------


class HttpFaultProxy(FaultProxy):
    """Stands between HTTP/1.1 clients and one server. Thread-safe.

    Args:
        upstream_host: where the server is; it need not run yet.
        upstream_port: ditto.
        seed: of all chances.
    """

    def __init__(self, upstream_host: str, upstream_port: int, *, seed: int = 0) -> None:
        super().__init__("http-fault-proxy")
        self._upstream = (upstream_host, upstream_port)
        self._seed = seed
        self._outage: Outage | None = None
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._released = asyncio.Event()
        # Guards all below, which other threads look at.
        self._changed = threading.Condition()
        self._rules: list[Rule] = []
        self._matched: Counter[Rule] = Counter()
        self._chosen: Counter[Rule] = Counter()
        self._struck: Counter[Rule] = Counter()
        self._requests: Counter[str] = Counter()

    def __repr__(self) -> str:
        with self._changed:
            states = [
                f"{self.connections} open",
                f"requests {self._requests.total()}",
                f"rules {len(self._rules)}",
                f"struck {self._struck.total()}",
            ]
        if self._outage:
            states.insert(0, f"outage: {self._outage}")
        target = "{}:{}".format(*self._upstream)
        return f"<HttpFaultProxy {self.address} for {target} [{', '.join(states)}]>"

    @property
    def requests(self) -> Counter[str]:
        """How many requests of each method have come up to now."""
        with self._changed:
            return self._requests.copy()

    @property
    def struck(self) -> Counter[Rule]:
        """How often each rule has struck up to now, also of those that were removed.

        A strike counts when it happens: a lost answer when the server has given it in full, a
        request that hangs when all of it was read.
        """
        with self._changed:
            return self._struck.copy()

    def add(self, rule: Rule) -> Rule:
        """Have a rule looked at after all others, from the next request on; return it."""
        with self._changed:
            if rule in self._rules:
                raise ValueError(
                    f"{rule} is there already; make another one with the same contents"
                )
            self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Forget a rule. What it has struck goes on: call `release` for requests that hang."""
        with self._changed:
            self._rules.remove(rule)

    def wait_struck(
        self, rule: Rule, times: int = 1, *, timeout_s: float = STRUCK_TIMEOUT_S
    ) -> None:
        """Wait until a rule has struck so often.

        Raises:
            TimeoutError: it has not in that time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._struck[rule] >= times, timeout_s):
                raise TimeoutError(
                    f"{rule} has struck {self._struck[rule]} times in place of {times}, and"
                    f" {timeout_s:g} s are over"
                )

    def release(self) -> None:
        """Let the requests that hang go on; those that will hang later do."""
        self._loop.call(self._release())

    def outage(self, kind: Outage) -> None:
        """Serve nobody until `restore`.

        Args:
            kind: "refuse" resets the connections and refuses new ones; "reset" resets new ones too,
                once they are open; with "silent" nothing comes through on any of them.
        """
        if kind not in get_args(Outage):
            raise ValueError(f"{kind!r} is no outage; there are {', '.join(get_args(Outage))}")
        self._loop.call(self._switch(kind))

    def restore(self) -> None:
        """End the outage. Rules stay."""
        self._loop.call(self._switch(None))

    async def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def _switch(self, kind: Outage | None) -> None:
        self._outage = kind
        if kind == "silent":
            self._speaks.clear()
        else:
            self._speaks.set()
        if kind == "refuse":
            await self._loop.refuse()
            return
        if kind == "reset":
            await self._loop.reset_connections()
        await self._loop.listen()

    # -- connections -------------------------------------------------------------------------

    async def _serve(self, client: Peer) -> None:
        if self._outage == "reset":
            raise ConnectionResetError("an outage")
        try:
            await self._serve_requests(client)
        except (OSError, asyncio.IncompleteReadError):
            await self._speaks.wait()  # nothing comes through, nor does an end
            raise

    async def _serve_requests(self, client: Peer) -> None:
        """Serve the requests of one connection, one after the other."""
        async with AsyncExitStack() as stack:
            server: Peer | None = None
            keep = True
            while keep:
                head = await _next_head(client, server)
                await self._speaks.wait()
                if head is None:
                    return
                call = self._plan(_request(head), client)
                for rule, delay_s in call.delays_s:
                    self._strike(rule)
                    await asyncio.sleep(delay_s)
                match call.action:
                    case Status() as status:
                        keep = await self._answer(call, status)
                    case Reset(after_body):
                        await self._reset(call, after_body=after_body)
                    case _:
                        if server is None:
                            server = await stack.enter_async_context(connected(*self._upstream))
                        keep = await self._forward(call, server)

    def _plan(self, request: _Request, client: Peer) -> _Call:
        """Count a request and say what meets it."""
        with self._changed:
            self._requests[request.method] += 1
            number = self._requests[request.method]
            chance = random.Random(f"{self._seed}/{request.method}/{number}")
            delays_s: list[tuple[Rule, float]] = []
            for rule in self._rules:
                if self._chooses(rule, request, chance):
                    if not isinstance(rule.action, Latency):
                        return _Call(request, client, chance, delays_s, rule)
                    delay_s = rule.action.delay_s
                    delays_s.append((rule, delay_s(chance) if callable(delay_s) else delay_s))
            return _Call(request, client, chance, delays_s, None)

    def _chooses(self, rule: Rule, request: _Request, chance: random.Random) -> bool:
        """Whether a rule strikes; each draws, so that it has its own luck."""
        drawn = chance.random()
        if not rule.matches(request.method, request.target):
            return False
        self._matched[rule] += 1
        if (
            self._matched[rule] <= rule.after
            or self._chosen[rule] == rule.times
            or drawn >= rule.probability
        ):
            return False
        self._chosen[rule] += 1
        return True

    def _strike(self, rule: Rule | None) -> None:
        """Count a strike, before anybody can have noticed it."""
        if rule is not None:
            with self._changed:
                self._struck[rule] += 1
                self._changed.notify_all()

    async def _answer(self, call: _Call, status: Status) -> bool:
        """Answer in place of the server; whether the connection goes on."""
        request = call.request
        if not request.expects:
            await _copy_body(call.client, call.request.framing, _drop)
        # One who has not sent its body does so only if asked to, so nobody knows what comes next.
        keep = not (request.expects or request.closes)
        self._strike(call.rule)
        await self._to_client(call, _head_of(status, keep=keep))
        if request.method != "HEAD":
            await self._to_client(call, status.body)
        if request.expects:
            await _drop_the_rest(call.client)
        return keep

    async def _reset(self, call: _Call, *, after_body: bool) -> None:
        if after_body:
            if call.request.expects:
                await self._to_client(call, CONTINUE)
            await _copy_body(call.client, call.request.framing, _drop)
        self._strike(call.rule)
        raise ConnectionResetError("as planned")

    async def _forward(self, call: _Call, server: Peer) -> bool:
        """Pass a request and its answer on; whether the connections go on."""
        if not isinstance(call.action, Hang):
            return await self._exchange(call, server, None)
        with SpooledTemporaryFile(KEPT_IN_MEMORY_BYTES) as kept:

            async def keep(data: bytes) -> None:
                kept.write(data)

            if call.request.expects:
                await self._to_client(call, CONTINUE)
            await _copy_body(call.client, call.request.framing, keep)
            kept.seek(0)
            released = self._released  # before anybody can know that it hangs
            self._strike(call.rule)
            await unless_left(call.client, released.wait())
            return await self._exchange(call, server, kept)

    async def _exchange(
        self, call: _Call, server: Peer, kept: SpooledTemporaryFile[bytes] | None
    ) -> bool:
        """Send a request, while its answer may come already; the body may have been kept."""

        async def to_server(data: bytes) -> None:
            await self._speaks.wait()
            try:
                await server.send(data)
            except ConnectionError as error:
                raise _ServerLeftError(*error.args) from error

        async def send() -> None:
            await to_server(call.request.head)
            if kept is None:
                await _copy_body(call.client, call.request.framing, to_server)
            else:
                while data := kept.read(CHUNK_BYTES):
                    await to_server(data)

        sending = asyncio.create_task(send())
        receiving = asyncio.create_task(self._pass_answer(call, server, continued=kept is not None))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.exception() is None:
                return await unless_left(call.client, receiving)
            if sending.done() and not isinstance(sending.exception(), _ServerLeftError):
                sending.result()  # raises what has become of the client
            # The server answers, or is gone, before it has read everything.
            await receiving
        finally:
            await cancel(sending, receiving)
        await _drop_the_rest(call.client)
        return False

    async def _pass_answer(self, call: _Call, server: Peer, *, continued: bool) -> bool:
        """Pass an answer on, or what the action leaves of it; whether the connections go on."""
        while True:
            answer = _parse_answer(await server.reader.readuntil(HEAD_END), call.request.method)
            if not answer.interim:
                break
            if not continued:
                await self._to_client(call, answer.head)
        if isinstance(call.action, LoseAnswer):
            await _copy_body(server, answer.framing, _drop)
            self._strike(call.rule)
            raise ConnectionResetError("as planned")
        await self._to_client(call, answer.head)
        try:
            await _copy_body(server, answer.framing, self._body_passes(call))
        except _CutError:
            return False
        return not (call.request.closes or answer.closes)

    def _body_passes(self, call: _Call) -> Write:
        """How a body is written to the client."""

        async def write(data: bytes) -> None:
            await self._to_client(call, data)

        if not isinstance(call.action, CutBody):
            return write
        left_bytes = call.action.sent_bytes

        async def write_some(data: bytes) -> None:
            nonlocal left_bytes
            if len(data) > left_bytes:
                self._strike(call.rule)
                await write(data[:left_bytes])
                raise _CutError
            left_bytes -= len(data)
            await write(data)

        return write_some

    async def _to_client(self, call: _Call, data: bytes) -> None:
        await self._speaks.wait()
        await call.client.send(data)


class _ServerLeftError(ConnectionError):
    """The server reads no more; it may have answered before."""


class _CutError(Exception):
    """Enough of a body was sent."""


# -- HTTP --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
    """The head of a request, as it came, and what it says.

    Attributes:
        target: path and query, without percent-encoding.
        expects: whether the client may wait with the body until it is asked for it.
        closes: whether the connection ends with it.
    """

    head: bytes
    method: str
    target: str
    framing: Framing
    expects: bool
    closes: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    """The head of an answer, as it came, and what it says; after an interim one another follows."""

    head: bytes
    framing: Framing
    interim: bool
    closes: bool


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, its client, and what meets it.

    Attributes:
        chance: for what is random about it.
        delays_s: rules with a latency, and what each adds.
        rule: the one that strikes beside them.
    """

    request: _Request
    client: Peer
    chance: random.Random
    delays_s: list[tuple[Rule, float]]
    rule: Rule | None

    @property
    def action(self) -> Action | None:
        return self.rule.action if self.rule else None


async def _next_head(client: Peer, server: Peer | None) -> bytes | None:
    """The head of the next request; None when the client, or the server meanwhile, has left."""
    head = client.reader.readuntil(HEAD_END)
    try:
        return await (unless_left(server, head) if server else head)
    except PeerLeftError:
        return None
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None


async def _drop(_: bytes) -> None:
    pass


async def _drop_the_rest(client: Peer) -> None:
    """End the answers, and drop what the client sends until it closes.

    To close at once would reset the connection, for there is something unread, and the client might
    lose an answer that it has not read yet.
    """
    client.writer.write_eof()
    while await client.reader.read(CHUNK_BYTES):
        pass


async def _copy_body(source: Peer, framing: Framing, write: Write) -> None:
    """Read a body to its end and write it."""
    reader = source.reader
    if framing == "until_close":
        while data := await reader.read(CHUNK_BYTES):
            await write(data)
    elif framing == "chunked":
        chunk_bytes = -1
        while chunk_bytes:
            line = await reader.readuntil(b"\r\n")
            chunk_bytes = int(line.split(b";")[0], 16)
            await write(line)
            if chunk_bytes:
                await _copy(reader, chunk_bytes, write)
                await write(await reader.readexactly(2))
        line = b""
        while line != b"\r\n":  # trailers, and the line that ends them
            line = await reader.readuntil(b"\r\n")
            await write(line)
    else:
        await _copy(reader, framing, write)


async def _copy(reader: asyncio.StreamReader, left_bytes: int, write: Write) -> None:
    while left_bytes:
        data = await reader.read(min(left_bytes, CHUNK_BYTES))
        if not data:
            raise asyncio.IncompleteReadError(b"", left_bytes)
        left_bytes -= len(data)
        await write(data)


def _parsed(head: bytes) -> tuple[str, Mapping[str, str]]:
    """The first line of a head, and its headers in lower case."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers = (line.lower().partition(":") for line in lines)
    return first, {name.strip(): value.strip() for name, _, value in headers}


def _request(head: bytes) -> _Request:
    first, headers = _parsed(head)
    method, target, version = first.split(" ")
    framing = _framing(headers)
    return _Request(
        head=head,
        method=method,
        target=unquote(target),
        framing=0 if framing is None else framing,
        expects=headers.get("expect") == "100-continue",
        closes=_closes(version, headers),
    )


def _parse_answer(head: bytes, method: str) -> _Answer:
    first, headers = _parsed(head)
    version, code, *_ = first.split(" ")
    framing = _framing(headers)
    interim = code.startswith("1")
    if interim or method == "HEAD" or code in ("204", "304"):
        framing = 0
    return _Answer(
        head=head,
        framing="until_close" if framing is None else framing,
        interim=interim,
        closes=framing is None or _closes(version, headers),
    )


def _framing(headers: Mapping[str, str]) -> Framing | None:
    """How the end of a body is known; None if the head does not say."""
    if headers.get("transfer-encoding", "").endswith("chunked"):
        return "chunked"
    return int(headers["content-length"]) if "content-length" in headers else None


def _closes(version: str, headers: Mapping[str, str]) -> bool:
    connection = headers.get("connection", "")
    return "close" in connection or (version == "HTTP/1.0" and "keep-alive" not in connection)


def _head_of(status: Status, *, keep: bool) -> bytes:
    try:
        phrase = HTTPStatus(status.code).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [
        f"HTTP/1.1 {status.code} {phrase}",
        *(f"{name}: {value}" for name, value in status.headers),
        f"Content-Length: {len(status.body)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
    ]
    return "\r\n".join(lines).encode("latin-1") + HEAD_END
