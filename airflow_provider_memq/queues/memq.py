"""The scheme `memq` of `MessageQueueTrigger`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from airflow_provider_memq.triggers.watch import MemqWatchTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class MemqMessageQueueProvider(BaseMessageQueueProvider):
    """Makes `MessageQueueTrigger(scheme="memq", topic=...)` a `MemqWatchTrigger`.

    All keyword arguments but `scheme` are those of `MemqWatchTrigger`.
    """

    scheme = "memq"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that watches a topic."""
        return MemqWatchTrigger
