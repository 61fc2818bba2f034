"""Spans of OpenTelemetry: of Messages, of Batches with their stages, and of consumers."""

import itertools
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from memq import AsyncConsumer, AsyncProducer
from memq.core.wire import messages as m
from memq.errors import MemqError
from memq.storage.local import LocalStorage
from tests.integration.broker.support import broker, client

STAGES = ("open", "wait", "put", "publish")


@pytest.fixture
def spans(monkeypatch):
    """What is kept of spans in this test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setenv("MEMQ_TRACING", "1")
    yield lambda: list(exporter.get_finished_spans())
    provider.shutdown()


def named(spans, name):
    """Spans of that name."""
    return [each for each in spans if each.name == name]


async def test_a_message_is_followed_to_its_batch(tmp_path, spans):
    """Two producers' Messages have a span each; that of their Batch follows the first and links the
    other, has its stages, and the consumer's span names the same Batch.
    """
    storage = LocalStorage(tmp_path / "objects")
    async with broker(tmp_path, storage=storage) as running, client(running) as c:
        await c.create("t", batch_age="10s", batch_messages=2, audited=False)
        one = AsyncProducer(running.address, topic="t", linger="1ms")
        two = AsyncProducer(running.address, topic="t", linger="1ms")
        async with one, two:
            placed = [await each.write(value=b"x") for each in (one, two)]
            await one.flush()
            await two.flush()
        stored = [each.result() for each in placed]
        assert stored[0].offset == stored[1].offset
        async with AsyncConsumer(running.address, topic="t", start="earliest") as consumer:
            batch = await consumer.poll(10)
    sent = named(spans(), "send t")
    assert len(sent) == 2
    (whole,) = named(spans(), "publish t")
    contexts = {each.context.span_id for each in sent}
    assert whole.parent.span_id in contexts
    assert {link.context.span_id for link in whole.links} == contexts - {whole.parent.span_id}
    assert whole.context.trace_id in {each.context.trace_id for each in sent}
    stages = [
        each for each in spans() if each.parent and each.parent.span_id == whole.context.span_id
    ]
    assert tuple(each.name for each in sorted(stages, key=lambda s: s.start_time)) == STAGES
    assert stages[0].start_time == whole.start_time
    assert stages[-1].end_time == whole.end_time
    for before, after in itertools.pairwise(stages):
        assert before.end_time == after.start_time
    (received,) = named(spans(), "receive t")
    for name in ("memq.batch_id", "memq.offset", "messaging.destination.partition.id"):
        assert received.attributes[name] == whole.attributes[name]
    assert whole.attributes["memq.batch_id"] == batch.notification.batch_id
    assert whole.attributes["messaging.batch.message_count"] == 2


async def test_a_message_that_fails_says_so(tmp_path, spans):
    """The span of a Message that is refused for good ends with the error."""
    async with broker(tmp_path) as running, client(running) as c:
        await c.create("t", batch_age="1ms", audited=False)
        async with AsyncProducer(running.address, topic="t", linger="1ms") as producer:
            await c.ask(m.DeleteTopic(topic="t"))
            await producer.write(value=b"x")
            with pytest.raises(MemqError):
                await producer.flush()
    (sent,) = named(spans(), "send t")
    assert not sent.status.is_ok


@pytest.mark.parametrize("given", ["", "x" * 200, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é"])
async def test_a_context_that_is_none_is_passed_over(tmp_path, spans, given):
    """Whatever a client sends as one, its Message is stored, and has no span in the broker."""
    async with broker(tmp_path) as running, client(running) as c:
        await c.create("t", batch_age="1ms", audited=False)
        answer = await c.write(1, trace=given)
        assert answer.offset == 0
    assert spans() == []


async def test_nothing_is_sent_without_tracing(tmp_path, monkeypatch):
    """Where nobody asks for spans, no Write has a context and OpenTelemetry is not loaded."""
    monkeypatch.delenv("MEMQ_TRACING", raising=False)
    seen = []
    async with broker(tmp_path) as running, client(running) as c:
        await c.create("t", batch_age="1ms", audited=False)
        assert running.context.tracing is None
        write = running.handlers.write
        monkeypatch.setattr(
            running.handlers, "write", lambda it: (seen.append(it.header.trace), write(it))
        )
        async with AsyncProducer(running.address, topic="t") as producer:
            await producer.write(value=b"x")
            await producer.flush()
    assert seen == [""]


def test_opentelemetry_is_not_loaded_without_tracing():
    """Broker and clients start without it, installed or not."""
    loaded = "import memq.broker.server, memq, sys; memq.Producer, memq.Consumer; "
    loaded += "sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
