"""Range jobs that AWS runs: started once, and found again after a worker has died.

Theory of operation
-------------------
A job at AWS runs on when the worker that waits for it dies. So the task notes it in its state
store, which its tries share: before the start, what the range promises and a token; after it, the
service's id of the job. The next try reads the note and asks the service for the job:

- It is running, or has succeeded: it is waited for, and its manifest is checked, against what the
  note says of the range and of the manifest that stood there before. Nothing is started.
- It is over in another way, or the service knows it no more: the range is run again, with a new
  token; a manifest that the failed job may have written counts as an earlier one.
- Its id was not noted, for the worker died before that: it is started with the same token. A
  service that takes tokens starts no second job. Another one may: both write the same rows to the
  same place.

The note is deleted when the result has been judged, so a task that is cleared runs its range again.

The operators of Airflow start a job by one call of the service's client and then wait for it. That
call is all that is changed here: it answers with the job that was found, or starts one and notes
its id. Waiting, deferring, links and the end are Airflow's own. How long is waited for a job is for
the task's `execution_timeout` to say; `waiter_max_attempts` is a backstop.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch.range_job import RangeJobMixin, RangeRun
from memq.core.decoding import UNDECODABLE
from memq.core.defaults import TOKEN_VARIABLE
from memq.errors import ConfigError, DataLossError

with from_extra("amazon"):
    import jmespath  # type: ignore[import-untyped]
    from airflow.providers.amazon.aws.operators.base_aws import AwsBaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

NOTE = "memq_range_job"  # key in the task's state store
MAX_POLLS = 2_880  # a day or two, at the 30 or 60 s of Airflow; its own limit is half an hour


class JobNote(msgspec.Struct, frozen=True):
    """A job that a task started, or is about to start.

    Attributes:
        told: digest of what the task was told; a note of something else is none.
        token: for the service, which starts one job of a token where it can.
        run: the range, its manifest, and what stood there before the start.
        job: the service's id of the job; empty until it is known.
    """

    told: str
    token: str
    run: RangeRun
    job: str = ""


class AwsRangeJobMixin(RangeJobMixin, AwsBaseOperator[Any]):
    """A range job that is started by one call of an AWS client.

    Attributes:
        starts: name of the call that starts a job.
        answers: what its answer calls the job's id.
        asks: name of the call that tells of a job.
        state_at: where that has the job's state.
        unknown: the error for a job that the service does not know.
        is_over: states in which a job has ended other than well, or is about to.
        running: the job that was started or found; empty before.
    """

    starts: ClassVar[str]
    answers: ClassVar[str]
    asks: ClassVar[str]
    state_at: ClassVar[str]
    unknown: ClassVar[str]
    is_over: ClassVar[frozenset[str]]
    running = ""

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {"waiter_max_attempts": MAX_POLLS, "wait_for_completion": True} | kwargs
        if not kwargs["wait_for_completion"]:
            raise ConfigError("wait_for_completion = False: the manifest is checked after the job")
        super().__init__(**kwargs)

    def execute(self, context: Context, event: Any = None) -> Any:  # noqa: ARG002 - Airflow's signature
        """Start the job or find it, wait, and check the manifest."""
        store = context["task_state_store"]
        note = self._earlier_note(store)
        if note is None:
            note = self._new_note()
            _keep(store, note)
        self.manifest_url = note.run.manifest
        self.give(self.arguments(note.run), note.token)
        self._start_once(store, note)
        super().execute(context)
        return self._judge(context, note)

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Do the same, from where the task was deferred."""
        note = _recall(context["task_state_store"])
        if event is not None and event.get("status") == "failure":  # what else Airflow drops
            raise AirflowException(f"job {note.job if note else '?'}: {event.get('message')}")
        super().execute_complete(context, event)  # type: ignore[misc]  # of the operator below
        if note is None:
            raise DataLossError(
                "the job ended well, and what the task had noted of it is gone from its state "
                "store. Nothing is committed; another try runs the range again"
            )
        return self._judge(context, note)

    @abstractmethod
    def give(self, arguments: list[str], token: str) -> None:
        """Fill in what the operator of Airflow starts.

        Args:
            arguments: of the program.
            token: for the service to start one job of.
        """

    @abstractmethod
    def key_of(self, job: str) -> dict[str, Any]:
        """Return the arguments of the call that tells of a job."""

    # -- the note, and the job that it is of --------------------------------------------------

    def _told(self) -> str:
        told = {name: getattr(self, name) for name in self.template_fields}
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()

    def _earlier_note(self, store: Any) -> JobNote | None:
        """Return the note of a job that is not to be started again."""
        note = _recall(store)
        if note is None or note.told != self._told():
            return None
        state = self._state_of(note.job) if note.job else ""
        self.log.info("job %s of an earlier try: %s", note.job, state or "it is unknown")
        return None if state is None or state in self.is_over else note

    def _state_of(self, job: str) -> str | None:
        """Ask for the state of a job; None when the service does not know it."""
        client = self.hook.conn
        try:
            found = getattr(client, self.asks)(**self.key_of(job))
        except getattr(client.exceptions, self.unknown):
            return None
        state: str | None = jmespath.search(self.state_at, found)
        return state

    def _new_note(self) -> JobNote:
        told, run = self._told(), self.begin()
        if MemqHook(self.memq_conn_id).settings().token:
            self.log.warning(
                "the driver runs at AWS, where the token of the connection does not reach it: its "
                "environment must have %s",
                TOKEN_VARIABLE,
            )
        return JobNote(told, secrets.token_hex(16), run)

    def _start_once(self, store: Any, note: JobNote) -> None:
        """Make the client's call start a job that is noted, or none when there is one."""
        client = self.hook.conn
        start = getattr(type(client), self.starts)

        def once(**request: Any) -> dict[str, Any]:
            if note.job:
                found = [note.job] if self.answers.endswith("s") else note.job
                done: dict[str, Any] = {"HTTPStatusCode": 200}
                answer = {self.answers: found, "ResponseMetadata": done}
            else:
                answer = start(client, **request)
            started: Any = answer[self.answers]
            self.running = started[0] if isinstance(started, list) else started
            _keep(store, msgspec.structs.replace(note, job=self.running))
            return answer

        setattr(client, self.starts, once)

    def _judge(self, context: Context, note: JobNote) -> dict[str, Any]:
        """Check the manifest. However that ends, the job is not waited for again."""
        try:
            return self.end(context, note.run)
        finally:
            context["task_state_store"].delete(NOTE)


def _recall(store: Any) -> JobNote | None:
    """Read the note of an earlier try; one of another version of this package counts as none."""
    kept = store.get(NOTE)
    try:
        return None if kept is None else msgspec.json.decode(kept, type=JobNote)
    except (*UNDECODABLE, TypeError):
        return None


def _keep(store: Any, note: JobNote) -> None:
    store.set(NOTE, msgspec.json.encode(note).decode())
