"""A proxy that makes an S3-compatible server fail as planned, request by request.

What the client sends reaches the server with its headers, Host too, and so do the answers: a
signature that a client makes for the address of the proxy is accepted by a server that goes by the
Host header. Requests and answers are whole in memory before they are passed on.

A fault is a `Rule`: which requests it strikes, and one action. Rules come and go while requests are
served. For each request they are tried in their order: a `Latency` lets the others have their turn,
so several add up, and the first of another kind that strikes ends it. Chance comes from a seed, the
method, and the number of the request among those of its method: it does not depend on other
requests that are under way.

    with HttpFaultProxy("127.0.0.1", server_port) as proxy:
        lost = proxy.add(Rule(LoseAnswer(), method="PUT", key=r"/batches/", after=2))
        proxy.add(Rule(Latency(lambda chance: chance.expovariate(10)), times=None))
        proxy.add(Rule(SLOW_DOWN, times=None, probability=0.05))
        store(endpoint=f"http://{proxy.address}")
        proxy.wait_struck(lost)       # the third matching PUT was stored, and its answer lost

A server that is frozen is one whose requests all hang:

        frozen = proxy.add(Rule(Hang(), times=None))
        proxy.remove(frozen)
        proxy.release()
"""

import asyncio
import io
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self
from xml.sax.saxutils import escape

from aiohttp import ClientSession, TCPConnector, web
from yarl import URL

from memq.client.sync import EventLoopThread

HOST = "127.0.0.1"
STRUCK_TIMEOUT_S = 60.0  # of `wait_struck`: a backstop, no measure of speed
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}
"""Headers between two ends of one connection, which are not passed on."""


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
    """

    action: Action
    method: str | None = None
    key: str | None = None
    times: int | None = 1
    probability: float = 1.0
    after: int = 0

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


class _Meeting(NamedTuple):
    """What meets a request: rules with a latency and what each adds, and the one that strikes."""

    delays_s: list[tuple[Rule, float]]
    rule: Rule | None


class HttpFaultProxy:
    """Stands between HTTP/1.1 clients and one server while its context is open. Thread-safe.

    Args:
        upstream_host: where the server is; it need not run yet.
        upstream_port: ditto.
        seed: of all chances.
    """

    def __init__(self, upstream_host: str, upstream_port: int, *, seed: int = 0) -> None:
        self.port = 0
        self._upstream = f"http://{upstream_host}:{upstream_port}"
        self._seed = seed
        # Guards all below, which other threads read.
        self._changed = threading.Condition()
        self._rules: list[Rule] = []
        self._matched: Counter[Rule] = Counter()
        self._chosen: Counter[Rule] = Counter()
        self._struck: Counter[Rule] = Counter()
        self._requests: Counter[str] = Counter()

    def __repr__(self) -> str:
        struck = sum(self.struck.values())
        return f"<HttpFaultProxy {self.address} for {self._upstream} [struck {struck}]>"

    def __enter__(self) -> Self:
        self._loop = EventLoopThread("http-fault-proxy")
        self._loop.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._stop())
        self._loop.close()

    @property
    def address(self) -> str:
        """`host:port`, for clients."""
        return f"{HOST}:{self.port}"

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
        """Try a rule after all others, from the next request on; return it."""
        with self._changed:
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
        self._loop.run(self._release())

    # -- in its thread -----------------------------------------------------------------------

    async def _start(self) -> None:
        self._released = asyncio.Event()
        self._session = ClientSession(connector=TCPConnector(limit=0), auto_decompress=False)
        server = web.Server(self._serve, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._release()
        await self._runner.cleanup()
        await self._session.close()

    async def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        meeting = self._plan(request)
        for rule, delay_s in meeting.delays_s:
            self._strike(rule)
            await asyncio.sleep(delay_s)
        action = meeting.rule.action if meeting.rule else None
        if isinstance(action, Reset) and not action.after_body:
            return self._reset(request, meeting)
        if request.headers.get("Expect"):
            await request.writer.write(CONTINUE)
        body = b"".join([chunk async for chunk in request.content.iter_any()])
        match action:
            case Status(code, text, headers):
                self._strike(meeting.rule)
                return web.Response(status=code, body=text, headers=headers)
            case Reset():
                return self._reset(request, meeting)
            case Hang():
                released = self._released  # before anybody can know that it hangs
                self._strike(meeting.rule)
                await released.wait()
        return await self._forward(request, body, meeting)

    def _plan(self, request: web.BaseRequest) -> _Meeting:
        """Count a request and say what meets it."""
        method, target = request.method, URL(request.path_qs, encoded=True)
        path = target.path + (f"?{target.query_string}" if target.query_string else "")
        with self._changed:
            self._requests[method] += 1
            chance = random.Random(f"{self._seed}/{method}/{self._requests[method]}")
            delays_s: list[tuple[Rule, float]] = []
            for rule in self._rules:
                if self._chooses(rule, method, path, chance):
                    if not isinstance(rule.action, Latency):
                        return _Meeting(delays_s, rule)
                    delay_s = rule.action.delay_s
                    delays_s.append((rule, delay_s(chance) if callable(delay_s) else delay_s))
            return _Meeting(delays_s, None)

    def _chooses(self, rule: Rule, method: str, path: str, chance: random.Random) -> bool:
        """Whether a rule strikes; each draws, so that it has its own luck."""
        drawn = chance.random()
        if not rule.matches(method, path):
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

    def _reset(self, request: web.BaseRequest, meeting: _Meeting) -> web.StreamResponse:
        """Break the connection off with a RST."""
        self._strike(meeting.rule)
        assert request.transport is not None
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
        return web.Response()  # which nobody gets any more

    async def _forward(
        self, request: web.BaseRequest, body: bytes, meeting: _Meeting
    ) -> web.StreamResponse:
        """Pass a request on, and its answer, or what the action leaves of it."""
        action = meeting.rule.action if meeting.rule else None
        url = URL(self._upstream + request.path_qs, encoded=True)
        headers = [each for each in request.headers.items() if each[0].lower() not in HOP_BY_HOP]
        async with self._session.request(
            request.method,
            url,
            headers=headers,
            data=io.BytesIO(body) if body else None,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        ) as answer:
            content = await answer.read()
        if isinstance(action, LoseAnswer):
            return self._reset(request, meeting)
        passed = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in HOP_BY_HOP:
                passed.headers.add(name, value)
        cut = isinstance(action, CutBody) and len(content) > action.sent_bytes
        if request.method != "HEAD":
            passed.content_length = len(content)
        await passed.prepare(request)
        if isinstance(action, CutBody) and cut:
            self._strike(meeting.rule)
            await passed.write(content[: action.sent_bytes])
            assert request.transport is not None
            request.transport.close()
            return passed
        await passed.write(content)
        await passed.write_eof()
        return passed
