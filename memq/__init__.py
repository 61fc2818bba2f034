"""MemQ: a cloud-native PubSub system.

The public names are loaded when they are first used, so that `import memq` costs next to nothing
and pulls nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memq import errors
    from memq.client.admin import AdminClient, AsyncAdminClient
    from memq.client.consumer.consumer import AsyncConsumer, Consumer
    from memq.client.producer.producer import AsyncProducer, Producer
    from memq.client.read_range import read_range
    from memq.core.ranges import OffsetRange

__all__ = [
    "AdminClient",
    "AsyncAdminClient",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "OffsetRange",
    "Producer",
    "errors",
    "read_range",
]

_MODULES = {
    "AdminClient": "memq.client.admin",
    "AsyncAdminClient": "memq.client.admin",
    "AsyncConsumer": "memq.client.consumer.consumer",
    "AsyncProducer": "memq.client.producer.producer",
    "Consumer": "memq.client.consumer.consumer",
    "OffsetRange": "memq.core.ranges",
    "Producer": "memq.client.producer.producer",
    "read_range": "memq.client.read_range",
}
"""Where each public name stands."""


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("memq.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'memq' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
