"""`MemqAuditOperator`: was anything lost between producers, storage and consumers?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_memq.base import MemqTopicOperator, now_ms
from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.launch import files
from airflow_provider_memq.launch.submitting import prepare, program_arguments
from airflow_provider_memq.lineage import assertion, folder_written, lineage, topic_read
from airflow_provider_memq.operators.window import window_of
from airflow_provider_memq.planning.audited import AuditedWindows, left_out
from airflow_provider_memq.values import duration_ms_or, iso, names_in, parse_flag
from memq.core.audit import render
from memq.core.audit.result import AuditResult, Verdict, decode_result
from memq.core.ranges import Interval
from memq.errors import ConfigError, DataLossError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Asset, Context

    from airflow_provider_memq.settings import ClientSettings

MAX_FINDINGS = 50  # in the error and the XCom; the table has all
DEFAULT_GRACE = "1m"


class _JudgedWindow(NamedTuple):
    """A window and what was found in it: the verdict, as plain JSON, and in words."""

    window: Interval
    verdict: Verdict
    plain: dict[str, Any]
    lines: list[str]


class MemqAuditOperator(MemqTopicOperator):
    """Reconciles what was produced, stored and consumed in a window; fails when it does not match.

    The window is the run's data interval, or what `start`, `end` or `last` say. Reports of
    producers belong to the window in which they were stored, so windows that meet judge each once;
    a window should be stored through before it is judged: put a `MemqWatermarkSensor` before it.

    A job may consume a window after it is audited: what a consumer has not come to yet is no fault
    then, nor is one that has reported nothing yet. So let a second task audit it again with
    `settled_for`, when consumers had that time.

    With `audited` no window goes unaudited in silence. A run whose wait or whose audit failed, and
    one that there never was, leave a window that nobody has judged: then the next scheduled run
    audits it too, after its own, as one window of its own with a table of its own.

    The failure names producer, epoch, write partition, sequences and counts of everything that is
    lost, damaged, duplicated or changed, and what a consumer missed. It is not retried. Where
    nothing is wrong but not all of the window could be judged, the failure says what could not;
    then a retry may find more: reports come late. `allow_partly` lets such a window pass. The
    result is pushed before the failure, so that an `on_failure_callback`, which any notifier can
    be, has it: `{{ ti.xcom_pull(task_ids=ti.task_id) }}`, and the text in `{{ exception }}`.

    Args:
        consumers: groups and jobs that must have consumed what is stored: a list, or its text with
            commas; none for all that have reported.
        start: start of the window: a time with a zone or its ISO text.
        end: its end, not included.
        last: or else a window up to now, such as "2h".
        deep: read every byte of every Batch; otherwise their indexes.
        application: `spark_apps/audit_reconcile.py`, which a deep audit is submitted to, so that a
            cluster reads the bytes; without it the task reads them itself. It needs an
            `output_dir` that Spark can write to, and adds its findings to a Parquet table in
            `_findings` there.
        spark_conn_id: connection to Spark.
        default_master: the Spark master where there is no such connection, such as "local[2]"
           .
        spark_conf: settings of Spark for the submitted program.
        settled_for: audit what was consumed, and nothing else, of the window that ended so long
            before this one, such as "1h": what one of `consumers` has not come to by
            now is a fault, too. Only for data intervals: with `start`, `end` or `last` the task is
            skipped.
        grace: how long a job may take: what a consumer left out is a fault only when something
            after it was reported so long ago.
        allow_partly: let a window pass of which not all could be judged, such as one in which a
            producer was killed before it could report.
        audited: asset in whose state store it is kept which windows were audited, such as
            `audited_asset(topic)`; without one each run audits its own window only. It is for
            scheduled runs: those of a backfill, or with a window of their own, leave it alone.
        output_dir: folder or URI where the findings are kept as a CSV table; empty for
            none.
        aws_conn_id: connection by which the task reads and writes there, if that is in S3; None for
            what boto3 finds by itself. Batches in S3 are read by the one that `memq_conn_id` names.
        topic: the topic.
        memq_conn_id: connection to the brokers.

    Returns:
        Totals and findings of the run's window, `table`, the path to the table, and `made_up`:
        `start`, `end`, `verdict` and `table` of each window that was left out before.

    Raises:
        AirflowFailException: something does not match.
        AirflowException: nothing is wrong, but not all could be judged.
        AirflowSkipException: `settled_for` is given, and a window as well.
        ConfigError: no window is given, or it is none; or `deep` with `settled_for`.
    """

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
        allow_partly: bool | str = False,
        audited: Asset | None = None,
        output_dir: str = "",
        aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID,
        application: str = "",
        spark_conn_id: str = "memq_spark",
        default_master: str | None = None,
        spark_conf: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        inlets = [*(kwargs.pop("inlets", None) or []), *([audited] if audited else [])]
        super().__init__(inlets=inlets, **kwargs)
        self._submitted: SparkSubmitHook | None = None
        self._own: _JudgedWindow | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Audit, keep the result, and fail when something does not match."""
        own = self._window(context)
        if parse_flag("deep", self.deep) and self.settled_for:
            raise ConfigError("deep is about what is stored; with settled_for only reports count")
        record = self._record(context)
        if record and not record.read():  # a window that fails before it is audited is made up for
            record.add(Interval(own.start, own.start))
        made_up = left_out(record.read(), own) if record else []
        for window in made_up:
            self.log.warning("nobody has audited %s yet: this run does", _in_words(window))
        judged = []
        for window in (own, *made_up):
            judged.append(self._judge(window))
            if record and judged[-1].verdict is Verdict.CLEAN:
                record.add(window)
        self._own = judged[0]
        plain = {
            **judged[0].plain,
            "made_up": [
                {name: each.plain[name] for name in ("start", "end", "verdict", "table")}
                for each in judged[1:]
            ],
        }
        context["ti"].xcom_push("return_value", plain)
        self.log.info("%s", {name: each for name, each in plain.items() if name != "findings"})
        self._settle(judged, record)
        return plain

    def _settle(self, judged: Sequence[_JudgedWindow], record: AuditedWindows | None) -> None:
        """Fail with what was found, and keep that it was: what failed a task is not reported again.

        Not sooner: had a later window failed the task, another try would not look at these again.
        """
        for each in judged:
            if record:
                record.add(each.window)
        reported = [each for each in judged if each.verdict is not Verdict.CLEAN]
        if parse_flag("allow_partly", self.allow_partly):
            partly = [each for each in reported if each.verdict is Verdict.PARTLY]
            for each in partly:
                self.log.warning("%s", self._text([each]))
            reported = [each for each in reported if each not in partly]
        if not reported:
            return
        # Another try judges the run's own window again, and may find reports that came late.
        if reported == [judged[0]] and judged[0].verdict is Verdict.PARTLY:
            raise AirflowException(self._text(reported))
        raise AirflowFailException(self._text(reported))

    def _text(self, reported: Sequence[_JudgedWindow]) -> str:
        most = max(1, MAX_FINDINGS // len(reported))  # of each: no window is reported again
        lines = "; ".join(line for each in reported for line in each.lines[:most])
        windows = " and ".join(_in_words(each.window) for each in reported)
        return f"topic {self.topic!r}, {windows}: {lines}"

    def _judge(self, window: Interval) -> _JudgedWindow:
        """Audit one window, and keep its table."""
        submit = parse_flag("deep", self.deep) and bool(self.application)
        audit = self._audit_by_spark if submit else self._audit
        result = audit(window)
        late = render.late_in_words(result, self._must_be_done())
        plain = {
            **render.summary(result, MAX_FINDINGS),
            "start": iso(window.start),
            "end": iso(window.end),
            "table": self._keep(result, window),
        }
        for line in render.totals_in_words(result):
            self.log.info("%s", line)
        if not self.settled_for:
            begun = [consumer for consumer in result.consumers if consumer.reports]
            result = msgspec.structs.replace(result, consumers=begun)
        verdict = Verdict.UNCLEAN if late else result.verdict
        plain |= {"verdict": verdict.value, "clean": verdict is Verdict.CLEAN}
        if verdict is Verdict.UNCLEAN:
            lines = late + render.faults_in_words(result, MAX_FINDINGS)
        else:
            lines = ["nothing is wrong, but not all could be judged", *render.unjudged(result)]
        return _JudgedWindow(window, verdict, plain, lines)

    def _record(self, context: Context) -> AuditedWindows | None:
        """Record which windows were audited, if this run is one that makes up for others."""
        asked = self.last or self.start or self.end
        if self.audited is None or asked or context["dag_run"].run_type != "scheduled":
            return None
        key = "consumed" if self.settled_for else "audited"
        return AuditedWindows(context["asset_state_store"][self.audited], key)

    def on_kill(self) -> None:
        """Stop the program that was submitted."""
        if self._submitted is not None:
            self._submitted.on_kill()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Report the topic, what the audit found of it, and the table. Failures are reported as
        well.
        """
        found, outputs = None, []
        if self._own is not None:
            clean = self._own.verdict is Verdict.CLEAN
            found = assertion("audit", success=clean, actual=self._own.verdict.value)
            if table := self._own.plain["table"]:
                outputs = [folder_written(table)]
        return lineage([topic_read(self.hook.settings().cluster, self.topic, [], found)], outputs)

    def _window(self, context: Context) -> Interval:
        last_ms, shift_ms = duration_ms_or(0, self.last), duration_ms_or(0, self.settled_for)
        if shift_ms:
            if last_ms or self.start or self.end:
                raise AirflowSkipException("only data intervals are audited a second time")
            start_ms, end_ms = window_of(context, None, None)
            return Interval(start_ms - shift_ms, end_ms - shift_ms)
        if not last_ms:
            return Interval(*window_of(context, self.start, self.end))
        if self.start or self.end:
            raise ConfigError("give either last, or start and end")
        now = now_ms()
        return Interval(now - last_ms, now)

    def _audit(self, window: Interval) -> AuditResult:
        from memq.client.audit.audit import audit_topic  # noqa: PLC0415 - DAGs parse sooner

        return self.hook.ask(
            lambda cluster: audit_topic(
                cluster,
                self.topic,
                start_ms=window.start,
                end_ms=window.end,
                deep=parse_flag("deep", self.deep),
                consumers=names_in(self.consumers),
                grace_ms=duration_ms_or(0, self.grace),
                only_consumed=bool(self.settled_for),
            ),
            reads_objects=True,
        )

    def _must_be_done(self) -> list[str]:
        """Consumers that must have come to the end of the window."""
        return names_in(self.consumers) if self.settled_for else []

    def _audit_by_spark(self, window: Interval) -> AuditResult:
        """Submit the program; what it found is in the file that it writes last."""
        with from_extra("spark"):
            from airflow.providers.apache.spark.hooks.spark_submit import (  # noqa: PLC0415
                SparkSubmitHook,
            )
        if not self.output_dir:
            raise ConfigError("a deep audit by Spark needs output_dir, to find its result there")
        settings = self.hook.settings()
        file = self._file(window, "json")
        files.remove(file, self.aws_conn_id)  # of an earlier try
        hook = SparkSubmitHook(
            conn_id=self.spark_conn_id,
            name="memq-audit",
            conf=self.spark_conf,
            application_args=self._arguments(settings, window, file),
        )
        prepare(hook, settings, self.default_master)
        self._submitted = hook
        failed: AirflowException | None = None
        try:
            hook.submit(self.application)
        except (
            AirflowException
        ) as exc:  # so it ends when it finds something, too: then it says what
            failed = exc
        found = files.read_if_any(file, self.aws_conn_id)
        if found is not None:
            return decode_result(found)
        raise failed or DataLossError(f"the audit ended well, and there is no result at {file}")

    def _arguments(self, settings: ClientSettings, window: Interval, result: str) -> list[str]:
        arguments = {
            "--topic": self.topic,
            "--from": iso(window.start),
            "--to": iso(window.end),
            "--grace": f"{duration_ms_or(0, self.grace)}ms",
            "--output": f"{self.output_dir.rstrip('/')}/_findings",
            "--result": result,
        }
        consumers = [text for name in names_in(self.consumers) for text in ("--consumer", name)]
        return [*program_arguments(settings, arguments), "--deep", *consumers]

    def _keep(self, result: AuditResult, window: Interval) -> str | None:
        """Write the table; an audit of the same window that is run again replaces it."""
        if not self.output_dir:
            return None
        path = self._file(window, "csv")
        files.write(path, render.to_csv(result).encode(), self.aws_conn_id)
        return path

    def _file(self, window: Interval, suffix: str) -> str:
        """Path or URI of the file of a window."""
        kind = "consumed" if self.settled_for else "audit"
        folder = f"{self.output_dir.rstrip('/')}/topic={self.topic}"
        return f"{folder}/{kind}-{window.start:013d}-{window.end:013d}.{suffix}"


def _in_words(window: Interval) -> str:
    return f"{iso(window.start)} to {iso(window.end)}"
