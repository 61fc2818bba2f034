"""Admin HTTP: /health, /ready, /metrics (Prometheus), /status and /topics/NAME (JSON)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from memq.broker.object_root import MAX_MISSING_NAMED
from memq.errors import MemqError, UnavailableError

if TYPE_CHECKING:
    from memq.broker.connection import Connections
    from memq.broker.context import BrokerContext
    from memq.broker.group_lag import GroupLags
    from memq.broker.topics import Topics


_PAGES = """\
/health       whether the broker runs
/ready        whether it serves, or why not
/status       what it holds, as JSON
/topics/NAME  offsets and watermark of a topic, as JSON
/metrics      for Prometheus
"""


class AdminServer:
    """The admin HTTP of one broker.

    Args:
        context: of the broker.
        topics: that it hosts.
        connections: of its clients.
        lags: of its groups.

    Attributes:
        port: where it listens; 0 before `start`.
    """

    def __init__(
        self, context: BrokerContext, topics: Topics, connections: Connections, lags: GroupLags
    ) -> None:
        self._context = context
        self._topics = topics
        self._connections = connections
        self._lags = lags
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            UnavailableError: the port is taken.
        """
        app = web.Application()
        app.add_routes(
            [
                web.get("/", self._pages),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/status", self._status),
                web.get("/topics/{topic}", self._topic),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        config = self._context.config
        try:
            await web.TCPSite(self._runner, config.host, config.admin_port).start()
        except OSError as exc:
            raise UnavailableError(
                f"cannot listen on {config.host}:{config.admin_port}: {exc}; set another admin_port"
            ) from exc
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        await self._lags.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _pages(self, _: web.Request) -> web.Response:
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
            marks_ms = [each.stored_through_ms() for each in hosted.partitions.values()]
            if marks_ms:
                metrics.watermark.labels(hosted.topic.name).set(min(marks_ms) / 1000)
        return web.Response(
            body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"}
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
                "ready": not context.not_ready(),
                "not_ready": context.not_ready(),
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
        """What each read partition of a topic holds, for people who follow a link."""
        name = request.match_info["topic"]
        try:
            hosted = self._topics.get(name)
            # First the watermark: what it covers is then sure to lie before the ends.
            mark_ms = min((await hosted.watermarks())[0])
            offsets = [
                await self._context.queue.offsets(hosted.topic.queue_topic, partition)
                for partition in range(hosted.topic.config.read_partitions)
            ]
        except MemqError as exc:
            return web.json_response({"error": exc.code, "message": str(exc)}, status=404)
        return web.json_response(
            {
                "topic": name,
                "stored_through_ms": mark_ms,
                "read_partitions": [
                    {"partition": number, "start": start, "end": end}
                    for number, (start, end) in enumerate(offsets)
                ],
            }
        )
