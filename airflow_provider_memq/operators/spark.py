"""`MemqSparkSubmitOperator`: run a Spark program over one exact range, and check what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import ObjectStoragePath

from airflow_provider_memq.emitted import mark_events
from airflow_provider_memq.links import MemqManifestLink, MemqTopicLink
from airflow_provider_memq.operators.base import ask_brokers
from airflow_provider_memq.ranges import parse_key
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from airflow_provider_memq.submitting import prepare, program_arguments
from memq.errors import ConfigError, DataLossError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_provider_memq.published import Expected
    from airflow_provider_memq.ranges import PlannedRange
    from memq.client.cluster import Cluster
    from memq.core.manifest import Manifest

MODES = ("failfast", "permissive")


class MemqSparkSubmitOperator(SparkSubmitOperator):
    """Submits a Spark program that reads exactly one range, and checks its result manifest.

    The program gets the arguments of `spark_apps/range_to_parquet.py`: `--bootstrap --topic
    --partition --start --end --output --manifest --job --mode`, and `--token-env` when the
    connection has a token, which travels in the environment of `spark-submit`: a driver in a
    cluster does not get it from there (see `submitting`). The program writes the range to a folder
    of its own below `output_dir`, so that running it again replaces the same files with the same
    rows, and its manifest last.

    Before the submit, the brokers are asked what the range holds: a range that retention has
    removed fails at once. After it, the manifest must be of this range, written since the submit,
    and its counts and CRC sum those of the notifications. Killing the task kills the submitted
    program. The events of its outlets say, in their extra, when the topic was made
    (`memq_topic_created_ms`), which tells it from another one of the same name.

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
        default_master: the Spark master where there is no connection `conn_id`, such as
            "local[2]" (templated); without one that is an error, and not YARN.
        durable: False submits in each try, and when the task is cleared; what an earlier try left
            running in a cluster may run beside it, and does no harm. True, the default of
            `SparkSubmitOperator`, waits for that instead; but when it has succeeded, a task that is
            cleared takes its manifest for good and submits nothing.
        **kwargs: as `SparkSubmitOperator`, but for `application_args`.

    Returns:
        The manifest as a plain dict, with `manifest`, the path to it, and without the list of
        `files`.

    Raises:
        DataLossError: the manifest is missing, or of an earlier run or another range, or its counts
            differ.
        OffsetOutOfRangeError: some of the range is not held.
        ConfigError: the key names no range, or an argument makes no sense.
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
        self.default_master = default_master
        self.manifest_url = ""

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit, wait, and check the manifest."""
        if self.mode not in MODES:
            raise ConfigError(f"mode = {self.mode!r}: must be one of {', '.join(MODES)}")
        planned = parse_key(self.range_key)
        created_ms, expected = ask_brokers(
            self.memq_conn_id, lambda cluster: self._expect(cluster, planned)
        )
        self.log.info("%s %s holds %s", self.topic, planned, expected.to_row())
        path = self.manifest_url = self.manifest or default_manifest(
            self.output_dir, self.topic, planned
        )
        self._prepare(planned, path)
        # It is not removed: a run of the same range that has just ended may not have checked it.
        earlier = None if self.durable else _payload_if_any(path)
        super().execute(context)
        manifest = read_manifest(path, earlier)
        check(manifest, self.topic, expected)
        self.log.info("%d records in %s", manifest.records, manifest.output)
        mark_events(context["outlet_events"], self.outlets, created_ms)
        return _result(manifest, path)

    async def _expect(self, cluster: Cluster, planned: PlannedRange) -> tuple[int, Expected]:
        """When the topic was made, and what the range holds."""
        from airflow_provider_memq.published import expect  # noqa: PLC0415 - DAGs parse sooner

        info = await cluster.topic(self.topic)
        return info.created_ms, await expect(cluster, self.topic, planned)

    def _prepare(self, planned: PlannedRange, manifest: str) -> None:
        """Fill in what `SparkSubmitOperator` submits; every argument is text."""
        from airflow_provider_memq.hooks.memq import MemqHook  # noqa: PLC0415 - parse sooner

        settings = MemqHook(self.memq_conn_id).settings()
        arguments = {
            "--topic": self.topic,
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
        from airflow_provider_memq.hooks.memq import MemqHook  # noqa: PLC0415 - parse sooner

        settings = MemqHook(self.memq_conn_id).settings()
        hook = super()._get_hook()
        prepare(hook, settings, self.default_master)
        return hook

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """The exact range that was read, and the folder that was written."""
        from airflow_provider_memq.hooks.memq import MemqHook  # noqa: PLC0415 - parse sooner
        from airflow_provider_memq.lineage import Range, range_lineage  # noqa: PLC0415 - optional

        cluster = MemqHook(self.memq_conn_id).settings().bootstrap.partition(",")[0]
        planned = Range(*parse_key(self.range_key))
        return range_lineage(cluster, self.topic, [planned], output=self.output_dir)


def default_manifest(output: str, topic: str, planned: PlannedRange) -> str:
    """Where a range's manifest stands when nothing else is said."""
    name = f"{planned.start:012d}-{planned.end:012d}.json"
    return f"{output.rstrip('/')}/_manifests/topic={topic}/partition={planned.partition}/{name}"


def read_manifest(path: str, earlier: bytes | None = None) -> Manifest:
    """A manifest from a file or URI.

    Args:
        path: the file or URI.
        earlier: what stood there before the job. Two runs never write the same, for each writes
            when it began and ended.

    Raises:
        DataLossError: there is none, or still the earlier one.
        CorruptDataError: it is not a manifest.
    """
    from memq.core.manifest import decode_manifest  # noqa: PLC0415 - DAGs parse sooner

    try:
        payload = ObjectStoragePath(path).read_bytes()
    except OSError as exc:
        raise DataLossError(f"the job ended without a manifest at {path}: {exc}") from exc
    if payload == earlier:
        raise DataLossError(
            f"the job ended without a manifest of its own: the one at {path} was there before"
        )
    return decode_manifest(payload)


def _payload_if_any(path: str) -> bytes | None:
    """What stands at a path; stores have many errors for nothing, and reading it later tells."""
    try:
        return ObjectStoragePath(path).read_bytes()
    except OSError:
        return None


def check(manifest: Manifest, topic: str, expected: Expected) -> None:
    """Make sure that a job has read what the notifications of its range promise.

    Raises:
        DataLossError: naming each difference.
    """
    from memq.core.manifest import check_manifest  # noqa: PLC0415 - DAGs parse sooner

    partition, start, end = expected.range
    check_manifest(manifest, topic=topic, partition=partition, start=start, end=end)
    read = manifest.messages + manifest.repeats + manifest.skipped_messages
    pairs = {"batches": (manifest.batches, expected.batches), "messages": (read, expected.messages)}
    if not manifest.repeats and not manifest.skipped_messages:
        pairs["records"] = (manifest.records, expected.records)
        pairs["crc_sum"] = (manifest.crc_sum, expected.crc_sum)
        pairs["bytes"] = (manifest.bytes, expected.bytes)
    wrong = [f"{name}: {has} of {wants}" for name, (has, wants) in pairs.items() if has != wants]
    if wrong:
        raise DataLossError(
            f"job {manifest.job!r} did not read all of {topic!r} {expected.range}: "
            + "; ".join(wrong)
        )


def _result(manifest: Manifest, path: str) -> dict[str, Any]:
    """The manifest as an XCom: small, and plain JSON. A CRC sum may pass 2**63, so it is text."""
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    del plain["files"]
    return {**plain, "crc_sum": str(manifest.crc_sum), "manifest": path}
