"""Sensors: tasks that wait for something about a topic.

Each can wait in three ways, as Airflow's own sensors do: `mode="poke"` in a worker,
`mode="reschedule"` in a worker for the moment of each look, and `deferrable=True` in the triggerer,
with no worker slot while it waits. With `start_from_trigger=True` it never sees a worker at all.
How it ends does not depend on that: its flags, its back-off and its timeout mean the same.

The first look tells a wrong connection from an outage: it must succeed within the connection's
request timeout, or the task fails and says why. From then on brokers that do not answer, and a
connection that Airflow cannot get, are waited for, until the sensor's own timeout.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_memq.base import TakesArguments
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.links import MemqTopicLink
from airflow_provider_memq.settings import DEFAULT_CONN_ID, explain
from airflow_provider_memq.triggers import memq as triggers
from airflow_provider_memq.waiting import PASSING, may_pass
from memq.errors import ConfigError, MemqError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_provider_memq.values import Offsets
    from airflow_provider_memq.waiting import Condition, WaitOutcome
    from memq.client.cluster import Cluster


class MemqSensor(BaseSensorOperator, TakesArguments):
    """Base of the sensors here: what they have in common.

    The XCom of each is where the topic stood when the sensor was satisfied, as plain JSON:
    `{"topic": "clicks", "topic_id": "0123456789abcdef", "offsets": {"0": 12}, "watermark_ms":
    1751284800000}`, where `offsets` is one past the last offset published of each read partition.

    Args:
        topic: the topic (templated).
        topic_id: of the topic that is meant, from the XCom of another sensor (templated); empty
            for whichever there is at the first look. When the topic is recreated, the task fails;
            with `mode="reschedule"` only if it is given, for each look is a first one there.
        memq_conn_id: connection to the brokers (templated).
        deferrable: wait in the triggerer; the default is `[operators] default_deferrable`.
        start_from_trigger: begin in the triggerer and, when the task has no outlets, end there too,
            so that no worker slot is used at all. Not for mapped tasks.
        **kwargs: as every sensor has them: `poke_interval`, `timeout`, `mode`, `soft_fail`, …
    """

    trigger_type: ClassVar[type[triggers.MemqTrigger]]
    template_fields: Sequence[str] = ("topic", "topic_id", "memq_conn_id")
    operator_extra_links = (MemqTopicLink(),)
    ui_color = "#d7e8fa"
    topic_id: str

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.template_fields = ("memq_conn_id", *cls.trigger_type.condition_fields)

    def __init__(
        self,
        *,
        topic: str,
        topic_id: str = "",
        memq_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        super().__init__(**kwargs)
        self._condition: Condition | None = None
        self._answered = False
        if deferrable or start_from_trigger:
            self._check_deferrable()
        if start_from_trigger:
            self.start_trigger_args = self._start_arguments()

    def _check_deferrable(self) -> None:
        """Refuse what the triggerer would not do: it looks every `poke_interval`."""
        for name in ("exponential_backoff", "silent_fail"):
            if getattr(self, name):
                raise ConfigError(
                    f"{self.task_id}: {name} = True is for waits in a worker, and this one waits "
                    "in the triggerer; leave it out, or wait with mode='reschedule'"
                )

    def execute(self, context: Context) -> Any:
        """Wait, here or in the triggerer; returns the XCom."""
        try:
            return super().execute(context)
        except AirflowSensorTimeout as exc:
            # What the base does for a sensor that was deferred, it leaves out here.
            if self.never_fail:
                raise AirflowSkipException(f"never_fail is set: {exc}") from exc
            raise

    def _get_next_poke_interval(
        self, started_at: datetime | float, run_duration: Callable[[], float], poke_count: int
    ) -> float:
        """Seconds to the next look, which the base asks for after one that found too little.

        So whatever its flags say of a first look holds for one that defers, which happens here.
        """
        if self.deferrable:
            self.defer(
                trigger=self.trigger_type(**self._trigger_arguments()),
                method_name="execute_complete",
                timeout=timedelta(seconds=max(self.timeout - run_duration(), 0.0)),
            )
        return super()._get_next_poke_interval(started_at, run_duration, poke_count)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once.

        Raises:
            AirflowFailException: what no retry mends: a wrong connection, topic or value.
            UnavailableError: no broker answered the first look.
        """
        if self._condition is None:
            self._condition = self._make_condition()
        try:
            outcome = self._look(self._condition)
        except PASSING as exc:
            answered = self._answered or self._rescheduled(context)
            text = explain(self.memq_conn_id, exc) if isinstance(exc, MemqError) else str(exc)
            if not may_pass(exc, known=answered):
                raise AirflowFailException(text) from exc
            if not answered:
                raise UnavailableError(text) from exc
            self.log.warning("no answer, looking again later: %s", text)
            return PokeReturnValue(is_done=False)
        self._answered = True
        self.topic_id = outcome.value.get("topic_id", self.topic_id)  # for the triggerer
        self.log.info("%s", outcome.note)
        return PokeReturnValue(is_done=outcome.done, xcom_value=outcome.value)

    def execute_complete(
        self,
        context: Context,  # noqa: ARG002 - Airflow passes it by name
        event: dict[str, Any],
    ) -> dict[str, Any]:
        """Go on when the trigger fired; returns the XCom.

        Raises:
            AirflowFailException: the trigger met what no waiting mends.
        """
        if event["status"] != "success":
            raise AirflowFailException(event["message"])
        value: dict[str, Any] = event["value"]
        return value

    def _look(self, condition: Condition) -> WaitOutcome:
        async def look(cluster: Cluster) -> WaitOutcome:
            from memq.client.topic import TopicClient  # noqa: PLC0415 - DAGs parse sooner

            client = TopicClient(cluster, condition.topic, condition.topic_id)
            return await condition.look(client)

        return MemqHook(self.memq_conn_id).ask(look)

    def _make_condition(self) -> Condition:
        fields = {name: getattr(self, name) for name in self.trigger_type.condition_fields}
        try:
            return self.trigger_type.condition_type(**fields)
        except MemqError as exc:
            raise AirflowFailException(f"{self.task_id}: {exc}") from exc

    def _rescheduled(self, context: Context) -> bool:
        """Return whether an earlier check of this try was answered: else it would have failed."""
        return self.reschedule and bool(context["ti"].get_first_reschedule_date(context))

    def _trigger_arguments(self) -> dict[str, Any]:
        names = ("memq_conn_id", *self.trigger_type.condition_fields)
        return {name: getattr(self, name) for name in names} | {"poll_interval": self.poke_interval}

    def _start_arguments(self) -> StartTriggerArgs:
        """Tell Airflow how to start the trigger itself."""
        trigger = self.trigger_type
        arguments = self._trigger_arguments() | {"end_from_trigger": not self.outlets}
        return StartTriggerArgs(
            trigger_cls=f"{trigger.__module__}.{trigger.__qualname__}",
            trigger_kwargs=arguments,
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )


class MemqOffsetSensor(MemqSensor):
    """Waits until read partitions have published all offsets before those given.

    Args:
        offsets: by read partition, one past the last offset wanted, as a mapping or JSON such as
            `{"0": 5}` (templated). With `{"0": 5}` it waits for the offsets 0 to 4.
        **kwargs: as `MemqSensor`.
    """

    trigger_type = triggers.MemqOffsetTrigger

    def __init__(self, *, offsets: Offsets, **kwargs: Any) -> None:
        self._take(locals())
        super().__init__(**kwargs)


class MemqWatermarkSensor(MemqSensor):
    """Waits until all that was received and acked before a time is published.

    With its default it tells that the hour (or day) of the run is complete.

    Args:
        at: the time, as ISO text with a time zone, or a datetime (templated).
        **kwargs: as `MemqSensor`.
    """

    trigger_type = triggers.MemqWatermarkTrigger

    def __init__(self, *, at: datetime | str = "{{ data_interval_end }}", **kwargs: Any) -> None:
        self._take(locals())
        super().__init__(**kwargs)


class MemqNewDataSensor(MemqSensor):
    """Waits until so much was published since some offsets; give one of the three.

    Its XCom has `{"new": {"notifications": 3, "bytes": 1200, "records": 40}}` besides the rest.

    Args:
        since: first offset that counts, by read partition, as a mapping or JSON; of partitions not
            named all that is retained counts (templated).
        min_notifications: so many Batches (templated).
        min_bytes: so many bytes of objects (templated).
        min_records: so many LogMessages (templated).
        **kwargs: as `MemqSensor`.
    """

    trigger_type = triggers.MemqNewDataTrigger

    def __init__(
        self,
        *,
        since: Offsets,
        min_notifications: int | str | None = None,
        min_bytes: int | str | None = None,
        min_records: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        super().__init__(**kwargs)


class MemqLagSensor(MemqSensor):
    """Waits until a consumer group has at most so many Batches left to read.

    What retention has removed cannot be read, and does not count.

    Its XCom has `{"lag": {"0": 2}}` by read partition besides the rest; also `lag_records`,
    `lag_bytes` and `lag_seconds`, the age of the oldest LogMessage that is not committed.

    Args:
        group: the group (templated).
        max_lag: Batches, over all read partitions (templated).
        **kwargs: as `MemqSensor`.
    """

    trigger_type = triggers.MemqLagTrigger

    def __init__(self, *, group: str, max_lag: int | str = 0, **kwargs: Any) -> None:
        self._take(locals())
        super().__init__(**kwargs)
