"""What every operator that runs a Spark program over one range does, however Spark is launched.

Theory of operation
-------------------
A range always names the same Batches, and the program writes its rows to a folder of its own and
its manifest last. So an operator needs to know nothing of Spark to be exact. In order:

1. `begin`: the brokers are asked what the range holds; a range that retention has removed fails
   here. The place of the manifest is read, once: what cannot be read now could not be read
   afterwards, so nothing is launched; what stands there is remembered.
2. The operator launches the program with `arguments`, by whatever it is the operator of, and waits
   until the program has ended well.
3. `end`: the manifest must be of this range, another one than stood there before, and its counts
   and CRC sum those of the notifications. Then, and only then, the outlets emit the range.

A manifest that is missing is data loss, and another try runs the program again. One that then
cannot be read, or is damaged, fails the task without another try, for that would run the same again
and could read no more.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.base import RANGE_OF_RUN, FailsAtOnce
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch import files
from airflow_provider_memq.launch.submitting import program_arguments
from airflow_provider_memq.lineage import range_lineage
from airflow_provider_memq.links import MemqManifestLink, MemqTopicLink
from airflow_provider_memq.planning.ledger import is_planned, mark_events
from airflow_provider_memq.planning.ranges import RangeContents, parse_key
from airflow_provider_memq.planning.topics import contents_of
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from memq.core.manifest import (
    Totals,
    check_manifest,
    check_totals,
    decode_manifest,
    describe_left_out,
)
from memq.core.ranges import OffsetRange
from memq.core.units import counted
from memq.errors import ConfigError, CorruptDataError, DataLossError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from memq.core.manifest import Manifest

MODES = ("failfast", "permissive")


class RangeRun(NamedTuple):
    """A range that is about to be processed.

    Attributes:
        expected: what its notifications promise.
        manifest: file or URI of the manifest that the program writes.
        earlier: digest of what stands there now; None for nothing.
    """

    expected: RangeContents
    manifest: str
    earlier: str | None


class RangeJobMixin(FailsAtOnce):
    """Makes an operator that launches Spark process exactly one range, and check what was done.

    It stands before the operator that launches::

        class MemqThing(RangeJobMixin, ThingOperator):
            def execute(self, context):
                run = self.begin()
                self.arguments_of_the_thing = self.arguments(run)
                super().execute(context)
                return self.end(context, run)

    A range of another topic id is refused: its offsets name other data. The events
    of the outlets say, in their extra, which one their range is of (`memq_topic_id`).

    Args:
        topic: the topic (templated).
        output_dir: folder or URI for the results of all ranges (templated).
        range_key: the range (templated); by default the partition key of the DAG run.
        manifest_dir: folder or URI of the manifests of all ranges (templated); by default
            `_manifests` below `output_dir`, which readers of the output pass over. For a table it
            must be given. Outputs may share one.
        job: name of the job, under which it reports what it consumed (templated).
        mode: "failfast", or "permissive" to skip and count damaged Messages (templated).
        job_args: more arguments for the program, all text (templated).
        memq_conn_id: connection to the brokers (templated).
        aws_conn_id: connection by which the task reads a manifest in S3; None for what boto3 finds
            by itself. Spark has credentials of its own.
        **kwargs: as the operator that launches.
    """

    operator_extra_links: Any = (MemqTopicLink(), MemqManifestLink())
    template_fields: Sequence[str] = (
        "topic",
        "output_dir",
        "range_key",
        "manifest_dir",
        "job",
        "mode",
        "job_args",
        "memq_conn_id",
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class the templates and links of all its bases."""
        super().__init_subclass__(**kwargs)
        bases = [vars(base) for base in cls.__mro__]
        fields = [name for base in bases for name in base.get("template_fields", ())]
        links = [link for base in bases for link in base.get("operator_extra_links", ())]
        cls.template_fields = tuple(dict.fromkeys(fields))
        cls.operator_extra_links = tuple({type(link): link for link in links}.values())

    def __init__(
        self,
        *,
        topic: str,
        output_dir: str,
        range_key: str = RANGE_OF_RUN,
        manifest_dir: str | None = None,
        job: str = "range_to_parquet",
        mode: str = "failfast",
        job_args: Sequence[str] = (),
        memq_conn_id: str = DEFAULT_CONN_ID,
        aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        super().__init__(**kwargs)
        self.manifest_url = ""
        self._done: dict[str, Any] | None = None

    def pre_execute(self, context: Any) -> None:
        """Refuse the range of a run that nobody planned, before Airflow runs the task.

        Raises:
            ConfigError: the run's partition key is none of those planned.
        """
        super().pre_execute(context)
        run = context["dag_run"]
        condition = getattr(context["dag"].timetable, "asset_condition", None)
        if condition is None or self.range_key != getattr(run, "partition_key", None):
            return  # the range is one that a backfill or a window has listed
        from airflow.sdk.execution_time.context import InletEventsAccessors  # noqa: PLC0415

        scheduled = getattr(condition, "objects", [condition])
        plans = [plan_asset(each) for each in scheduled if isinstance(each, Asset)]
        wanted, events = parse_key(self.range_key), InletEventsAccessors(plans)
        known = [is_planned(events, each, wanted) for each in plans]
        # What Airflow may have forgotten is believed where an event has made the run.
        if not (any(known) or (None in known and run.run_type == "asset_triggered")):
            raise ConfigError(
                f"{self.range_key} of {self.topic!r} was not planned: its rows would be there "
                "twice. Run a backfill of these offsets, with `again` where they are done"
            )

    def begin(self) -> RangeRun:
        """Look at everything that can be wrong before anything is launched.

        Raises:
            ConfigError: the key names no range, or an argument is wrong.
            TopicRecreatedError: the range is of an earlier topic of this name.
            OffsetOutOfRangeError: some of the range is not retained.
            StorageError: the place of the manifest cannot be read.
            MemqError: the brokers cannot be asked.
        """
        if self.mode not in MODES:
            raise ConfigError(f"mode = {self.mode!r}: must be one of {', '.join(MODES)}")
        wanted = parse_key(self.range_key)
        with MemqHook(self.memq_conn_id).topic(self.topic, wanted.topic_id) as client:
            expected = contents_of(client, wanted)
        self.log.info("%s %s holds %s", self.topic, wanted, expected.to_row())
        path = self.manifest_url = manifest_path(
            self.manifest_dir, self.output_dir, self.topic, expected.range
        )
        # It is not removed: a run of the same range that has just ended may not have checked it.
        return RangeRun(expected, path, digest_of(files.read_if_any(path, self.aws_conn_id)))

    def arguments(self, run: RangeRun) -> list[str]:
        """Return the arguments of the program, all text; those of `spark_apps/range_to_parquet.py`.

        A token is not among them, but `--token-env`, the variable that must hold it.
        """
        planned = run.expected.range
        arguments = {
            "--topic": self.topic,
            "--topic-id": planned.topic_id,
            "--partition": str(planned.partition),
            "--start": str(planned.start),
            "--end": str(planned.end),
            "--output": self.output_dir,
            "--manifest": run.manifest,
            "--job": self.job,
            "--mode": self.mode,
        }
        settings = MemqHook(self.memq_conn_id).settings()
        return [*program_arguments(settings, arguments), *map(str, self.job_args)]

    def end(self, context: Context, run: RangeRun) -> dict[str, Any]:
        """Check what the program did, after it has ended well; let the outlets emit the range.

        Returns:
            The manifest as a plain dict, with `manifest`, the path to it, and without the list of
            `files` and those of `left_out`.

        Raises:
            DataLossError: the manifest is missing, or of an earlier run or another range, or its
                counts differ.
            TopicRecreatedError: the program has read another topic of that name.
            AirflowFailException: the manifest cannot be read, or is none.
        """
        self.manifest_url = run.manifest
        manifest = self._manifest(run)
        check(manifest, self.topic, run.expected)
        self.log.info("%s in %s", counted(manifest.records, "record"), manifest.output)
        if left_out := describe_left_out(manifest):
            self.log.warning("not in the files: %s", left_out)
        mark_events(context["outlet_events"], self.outlets, run.expected.range.topic_id)
        self._done = _result(manifest, run.manifest)
        return self._done

    def _manifest(self, run: RangeRun) -> Manifest:
        """Read the manifest that the program wrote. Another try would run it again, and could read
        no more.
        """
        try:
            return read_manifest(run.manifest, run.earlier, self.aws_conn_id)
        except (StorageError, ConfigError, CorruptDataError) as exc:
            raise AirflowFailException(
                f"the job ended well, and its manifest cannot be read: {exc}. Its files are "
                "written, and nothing is committed. Mend that, then clear the task: it runs the "
                "range again"
            ) from exc

    def get_openlineage_facets_on_start(self) -> Any:
        """Report the exact range that is read, and the folder that is written."""
        cluster = MemqHook(self.memq_conn_id).settings().cluster
        offsets = parse_key(self.range_key)
        return range_lineage(
            cluster, self.topic, offsets, output=self.output_dir, manifest=self._done
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Report the same, and how much was written, when it was."""
        return self.get_openlineage_facets_on_start()


_MANIFEST_NAME = re.compile(r"(\d{12,})-(\d{12,})\.json")


def manifest_path(manifest_dir: str | None, output: str, topic: str, planned: OffsetRange) -> str:
    """Return where a range's manifest stands: apart for each output, topic and topic id.

    Args:
        manifest_dir: folder or URI of all manifests; None or empty for one in the output.
        output: folder, URI or table of the output.
        topic: the topic.
        planned: the range, with its topic id.

    Raises:
        ConfigError: there is no folder, and the output is a table, which is none.
    """
    if not manifest_dir and "/" not in output:
        raise ConfigError(
            f"output_dir = {output!r} names a table: say where manifests go, such as "
            "manifest_dir='s3://lake/manifests'"
        )
    partition, start, end, topic_id = planned
    output = output.rstrip("/")
    folder = f"{output}/_manifests"
    if manifest_dir:  # several outputs may have it: what is in one of them is not in the others
        folder = f"{manifest_dir.rstrip('/')}/output={_as_name(output)}"
    of_topic = f"{folder}/topic={topic}/topic_id={topic_id}"
    return f"{of_topic}/partition={partition}/{start:012d}-{end:012d}.json"


def written_ranges(
    of: tuple[str | None, str, str],
    topic_id: str,
    starts: Mapping[int, int],
    aws_conn_id: str | None,
) -> list[OffsetRange]:
    """Return the ranges that have manifests, whatever these say, sorted.

    Args:
        of: folder of manifests, output and topic, as in `manifest_path`.
        topic_id: of the topic.
        starts: by read partition, the first offset at which a range may begin.
        aws_conn_id: connection for S3.

    Raises:
        StorageError: they cannot be listed.
        ConfigError: nothing here can list such a URI.
    """
    found = []
    for partition, start in sorted(starts.items()):
        any_range = OffsetRange(partition, 0, 1, topic_id)
        folder = manifest_path(*of, any_range).rpartition("/")[0]
        names = files.names_in(folder, aws_conn_id, after=f"{start:012d}")
        bounds = filter(None, map(_MANIFEST_NAME.fullmatch, names))
        found += [any_range._replace(start=int(each[1]), end=int(each[2])) for each in bounds]
    return found


def _as_name(output: str) -> str:
    """Return an output as the name of a folder: readable, and different for each output."""
    plain = re.sub(r"[^\w.-]+", "-", output, flags=re.ASCII)
    digest = hashlib.sha256(output.encode()).hexdigest()[:8]
    return plain if plain == output else f"{plain.strip('-')}-{digest}"


def digest_of(payload: bytes | None) -> str | None:
    """Return a digest of what a file held; None when there was none."""
    return None if payload is None else hashlib.sha256(payload).hexdigest()


def read_manifest(
    path: str,
    earlier: str | None = None,
    aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID,
) -> Manifest:
    """Read a manifest from a file or URI.

    Args:
        path: the file or URI.
        earlier: `digest_of` what stood there before the job. Two runs never write the same, for
            each writes when it began and ended.
        aws_conn_id: connection for S3.

    Raises:
        DataLossError: there is none, or still the earlier one.
        StorageError: it cannot be read.
        ConfigError: nothing here can read such a URI.
        CorruptDataError: it is not a manifest.
    """
    payload = files.read_if_any(path, aws_conn_id)
    if payload is None:
        raise DataLossError(f"the job ended without a manifest: there is none at {path}")
    if digest_of(payload) == earlier:
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
    """Return the manifest as an XCom: small, and plain JSON. CRC sums may pass 2**63, so they are
    text.
    """
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    del plain["files"], plain["left_out"]
    sums = {name: str(plain[name]) for name in ("crc_sum", "left_out_crc_sum")}
    return {**plain, **sums, "manifest": path}
