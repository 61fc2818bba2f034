"""Admin HTTP: /health, /ready, /metrics (Prometheus), /status and /topics/NAME (JSON).

It must not take from clients what they need: a connection is for one request, which has
`REQUEST_S`, and the oldest one makes room for the next when there are `MAX_CONNECTIONS`.

Where rules decide, all but /health and /ready is for those who may describe the cluster: by a token
(`Authorization: Bearer`), or by user and password (`Basic`).

Others may add pages below `PAGES_PREFIX`, which see to logins themselves; a browser at `/` is sent
there.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from memq.broker.authentication import check_password, identify_token
from memq.broker.config import DEFAULT_LISTENER
from memq.broker.effective import shown_options
from memq.broker.object_root import MAX_MISSING_NAMED
from memq.core.access.rules import CLUSTER, Access, Question
from memq.core.features import MAX_LEVEL, MIN_LEVEL
from memq.core.version import __version__
from memq.core.wire.messages import BrokerStatus
from memq.errors import (
    MemqError,
    NotHostedError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.runtime.tls_transport import TlsLayer

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from memq.broker.authentication import Identity
    from memq.broker.connection import Connections
    from memq.broker.context import BrokerContext
    from memq.broker.lag import GroupLags
    from memq.broker.topics import Topics

MAX_CONNECTIONS = 64  # a scrape and some probes of supervisors at a time
PASSWORDS = 2  # that are checked at a time: each takes 10 ms of a processor
PAGES_PREFIX = "/console/"
OPEN_PAGES = ("/health", "/ready")  # for supervisors, who have no password
REQUEST_S = 10.0  # for a request and its answer; Prometheus waits no longer

_PAGES = """\
/health       whether the broker runs
/ready        whether it serves, or why not
/status       what it holds, as JSON
/topics/NAME  offsets and watermark of a topic, as JSON
/metrics      for Prometheus
"""


Pages = Callable[[web.Application, "BrokerContext"], None]
"""Adds pages below `PAGES_PREFIX`, given the broker's context: it listens by then."""


class AdminServer:
    """The admin HTTP of one broker.

    Args:
        context: of the broker.
        topics: that it hosts.
        connections: of its clients.
        lags: of its groups.
        pages: adds others; None for none.

    Attributes:
        port: where it listens; 0 before `start`.
    """

    def __init__(
        self,
        context: BrokerContext,
        topics: Topics,
        connections: Connections,
        lags: GroupLags,
        pages: Pages | None = None,
    ) -> None:
        self._context = context
        self._pages = pages
        self._topics = topics
        self._connections = connections
        self._lags = lags
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}  # oldest first
        self._passwords = asyncio.Semaphore(PASSWORDS)
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            UnavailableError: the port is taken.
        """
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._list),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/status", self._status),
                web.get("/topics/{topic}", self._topic),
            ]
        )
        if self._pages is not None:
            self._pages(app, self._context)
        app.on_response_prepare.append(_close_after)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        config, loop = self._context.config, asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, config.host, config.admin_port)
        except (OSError, ValueError) as exc:
            raise UnavailableError(
                f"cannot listen on {config.host}:{config.admin_port}: {exc}; set another admin_port"
            ) from exc
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for protocol in list(self._open):
            self._end(protocol)
        if self._runner is not None:
            await self._runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        """Make the protocol of a new connection, and start its time limit."""
        assert self._runner is not None  # noqa: S101 - it was set up
        assert self._runner.server is not None  # noqa: S101
        while len(self._open) >= MAX_CONNECTIONS:
            self._end(next(iter(self._open)))
        protocol: asyncio.BaseProtocol = self._runner.server()
        if self._context.config.admin_tls:
            protocol = self._context.listeners[DEFAULT_LISTENER].secured(protocol)
        loop = asyncio.get_running_loop()
        self._open[protocol] = loop.call_later(REQUEST_S, self._end, protocol)
        return protocol

    def _end(self, protocol: asyncio.BaseProtocol) -> None:
        """End a connection, if it has not ended; what it did not take of its answer is dropped."""
        self._open.pop(protocol).cancel()
        if isinstance(protocol, TlsLayer):
            protocol.abort()
        elif isinstance(protocol, web.RequestHandler) and protocol.transport is not None:
            protocol.transport.abort()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a page to those who may see it."""
        control = self._connections.control
        is_open = request.path in OPEN_PAGES or f"{request.path}/".startswith(PAGES_PREFIX)
        if control.rules is None or is_open or self._goes_on(request):
            return await handler(request)
        try:
            identity = await self._identify(request.headers.get("Authorization", ""))
        except UnauthorizedError as exc:
            self._context.warn("admin", f"refused {request.remote} at the admin HTTP: {exc}")
            headers = {"WWW-Authenticate": 'Basic realm="memq", charset="UTF-8"'}
            return web.Response(status=401, text=f"{exc}\n", headers=headers)
        access = Access(identity.principal, request.remote or "?", control.rules)
        decision = access.decide(Question("describe", "cluster", CLUSTER))
        if not decision.allowed:
            said = f"{identity.principal} may not describe the cluster: {decision.why}\n"
            return web.Response(status=403, text=said)
        return await handler(request)

    async def _identify(self, authorization: str) -> Identity:
        """Return who asks for a page.

        Raises:
            UnauthorizedError: nobody whom the broker knows.
        """
        control, loop = self._connections.control, asyncio.get_running_loop()
        kind, _, shown = authorization.partition(" ")
        if kind.lower() == "bearer":
            return identify_token(control, shown.strip())
        try:
            text = base64.b64decode(shown.strip(), validate=True).decode()
        except ValueError:
            text = ""
        name, colon, password = text.partition(":")
        if kind.lower() != "basic" or not colon:
            raise UnauthorizedError("say who you are: by user and password, or by a token")
        async with self._passwords:
            check = partial(check_password, control, name, password)
            return await loop.run_in_executor(None, check)

    def _goes_on(self, request: web.Request) -> bool:
        """Return whether it is a browser that is sent on to the pages of others."""
        is_browser = "text/html" in request.headers.get("Accept", "")
        return self._pages is not None and request.path == "/" and is_browser

    async def _list(self, request: web.Request) -> web.Response:
        if self._goes_on(request):
            return web.Response(status=302, headers={"Location": PAGES_PREFIX})
        return web.Response(text=_PAGES)

    async def _health(self, _: web.Request) -> web.Response:
        reasons = self._context.not_ready()  # which a restart would not change
        return web.Response(
            text=f"ok, but not ready: {'; '.join(reasons)}\n" if reasons else "ok\n"
        )

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = self._context.not_ready()
        if not reasons:
            return web.Response(text="ready\n")
        return web.Response(text=f"not ready: {'; '.join(reasons)}\n", status=503)

    async def _metrics(self, _: web.Request) -> web.Response:
        metrics, memory = self._context.metrics, self._context.memory
        scheduler = self._context.scheduler
        await self._lags.refresh()
        metrics.lag.now_us = self._context.now().wall_ms * 1_000
        metrics.connections.set(len(self._connections))
        metrics.memory.set(memory.used_bytes)
        metrics.memory_idle.set(memory.idle_bytes)
        metrics.memory_limit.set(memory.limit_bytes)
        metrics.answers.set(scheduler.used_bytes)
        metrics.answers_limit.set(scheduler.limit_bytes)
        for hosted in self._topics.hosted():
            hosted.count_received(metrics)
        metrics.keep(self._topics.running_names())
        for _late_ms, mark_ms, topic in self._watermarks():
            metrics.watermark.labels(topic).set(mark_ms / 1000)
        for state in self._context.services.states():
            metrics.up.labels(state.name).set(state.since_ms is None)
        for name, listener in self._context.listeners.items():
            if listener.not_after_s:
                metrics.certificate_ends.labels(name).set(listener.not_after_s)
        for folder, count in self._context.disk.free_bytes.items():
            metrics.free.labels(folder).set(count)
        metrics.ready.set(not self._context.not_ready())
        return web.Response(
            body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    def _watermarks(self) -> list[tuple[int, int, str]]:
        """Return when it is late, the watermark and the name of each topic that has a write
        partition here.
        """
        return [
            (min(marks_ms) + hosted.topic.config.batch_age_ms, min(marks_ms), hosted.topic.name)
            for hosted in self._topics.hosted()
            if (marks_ms := [each.stored_through_ms() for each in hosted.partitions.values()])
        ]

    def describe(self) -> BrokerStatus:
        """Describe this broker: its status, and that of its services."""
        context, now_ms = self._context, self._context.now().wall_ms
        late_ms, mark_ms, topic = min(self._watermarks(), default=(now_ms, now_ms, ""))
        return BrokerStatus(
            id=context.config.broker_id,
            address=context.address,
            version=__version__,
            not_ready=context.not_ready(),
            services=context.services.states(),
            late_topic=topic,
            watermark_age_ms=now_ms - mark_ms,
            late_ms=now_ms - late_ms,
            free_bytes=context.disk.free_bytes,
            min_level=MIN_LEVEL,
            max_level=MAX_LEVEL,
            level=context.level,
        )

    async def _status(self, _: web.Request) -> web.Response:
        context = self._context
        partitions = [
            {
                "topic": hosted.topic.name,
                "write_partition": partition.processor.write_partition,
                **partition.processor.load._asdict(),
                "parked_messages": partition.parked,
            }
            for hosted in self._topics.hosted()
            for partition in hosted.partitions.values()
        ]
        presence = context.presence
        memory, scheduler = context.memory, context.scheduler
        return web.json_response(
            {
                "broker_id": context.config.broker_id,
                "address": context.address,
                "version": __version__,
                "options": shown_options(context.config),
                "ready": not context.not_ready(),
                "not_ready": context.not_ready(),
                "services": [msgspec.structs.asdict(each) for each in context.services.states()],
                "connections": len(self._connections),
                "memory_used_bytes": memory.used_bytes,
                "memory_idle_bytes": memory.idle_bytes,
                "memory_peak_bytes": memory.peak_bytes,
                "memory_limit_bytes": memory.limit_bytes,
                "answer_bytes": scheduler.used_bytes,
                "answer_limit_bytes": scheduler.limit_bytes,
                "objects": {
                    "root": context.root.uri,
                    "looked_for": presence.looked_for,
                    "missing": len(presence.missing),
                    "such_as": [each._asdict() for each in presence.missing[:MAX_MISSING_NAMED]],
                },
                "write_partitions": partitions,
            }
        )

    async def _topic(self, request: web.Request) -> web.Response:
        """Answer what each read partition of a topic holds, for people who follow a link."""
        name = request.match_info["topic"]
        try:
            hosted = self._topics.get(name)
            # First the watermark: what it covers is then sure to lie before the ends.
            if not hosted.partitions:
                raise NotHostedError(f"this broker hosts no write partition of topic {name!r}")
            marks_ms = [each for each in (await hosted.watermarks())[0] if each >= 0]
            offsets = [
                await self._context.queue.offsets(hosted.topic.queue_topic, partition)
                for partition in range(hosted.topic.config.read_partitions)
            ]
        except MemqError as exc:
            status = 404 if isinstance(exc, NotHostedError | UnknownTopicError) else 503
            return web.json_response({"error": exc.code, "message": str(exc)}, status=status)
        return web.json_response(
            {
                "topic": name,
                "stored_through_ms": min(marks_ms, default=None),
                "read_partitions": [
                    {"partition": number, "start": start, "end": end}
                    for number, (start, end) in enumerate(offsets)
                ],
            }
        )


async def _close_after(_: web.Request, response: web.StreamResponse) -> None:
    """Let no connection wait for a request that may never come."""
    response.force_close()
    response.headers["Connection"] = "close"
