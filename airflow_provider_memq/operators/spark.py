"""`MemqSparkSubmitOperator`: run a Spark program over one exact range, and check what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq import files
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.ledger import mark_events
from airflow_provider_memq.lineage import range_lineage
from airflow_provider_memq.links import MemqManifestLink, MemqTopicLink
from airflow_provider_memq.ranges import parse_key
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from airflow_provider_memq.submitting import prepare, program_arguments
from airflow_provider_memq.topics import contents_of
from memq.core.units import counted
from memq.errors import ConfigError, CorruptDataError, DataLossError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_provider_memq.ranges import RangeContents
    from memq.core.manifest import Manifest
    from memq.core.ranges import OffsetRange

MODES = ("failfast", "permissive")


class MemqSparkSubmitOperator(SparkSubmitOperator):
    """Submits a Spark program that reads exactly one range, and checks its result manifest.

    The program gets the arguments of `spark_apps/range_to_parquet.py`: `--bootstrap --topic
    --incarnation --partition --start --end --output --manifest --job --mode`, and `--token-env`
    when the connection has a token, which travels in the environment of `spark-submit`: a driver in
    a cluster does not get it from there (see `submitting`). The program writes the range to a
    folder of its own below `output_dir`, so that running it again replaces the same files with the
    same rows, and its manifest last.

    Before the submit, the brokers are asked what the range holds: a range that retention has
    removed fails at once; and the place of the manifest is read: what cannot be read now could not
    be read afterwards. After it, the manifest must be of this range, written since the submit, and
    its counts and CRC sum those of the notifications. One that then cannot be read, or is
    damaged, fails the task without another try, for that would submit the same again. Killing the
    task kills the submitted program. A range of another incarnation of the topic is refused: its
    offsets name other data. The events of its outlets say, in their extra, which one their range is
    of (`memq_incarnation`).

    Args:
        topic: the topic (templated).
        output_dir: folder or URI for the results of all ranges (templated).
        application: the program (templated).
        range_key: the range (templated); by default the partition key of the DAG run.
        manifest: file or URI of the range's manifest (templated); by default below `output_dir`, in
            `_manifests`, which readers of the output pass over.
        job: name of the job, under which it reports what it consumed (templated).
        mode: "failfast", or "permissive" to skip and count damaged Messages (templated).
        job_args: more arguments for the program, all text (templated).
        memq_conn_id: connection to the brokers (templated).
        aws_conn_id: connection by which the task reads a manifest in S3; None for what boto3 finds
            by itself. Spark has credentials of its own.
        default_master: the Spark master where there is no connection `conn_id`, such as
            "local[2]" (templated); without one that is an error, and not YARN.
        durable: False submits in each try, and when the task is cleared; what an earlier try left
            running in a cluster may run beside it, and does no harm. True, the default of
            `SparkSubmitOperator`, waits for that instead; but when it has succeeded, a task that is
            cleared takes its manifest for good and submits nothing.
        **kwargs: as `SparkSubmitOperator`, but for `application_args`.

    Returns:
        The manifest as a plain dict, with `manifest`, the path to it, and without the list of
        `files` and those of `left_out`.

    Raises:
        DataLossError: the manifest is missing, or of an earlier run or another range, or its counts
            differ.
        StorageError: before the submit: the place of the manifest cannot be read.
        AirflowFailException: after the submit: its manifest cannot be read, or is none.
        OffsetOutOfRangeError: some of the range is not retained.
        ConfigError: the key names no range, or an argument is wrong.
    """

    operator_extra_links = (MemqTopicLink(), MemqManifestLink())
    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "topic",
        "output_dir",
        "range_key",
        "manifest",
        "job",
        "mode",
        "job_args",
        "memq_conn_id",
        "default_master",
    )

    def __init__(
        self,
        *,
        topic: str,
        output_dir: str,
        application: str,
        range_key: str = "{{ dag_run.partition_key }}",
        manifest: str | None = None,
        job: str = "range_to_parquet",
        mode: str = "failfast",
        job_args: Sequence[str] = (),
        memq_conn_id: str = DEFAULT_CONN_ID,
        aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID,
        default_master: str | None = None,
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "memq-range")
        super().__init__(application=application, durable=durable, **kwargs)
        self.topic = topic
        self.output_dir = output_dir
        self.range_key = range_key
        self.manifest = manifest
        self.job = job
        self.mode = mode
        self.job_args = job_args
        self.memq_conn_id = memq_conn_id
        self.aws_conn_id = aws_conn_id
        self.default_master = default_master
        self.manifest_url = ""
        self._done: dict[str, Any] | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit, wait, and check the manifest."""
        from memq.core.manifest import describe_left_out  # noqa: PLC0415 - DAGs parse sooner

        if self.mode not in MODES:
            raise ConfigError(f"mode = {self.mode!r}: must be one of {', '.join(MODES)}")
        wanted = parse_key(self.range_key)
        with MemqHook(self.memq_conn_id).topic(self.topic, wanted.incarnation) as client:
            expected = contents_of(client, wanted)
        self.log.info("%s %s holds %s", self.topic, wanted, expected.to_row())
        path = self.manifest_url = self.manifest or default_manifest(
            self.output_dir, self.topic, expected.range
        )
        self._prepare(expected.range, path)
        # It is not removed: a run of the same range that has just ended may not have checked it.
        earlier = files.read_if_any(path, self.aws_conn_id)
        super().execute(context)
        manifest = self._manifest(path, None if self.durable else earlier)
        check(manifest, self.topic, expected)
        self.log.info("%s in %s", counted(manifest.records, "record"), manifest.output)
        if left_out := describe_left_out(manifest):
            self.log.warning("not in the files: %s", left_out)
        mark_events(context["outlet_events"], self.outlets, expected.range.incarnation)
        self._done = _result(manifest, path)
        return self._done

    def _manifest(self, path: str, earlier: bytes | None) -> Manifest:
        """What the program wrote. Another try would run it again, and could read no more."""
        try:
            return read_manifest(path, earlier, self.aws_conn_id)
        except (StorageError, ConfigError, CorruptDataError) as exc:
            raise AirflowFailException(
                f"the job ended well, and its manifest cannot be read: {exc}. Its files are "
                "written, and nothing is committed. Mend that, then clear the task: it runs the "
                "range again"
            ) from exc

    def _prepare(self, planned: OffsetRange, manifest: str) -> None:
        """Fill in what `SparkSubmitOperator` submits; every argument is text."""
        settings = MemqHook(self.memq_conn_id).settings()
        arguments = {
            "--topic": self.topic,
            "--incarnation": planned.incarnation,
            "--partition": str(planned.partition),
            "--start": str(planned.start),
            "--end": str(planned.end),
            "--output": self.output_dir,
            "--manifest": manifest,
            "--job": self.job,
            "--mode": self.mode,
        }
        self.application_args = [
            *program_arguments(settings, arguments),
            *map(str, self.job_args),
        ]

    def _get_hook(self) -> SparkSubmitHook:
        settings = MemqHook(self.memq_conn_id).settings()
        hook = super()._get_hook()
        prepare(hook, settings, self.default_master, [self.output_dir, self.manifest_url])
        return hook

    def get_openlineage_facets_on_start(self) -> Any:
        """The exact range that is read, and the folder that is written."""
        cluster = MemqHook(self.memq_conn_id).settings().cluster
        offsets = parse_key(self.range_key)
        return range_lineage(
            cluster, self.topic, offsets, output=self.output_dir, manifest=self._done
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """The same, and how much was written, when it was."""
        return self.get_openlineage_facets_on_start()


def default_manifest(output: str, topic: str, planned: OffsetRange) -> str:
    """Where a range's manifest stands when nothing else is said: apart for each incarnation."""
    partition, start, end, incarnation = planned
    folder = f"{output.rstrip('/')}/_manifests/topic={topic}/incarnation={incarnation}"
    return f"{folder}/partition={partition}/{start:012d}-{end:012d}.json"


def read_manifest(
    path: str, earlier: bytes | None = None, aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID
) -> Manifest:
    """A manifest from a file or URI.

    Args:
        path: the file or URI.
        earlier: what stood there before the job. Two runs never write the same, for each writes
            when it began and ended.
        aws_conn_id: connection for S3.

    Raises:
        DataLossError: there is none, or still the earlier one.
        StorageError: it cannot be read.
        ConfigError: nothing here can read such a URI.
        CorruptDataError: it is not a manifest.
    """
    from memq.core.manifest import decode_manifest  # noqa: PLC0415 - DAGs parse sooner

    payload = files.read_if_any(path, aws_conn_id)
    if payload is None:
        raise DataLossError(f"the job ended without a manifest: there is none at {path}")
    if payload == earlier:
        raise DataLossError(
            f"the job ended without a manifest of its own: the one at {path} was there before"
        )
    return decode_manifest(payload)


def check(manifest: Manifest, topic: str, expected: RangeContents) -> None:
    """Make sure that a manifest accounts for all that the notifications of its range promise.

    Raises:
        TopicRecreatedError: the job has read another topic of that name.
        DataLossError: naming each difference.
    """
    from memq.core.manifest import (  # noqa: PLC0415 - DAGs parse sooner
        Totals,
        check_manifest,
        check_totals,
    )

    check_manifest(manifest, topic, expected.range)
    totals = Totals(
        expected.batches,
        expected.messages,
        expected.records,
        expected.size_bytes,
        expected.crc_sum,
    )
    check_totals(manifest, totals)


def _result(manifest: Manifest, path: str) -> dict[str, Any]:
    """The manifest as an XCom: small, and plain JSON. CRC sums may pass 2**63, so they are text."""
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    del plain["files"], plain["left_out"]
    sums = {name: str(plain[name]) for name in ("crc_sum", "left_out_crc_sum")}
    return {**plain, **sums, "manifest": path}
