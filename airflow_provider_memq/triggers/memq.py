"""Triggers that wait for something about a topic and fire once; sensors defer to them.

They run in the triggerer, which runs thousands of triggers in one event loop: all they do is
awaited. Between two looks they hold no connection. An outage is waited through, whatever it takes;
the sensor's timeout is what ends it. An error that waiting cannot mend is an event too, so that the
task fails at once and says why; so is a connection that the first look of a triggerer cannot get.
"""

from __future__ import annotations

import asyncio
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_memq import waiting
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.settings import DEFAULT_CONN_ID, explain
from airflow_provider_memq.waiting import wait_until
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_provider_memq.waiting import Condition

DEFAULT_POLL_INTERVAL_S = 10.0


class MemqTrigger(BaseTrigger):
    """Base of the triggers here: what they have in common.

    Its event is `{"status": "success", "value": {...}}` with where the topic stands, or
    `{"status": "error", "message": "..."}`.

    Args:
        topic: the topic.
        topic_id: of it; empty for whichever there is at the first look.
        memq_conn_id: connection to the brokers.
        poll_interval: seconds between looks.
        end_from_trigger: end the task as a success from the triggerer, with the value as its XCom,
            instead of resuming it on a worker.
    """

    condition_type: ClassVar[Callable[..., Condition]]
    condition_fields: ClassVar[tuple[str, ...]]  # the arguments of the condition

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "condition_type" in cls.__dict__ and "condition_fields" not in cls.__dict__:
            cls.condition_fields = tuple(signature(cls.condition_type).parameters)

    def __init__(
        self,
        *,
        memq_conn_id: str = DEFAULT_CONN_ID,
        poll_interval: float = DEFAULT_POLL_INTERVAL_S,
        end_from_trigger: bool = False,
        **condition: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memq_conn_id = memq_conn_id
        self.poll_interval = poll_interval
        self.end_from_trigger = end_from_trigger
        fields = signature(type(self).condition_type).bind(**condition)
        fields.apply_defaults()
        vars(self).update(fields.arguments)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which the triggerer makes it again."""
        names = (*self.condition_fields, "memq_conn_id", "poll_interval", "end_from_trigger")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and fire once."""
        from memq.runtime.system import SYSTEM  # noqa: PLC0415 - loads the client

        try:
            fields = {name: getattr(self, name) for name in self.condition_fields}
            outcome = await wait_until(
                MemqHook(self.memq_conn_id),
                type(self).condition_type(**fields),
                poll_interval_s=self.poll_interval,
                log=self.log,
                sleep=asyncio.sleep,
                randomness=SYSTEM.random,
            )
        except (MemqError, AirflowNotFoundException) as exc:
            text = explain(self.memq_conn_id, exc) if isinstance(exc, MemqError) else str(exc)
            self.log.error("%s", text)  # noqa: TRY400 - the text says it all
            yield _event(status="error", message=text)
            return
        if self.end_from_trigger:
            yield TaskSuccessEvent(xcoms={"return_value": outcome.value})
        else:
            yield _event(status="success", value=outcome.value)


def _event(**payload: Any) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


class MemqOffsetTrigger(MemqTrigger):
    """Fires when read partitions have published all offsets before those given.

    Args:
        offsets: by read partition, one past the last offset wanted.
        **kwargs: as `MemqTrigger`.
    """

    condition_type = waiting.OffsetsReached


class MemqWatermarkTrigger(MemqTrigger):
    """Fires when all that was received and acked before a time is published.

    Args:
        at: the time, as ISO text with a time zone.
        **kwargs: as `MemqTrigger`.
    """

    condition_type = waiting.WatermarkPassed


class MemqNewDataTrigger(MemqTrigger):
    """Fires when so much was published since some offsets; give one of the three.

    Args:
        since: first offset that counts, by read partition; the first retained for those not named.
        min_notifications: so many Batches.
        min_bytes: so many bytes of objects.
        min_records: so many LogMessages.
        **kwargs: as `MemqTrigger`.
    """

    condition_type = waiting.NewData


class MemqRangeDueTrigger(MemqTrigger):
    """Fires when a read partition has so many bytes since some offsets, or at a time.

    Args:
        since: first offset that counts, by read partition.
        min_bytes: of one read partition.
        until_ms: the time, milliseconds since 1970 UTC.
        **kwargs: as `MemqTrigger`.
    """

    condition_type = waiting.RangeDue


class MemqLagTrigger(MemqTrigger):
    """Fires when a consumer group has at most so many Batches left to read.

    Args:
        group: the group.
        max_lag: Batches, over all read partitions.
        **kwargs: as `MemqTrigger`.
    """

    condition_type = waiting.LagBelow
