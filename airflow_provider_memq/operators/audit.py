"""`MemqAuditOperator`: was anything lost between producers, storage and consumers?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import ObjectStoragePath
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)

from airflow_provider_memq.operators.base import MemqTopicOperator, now_ms
from airflow_provider_memq.operators.window import window_of
from airflow_provider_memq.submitting import prepare, program_arguments
from airflow_provider_memq.values import duration_ms_or, iso, parse_flag
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_provider_memq.settings import ClientSettings
    from memq.core.audit_result import AuditResult

MAX_FINDINGS = 50  # in the error and the XCom; the table has all
DEFAULT_GRACE = "1m"


class MemqAuditOperator(MemqTopicOperator):
    """Reconciles what was produced, stored and consumed in a window; fails when it does not match.

    The window is the run's data interval, or what `start`, `end` or `last` say. Reports of
    producers belong to the window in which they were stored, so windows that meet judge each once;
    a window should be stored through before it is judged: put a `MemqWatermarkSensor` before it.

    A job may consume a window after it is audited: what a consumer has not come to yet is no fault
    then. So let a second task audit it again with `settled_for`, when consumers had that time.

    The failure names producer, epoch, write partition, sequences and counts of everything that is
    lost, damaged, doubled or changed, and what a consumer missed. It is not retried. The result
    is pushed before the failure, so that an `on_failure_callback`, which any notifier can be, has
    it: `{{ ti.xcom_pull(task_ids=ti.task_id) }}`, and the text in `{{ exception }}`.

    Args:
        consumers: groups and jobs that must have consumed what is stored: a list, or its text with
            commas (templated); none for all that have reported.
        start: start of the window: a time with a zone or its ISO text (templated).
        end: its end, not included (templated).
        last: or else a window up to now, such as "2h" (templated).
        deep: read every byte of every Batch (templated); otherwise their indexes.
        application: `spark_apps/audit_reconcile.py`, which a deep audit is submitted to, so that a
            cluster reads the bytes (templated); without it the task reads them itself. It needs an
            `output_dir` that Spark can write to, and adds its findings to a Parquet table in
            `_findings` there.
        spark_conn_id: connection to Spark.
        default_master: the Spark master where there is no such connection, such as "local[2]"
            (templated).
        spark_conf: settings of Spark for the submitted program (templated).
        settled_for: audit what was consumed, and nothing else, of the window that ended so long
            before this one, such as "1h" (templated): what one of `consumers` has not come to by
            now is a fault, too. Only for data intervals: with `start`, `end` or `last` the task is
            skipped.
        grace: how long a job may take: what a consumer left out is a fault only when something
            behind it was reported so long ago (templated).
        output_dir: folder or URI where the findings are kept as a CSV table (templated); empty for
            none.
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).

    Returns:
        Totals, findings, and `table`, the path to the table.

    Raises:
        AirflowFailException: something does not match.
        AirflowSkipException: `settled_for` is given, and a window as well.
        ConfigError: no window is given, or it is none; or `deep` is to be settled.
    """

    template_fields: Sequence[str] = (
        *MemqTopicOperator.template_fields,
        "consumers",
        "start",
        "end",
        "last",
        "deep",
        "settled_for",
        "grace",
        "output_dir",
        "application",
        "default_master",
        "spark_conf",
    )

    def __init__(
        self,
        *,
        consumers: Sequence[str] | str = (),
        start: Any = None,
        end: Any = None,
        last: str | None = None,
        deep: bool | str = False,
        settled_for: str | None = None,
        grace: str = DEFAULT_GRACE,
        output_dir: str = "",
        application: str = "",
        spark_conn_id: str = "memq_spark",
        default_master: str | None = None,
        spark_conf: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.consumers = consumers
        self.start = start
        self.end = end
        self.last = last
        self.deep = deep
        self.settled_for = settled_for
        self.grace = grace
        self.output_dir = output_dir
        self.application = application
        self.spark_conn_id = spark_conn_id
        self.default_master = default_master
        self.spark_conf = spark_conf
        self._submitted: SparkSubmitHook | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Audit, keep the result, and fail when something does not match."""
        from airflow_provider_memq import audit_table  # noqa: PLC0415 - DAGs parse sooner

        start_ms, end_ms = self._window(context)
        deep = parse_flag("deep", self.deep)
        if deep and self.settled_for:
            raise ConfigError("deep is about what is stored; with settled_for only reports count")
        submit = deep and bool(self.application)
        audit = self._audit_by_spark if submit else partial(self._audit, deep=deep)
        result = audit(start_ms, end_ms)
        late = audit_table.late_in_words(result, self._must_be_done())
        plain = {
            **audit_table.to_json(result, MAX_FINDINGS),
            "clean": result.clean and not late,
            "start": iso(start_ms),
            "end": iso(end_ms),
            "table": self._keep(result, start_ms, end_ms),
        }
        context["ti"].xcom_push("return_value", plain)
        self.log.info("%s", {name: each for name, each in plain.items() if name != "findings"})
        if not plain["clean"]:
            lines = late + audit_table.in_words(result, MAX_FINDINGS)
            raise AirflowFailException(
                f"topic {self.topic!r}, {plain['start']} to {plain['end']}: " + "; ".join(lines)
            )
        return plain

    def on_kill(self) -> None:
        """Stop the program that was submitted."""
        if self._submitted is not None:
            self._submitted.on_kill()

    def _window(self, context: Context) -> tuple[int, int]:
        last_ms, shift_ms = duration_ms_or(0, self.last), duration_ms_or(0, self.settled_for)
        if shift_ms:
            if last_ms or self.start or self.end:
                raise AirflowSkipException("only data intervals are audited a second time")
            start_ms, end_ms = window_of(context, None, None)
            return start_ms - shift_ms, end_ms - shift_ms
        if not last_ms:
            return window_of(context, self.start, self.end)
        if self.start or self.end:
            raise ConfigError("give either last, or start and end")
        now = now_ms()
        return now - last_ms, now

    def _audit(self, start_ms: int, end_ms: int, *, deep: bool) -> AuditResult:
        from memq.client.audit import audit_topic  # noqa: PLC0415 - DAGs parse sooner

        return self.ask(
            lambda cluster: audit_topic(
                cluster,
                self.topic,
                start_ms=start_ms,
                end_ms=end_ms,
                deep=deep,
                consumers=names_of(self.consumers),
                grace_ms=duration_ms_or(0, self.grace),
                only_consumed=bool(self.settled_for),
            )
        )

    def _must_be_done(self) -> list[str]:
        """Consumers that must have come to the end of the window."""
        return names_of(self.consumers) if self.settled_for else []

    def _audit_by_spark(self, start_ms: int, end_ms: int) -> AuditResult:
        """Submit the program; what it found is in the file that it writes last."""
        from airflow_provider_memq.hooks.memq import MemqHook  # noqa: PLC0415 - parse sooner
        from memq.core.audit_result import decode_result  # noqa: PLC0415 - likewise

        if not self.output_dir:
            raise ConfigError("a deep audit by Spark needs output_dir, to find its result there")
        settings = MemqHook(self.memq_conn_id).settings()
        file = self._file(start_ms, end_ms, "json")
        file.unlink(missing_ok=True)  # of an earlier try
        hook = SparkSubmitHook(
            conn_id=self.spark_conn_id,
            name="memq-audit",
            conf=self.spark_conf,
            application_args=self._arguments(settings, start_ms, end_ms, str(file)),
        )
        prepare(hook, settings, self.default_master)
        self._submitted = hook
        try:
            hook.submit(self.application)
        except AirflowException:  # so it ends when it finds something, too: then it says what
            if not file.exists():
                raise
        return decode_result(file.read_bytes())

    def _arguments(
        self, settings: ClientSettings, start_ms: int, end_ms: int, result: str
    ) -> list[str]:
        arguments = {
            "--topic": self.topic,
            "--from": iso(start_ms),
            "--to": iso(end_ms),
            "--grace": f"{duration_ms_or(0, self.grace)}ms",
            "--output": f"{self.output_dir.rstrip('/')}/_findings",
            "--result": result,
        }
        consumers = [text for name in names_of(self.consumers) for text in ("--consumer", name)]
        return [*program_arguments(settings, arguments), "--deep", *consumers]

    def _keep(self, result: AuditResult, start_ms: int, end_ms: int) -> str | None:
        """Write the table; an audit of the same window that is run again replaces it."""
        from airflow_provider_memq.audit_table import to_csv, to_rows  # noqa: PLC0415 - likewise

        if not self.output_dir:
            return None
        path = self._file(start_ms, end_ms, "csv")
        path.write_text(to_csv(to_rows(result)))
        return str(path)

    def _file(self, start_ms: int, end_ms: int, suffix: str) -> ObjectStoragePath:
        """The file of a window, in a folder that exists."""
        folder = ObjectStoragePath(self.output_dir) / f"topic={self.topic}"
        folder.mkdir(parents=True, exist_ok=True)
        kind = "consumed" if self.settled_for else "audit"
        return folder / f"{kind}-{start_ms:013d}-{end_ms:013d}.{suffix}"


def names_of(consumers: Sequence[str] | str) -> list[str]:
    """Names of a list, or of its text with commas."""
    given = consumers.split(",") if isinstance(consumers, str) else consumers
    return [name.strip() for name in given if name.strip()]
