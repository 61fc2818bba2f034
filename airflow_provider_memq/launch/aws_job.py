"""Range jobs that AWS runs: started once, and found again after a worker has died.

Theory of operation
-------------------
A job at AWS runs on when the worker that waits for it dies. So the task notes what it is about to
start (`job_record`), and starts it with the note's token. The next try reads the note and asks the
service for the job:

- It is running, or has succeeded: it is waited for, and its manifest is checked, against what the
  note says of the range and of the manifest that stood there before. Nothing is started.
- It is over in another way, or the service knows it no more: the range is run again, with a new
  token; a manifest that the failed job may have written counts as an earlier one.
- It never came to be, for the worker died before that: it is started now, with the same token.

The operators of Airflow start a job by one call of the service's client and then wait for it. That
call is all that is changed here: it answers with the job that was found, or starts one and notes
its id. Waiting, deferring, links and the end are Airflow's own. How long is waited for a job is for
the task's `execution_timeout` to say; `waiter_max_attempts` is a backstop.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq import job_record
from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.job_record import JobRecord
from airflow_provider_memq.launch.range_job import RangeJobMixin, RangeRun
from memq.core.defaults import TOKEN_VARIABLE
from memq.errors import DataLossError

with from_extra("amazon"):
    from airflow.providers.amazon.aws.operators.base_aws import AwsBaseOperator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow.sdk import Context

LOOK_BACK = 1_000  # of the jobs that a service lists, for one that carries a token
MAX_POLLS = 2_880  # a day or two, at the 30 or 60 s of Airflow; its own limit is half an hour


class AwsRangeJobMixin(RangeJobMixin, AwsBaseOperator[Any]):
    """A range job that is started by one call of an AWS client.

    Attributes:
        starts: name of the call.
        is_over: states in which a job has ended other than well, or is about to.
        told: names of the attributes that say which job it is.
        running: the job that was started or found; empty before.
    """

    starts: ClassVar[str]
    is_over: ClassVar[frozenset[str]]
    told: ClassVar[Sequence[str]] = RangeJobMixin.template_fields
    running = ""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("waiter_max_attempts", MAX_POLLS)
        super().__init__(**kwargs)

    def execute(self, context: Context, event: Any = None) -> Any:  # noqa: ARG002 - Airflow's signature
        """Start the job or find it, wait, and check the manifest."""
        store = context["task_state_store"]
        record, job = self._earlier_try(store)
        if record is None:
            record = self._new_record()
            job_record.keep(store, record)
        self.manifest_url = record.manifest
        self.give(self.arguments(_run_of(record)), record.token)
        self._start_once(store, record, job)
        super().execute(context)
        return self._judge(context, record)

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """The same, from where the task was deferred."""
        if event is not None and event.get("status") == "failure":  # what else Airflow drops
            record = job_record.recall(context["task_state_store"], None)
            job = "a job that is noted no more" if record is None else f"job {record.job}"
            raise AirflowException(f"{job}: {event.get('message')}")
        super().execute_complete(context, event)  # type: ignore[misc]  # of the operator below
        record = job_record.recall(context["task_state_store"], None)
        if record is None:
            raise DataLossError(
                "the job ended well, and what the task had noted of it is gone from its state "
                "store. Nothing is committed; another try runs the range again"
            )
        return self._judge(context, record)

    @abstractmethod
    def give(self, arguments: list[str], token: str) -> None:
        """Fill in what the operator of Airflow starts.

        Args:
            arguments: of the program.
            token: for the job to carry.
        """

    @abstractmethod
    def state_of(self, job: str) -> str | None:
        """The state of a job; None when the service does not know it."""

    @abstractmethod
    def jobs(self) -> Iterable[tuple[str, str, str]]:
        """Id, state, and a text with the token, of the jobs that the service knows."""

    @abstractmethod
    def answer(self, job: str) -> dict[str, Any]:
        """What the call answers when it has started this job."""

    @abstractmethod
    def started(self, answer: dict[str, Any]) -> str:
        """The job that a call has started."""

    # -- the note, and the job that it is of --------------------------------------------------

    def _what(self) -> str:
        return job_record.digest({name: getattr(self, name) for name in self.told})

    def _earlier_try(self, store: Any) -> tuple[JobRecord | None, str]:
        """The note of a job that is not to be started again, and the job, if there is one."""
        record = job_record.recall(store, self._what())
        if record is None:
            return None, ""
        job, state = self._found(record)
        if state in self.is_over or (record.job and state is None):
            self.log.info("job %s of an earlier try is over: %s", job, state or "it is gone")
            return None, ""
        if job:
            self.log.info("job %s of an earlier try is found again: %s", job, state)
        return record, job

    def _found(self, record: JobRecord) -> tuple[str, str | None]:
        if record.job:
            return record.job, self.state_of(record.job)
        for job, state, text in self.jobs():
            if record.token in text:
                return job, state
        return "", None

    def _new_record(self) -> JobRecord:
        run = self.begin()
        if MemqHook(self.memq_conn_id).settings().token:
            self.log.warning(
                "the driver runs at AWS, where the token of the connection does not reach it: its "
                "environment must have %s",
                TOKEN_VARIABLE,
            )
        return JobRecord(
            what=self._what(),
            token=job_record.new_token(),
            expected=run.expected,
            manifest=run.manifest,
            earlier=run.earlier,
        )

    def _start_once(self, store: Any, record: JobRecord, job: str) -> None:
        """Make the client's call start a job that is noted, or none when there is one."""
        client = self.hook.conn
        start = getattr(type(client), self.starts)

        def once(**request: Any) -> dict[str, Any]:
            if job:
                answer = self.answer(job) | {"ResponseMetadata": {"HTTPStatusCode": 200}}
            else:
                answer = start(client, **request)
            self.running = self.started(answer)
            job_record.keep(store, msgspec.structs.replace(record, job=self.running))
            return answer

        setattr(client, self.starts, once)

    def _judge(self, context: Context, record: JobRecord) -> dict[str, Any]:
        """Check the manifest. However that ends, the job is not waited for again."""
        try:
            return self.end(context, _run_of(record))
        finally:
            job_record.forget(context["task_state_store"])


def _run_of(record: JobRecord) -> RangeRun:
    return RangeRun(record.expected, record.manifest, record.earlier)
