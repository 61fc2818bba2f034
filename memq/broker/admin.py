"""Admin HTTP: /health, /ready, /metrics (Prometheus), /status and /topics/NAME (JSON)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from memq.errors import MemqError, UnavailableError

if TYPE_CHECKING:
    from memq.broker.server import Broker


class AdminServer:
    """The admin HTTP of one broker.

    Attributes:
        port: where it listens; 0 before `start`.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
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
                web.get("/health", self._health),
                web.get("/ready", self._ready),
                web.get("/metrics", self._metrics),
                web.get("/status", self._status),
                web.get("/topics/{topic}", self._topic),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        config = self._broker.config
        try:
            await web.TCPSite(self._runner, config.host, config.admin_port).start()
        except OSError as exc:
            raise UnavailableError(
                f"cannot listen on {config.host}:{config.admin_port}: {exc}; set another admin_port"
            ) from exc
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = self._broker.not_ready()
        if not reasons:
            return web.Response(text="ready\n")
        return web.Response(text=f"not ready: {'; '.join(reasons)}\n", status=503)

    async def _metrics(self, _: web.Request) -> web.Response:
        broker = self._broker
        metrics, memory = broker.services.metrics, broker.services.memory
        metrics.connections.set(broker.connections)
        metrics.memory.set(memory.used_bytes)
        metrics.memory_idle.set(memory.idle_bytes)
        metrics.memory_limit.set(memory.limit_bytes)
        metrics.answers.set(broker.services.turns.used_bytes)
        metrics.answers_limit.set(broker.services.turns.limit_bytes)
        for hosted in broker.topics.hosted():
            hosted.count_received(metrics)
            mark_ms = min(partition.stored_through_ms() for partition in hosted.partitions)
            metrics.watermark.labels(hosted.topic.name).set(mark_ms / 1000)
        return web.Response(
            body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def _status(self, _: web.Request) -> web.Response:
        broker = self._broker
        partitions = [
            {"write_partition": repr(partition.processor), "parked": partition.parked}
            for hosted in broker.topics.hosted()
            for partition in hosted.partitions
        ]
        memory = broker.services.memory
        return web.json_response(
            {
                "broker_id": broker.config.broker_id,
                "address": broker.address,
                "ready": not broker.not_ready(),
                "not_ready": broker.not_ready(),
                "connections": broker.connections,
                "memory_used_bytes": memory.used_bytes,
                "memory_idle_bytes": memory.idle_bytes,
                "memory_peak_bytes": memory.peak_bytes,
                "memory_limit_bytes": memory.limit_bytes,
                "answer_bytes": broker.services.turns.used_bytes,
                "answer_limit_bytes": broker.services.turns.limit_bytes,
                "write_partitions": partitions,
            }
        )

    async def _topic(self, request: web.Request) -> web.Response:
        """What each read partition of a topic holds, for people who follow a link."""
        name, broker = request.match_info["topic"], self._broker
        try:
            hosted = broker.topics.get(name)
            # First the watermark: what it covers is then sure to lie before the ends.
            mark_ms = min((await broker.watermarks(hosted))[0])
            held = [
                await broker.services.queue.offsets(hosted.topic.queue_topic, partition)
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
                    for number, (start, end) in enumerate(held)
                ],
            }
        )
