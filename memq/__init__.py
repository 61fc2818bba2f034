"""MemQ: a cloud-native PubSub system.

The public names are loaded when they are first used, so that `import memq` costs next to nothing
and pulls nothing heavy.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for the one of `typing`, which takes time to load
if TYPE_CHECKING:
    from memq import errors
    from memq.client.admin import AdminClient, AsyncAdminClient
    from memq.client.audit.audit import audit_topic
    from memq.client.audit.reporter import report_consumed
    from memq.client.consumer.consumer import AsyncConsumer, Consumer
    from memq.client.producer.delivery import Delivery, StoredAt
    from memq.client.producer.producer import AsyncProducer, Producer
    from memq.client.profile import profile
    from memq.client.read_range import async_scan, read_range
    from memq.core.audit.reports import ConsumedReport
    from memq.core.format.reader import BatchReader
    from memq.core.ranges import OffsetRange
    from memq.core.version import __version__ as __version__
    from memq.reading.batch import Batch, LogMessage
    from memq.tables.scan import scan

__all__ = [
    "AdminClient",
    "AsyncAdminClient",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "BatchReader",
    "ConsumedReport",
    "Consumer",
    "Delivery",
    "LogMessage",
    "OffsetRange",
    "Producer",
    "StoredAt",
    "async_scan",
    "audit_topic",
    "errors",
    "profile",
    "read_range",
    "report_consumed",
    "scan",
]

_MODULES = {
    "memq.client.admin": ("AdminClient", "AsyncAdminClient"),
    "memq.client.audit.audit": ("audit_topic",),
    "memq.client.audit.reporter": ("report_consumed",),
    "memq.reading.batch": ("Batch", "LogMessage"),
    "memq.client.consumer.consumer": ("AsyncConsumer", "Consumer"),
    "memq.client.producer.delivery": ("Delivery", "StoredAt"),
    "memq.client.producer.producer": ("AsyncProducer", "Producer"),
    "memq.client.profile": ("profile",),
    "memq.client.read_range": ("async_scan", "read_range"),
    "memq.core.audit.reports": ("ConsumedReport",),
    "memq.core.format.reader": ("BatchReader",),
    "memq.core.ranges": ("OffsetRange",),
    "memq.core.version": ("__version__",),
    "memq.tables.scan": ("scan",),
}
"""The public names of each module."""


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("memq.errors")
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module 'memq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
