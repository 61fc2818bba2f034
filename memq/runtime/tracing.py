"""Spans of OpenTelemetry, where `MEMQ_TRACING=1` asks for them and its API is installed.

A producer has a span for each Message; its context travels in the header of the Write. The broker
has a span for each Batch, child of its first Message and linked to the others, with a child for
each stage. There the trace ends: a Notification must be made again from its object, bit by bit, to
be restored, so it has no room for a context. The span of a consumer names the Batch by the same
attributes as the broker's: its id, partition and offset.

Records have no context of their own: `traceparent` among their headers would cost too much. Which
spans are kept, and where they go, the application decides by OpenTelemetry's SDK.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from memq.core.version import __version__
from memq.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

Attributes = dict[str, str | int]

VARIABLE = "MEMQ_TRACING"
STAGES = ("open", "wait", "put", "publish")
MAX_LINKS = 128  # of a span: as many as the SDK keeps by default

_CONTEXT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Tracing:
    """Makes the spans; see above."""

    def __init__(self) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - only where it is wanted

        self._trace = trace
        self._tracer = trace.get_tracer("memq", __version__)

    def send(self, topic: str, records: int) -> Span:
        """Begin the span of a Message."""
        kind = self._trace.SpanKind.PRODUCER
        attributes = _of(topic, "send", records)
        return self._tracer.start_span(f"send {topic}", kind=kind, attributes=attributes)

    def sent(self, span: Span, error: Exception | None) -> None:
        """End the span of a Message that was acked, or has failed."""
        if error is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.end()

    def context(self, span: Span) -> str:
        """Return the context of a span as W3C writes it; empty where nobody keeps spans."""
        it = span.get_span_context()
        if not it.is_valid:
            return ""
        return f"00-{it.trace_id:032x}-{it.span_id:016x}-{it.trace_flags:02x}"

    def published(
        self, topic: str, records: int, batch: Attributes, traces: list[str], times_ms: list[int]
    ) -> None:
        """Make the spans of a Batch; of each stage the time when it began, then the end."""
        known = [context for each in traces[:MAX_LINKS] if (context := self._parsed(each))]
        if not known:
            return
        times_ns = [1_000_000 * each for each in times_ms]
        parent = self._trace.set_span_in_context(self._trace.NonRecordingSpan(known[0]))
        whole = self._tracer.start_span(
            f"publish {topic}",
            parent,
            attributes=_of(topic, "publish", records) | batch,
            links=[self._trace.Link(each) for each in known[1:]],
            start_time=times_ns[0],
        )
        inside = self._trace.set_span_in_context(whole)
        for name, begun_ns, ended_ns in zip(STAGES, times_ns, times_ns[1:], strict=False):
            self._tracer.start_span(name, inside, start_time=begun_ns).end(ended_ns)
        whole.end(times_ns[-1])

    def received(self, topic: str, records: int, batch: Attributes) -> None:
        """Make the span of a Batch that a consumer is given."""
        attributes = _of(topic, "receive", records) | batch
        kind = self._trace.SpanKind.CONSUMER
        self._tracer.start_span(f"receive {topic}", kind=kind, attributes=attributes).end()

    def _parsed(self, text: str) -> SpanContext | None:
        match = _CONTEXT.fullmatch(text)
        if match is None:
            return None
        trace_id, span_id, flags = (int(each, 16) for each in match.groups())
        found = self._trace.SpanContext(trace_id, span_id, True, self._trace.TraceFlags(flags))
        return found if found.is_valid else None


def place(batch_id: str, partition: int, offset: int) -> Attributes:
    """Return the attributes by which the spans of broker and consumer name a Batch."""
    return {
        "memq.batch_id": batch_id,
        "messaging.destination.partition.id": str(partition),
        "memq.offset": offset,
    }


def _of(topic: str, operation: str, records: int) -> Attributes:
    return {
        "messaging.system": "memq",
        "messaging.destination.name": topic,
        "messaging.operation.type": operation,
        "messaging.batch.message_count": records,
    }


def tracing() -> Tracing | None:
    """Return what makes spans; None where nobody wants them.

    Raises:
        ConfigError: they are wanted, and OpenTelemetry is not installed.
    """
    if os.environ.get(VARIABLE) != "1":
        return None
    try:
        return Tracing()
    except ImportError as exc:
        raise ConfigError(f"{VARIABLE}=1 without OpenTelemetry: pip install 'memq[otel]'") from exc
