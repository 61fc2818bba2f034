"""`MemqBackfillOperator`: the ranges of the past that are to be processed, for a mapped task."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_memq.base import MemqTopicOperator
from airflow_provider_memq.launch import files
from airflow_provider_memq.launch.range_job import check, manifest_path, written_ranges
from airflow_provider_memq.planning.backfill import Cuts, forgotten, uncut
from airflow_provider_memq.planning.ledger import check_same_topic, known_ranges
from airflow_provider_memq.planning.ranges import Limits, parse_key, range_key, to_row, touching
from airflow_provider_memq.planning.topics import (
    check_retained_since,
    contents_of,
    cut_all,
    read_state,
)
from airflow_provider_memq.range_assets import plan_asset
from airflow_provider_memq.values import count_or, names_in, parse_flag, time_ms_or_none
from memq.core.manifest import decode_manifest
from memq.core.ranges import OffsetRange
from memq.core.units import counted
from memq.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_provider_memq.planning.ranges import RangeContents
    from airflow_provider_memq.planning.topics import TopicState
    from memq.client.topic import SyncTopicClient

READERS = 8  # of manifests at a time
MAX_MAPPED = 1024  # Airflow's default of `[core] max_map_length`
MAX_NAMED = 5  # stretches of offsets in an error
PLAN_KEY = "backfill"  # of the XCom that says what is run


class MemqBackfillOperator(MemqTopicOperator):
    """Lists the ranges of a window, or of some offsets, that a mapped task is to process.

    `MemqPipeline(…).backfill()` makes a DAG of it. In one of your own, map the operator that
    processes a range over the result, `….partial(…).expand(range_key=backfill.output)`, with
    `post_execute=after_range`, by which its events name the range, and
    `map_index_template="{{ task.range_key }}"`, which names each task by its range.

    What was planned is run in whole ranges, as planned: each replaces its own output, and no other
    output holds the same rows. What is older than the first plan is cut by `max_bytes`, once and
    for good. What has a manifest that accounts for all of it is left out, so that a backfill that
    was stopped goes on when it is run again. See `airflow_provider_memq.planning.backfill`.

    Two of them at a time could cut the same: one runs at a time in all runs of the DAG
    (`max_active_tis_per_dag=1` is set).

    Args:
        ranges: the asset that the planner emits to; its plans say what was cut.
        output_dir: folder, URI or table of the results, as the processing task has it.
        manifest_dir: folder or URI of the manifests, as that task has it.
        keys: offsets wanted, as range keys: a list, or its text with commas.
        start: or else a window of time: its start, with a time zone. Without one, it
            begins with what is retained.
        end: and its end, not included.
        max_bytes: bytes of the objects of a range at most, where it is cut here.
        max_ranges: ranges of one run at most; run it again for the rest. By default as
            many as Airflow maps, `[core] max_map_length`.
        again: process also what has its manifest.
        preview: a dry run: only list what would be processed, and skip. It is the
            default, since a backfill may cost a lot.
        aws_conn_id: connection by which manifests in S3 are read.
        topic: the topic.
        memq_conn_id: connection to the brokers.

    Returns:
        The keys of the ranges, the oldest first. The XCom `backfill` has `{"topic", "ranges":
        [{"key", "partition", "start", "end", "batches", "records", "bytes"}, …], "batches",
        "bytes", "done": ranges that have their manifest, "left": ranges beyond `max_ranges`,
        "removed": ranges of which retention has removed the beginning, "dry_run"}`.

    Raises:
        TopicRecreatedError: the topic was recreated since the ranges were planned.
        OffsetOutOfRangeError: retention removed some of the Batches, or may have removed some of
            the window; the message names a read partition, and since when it is retained, or which
            range cannot be run. A window without a start does without such ranges.
        StorageError: it is not known whether a range has its manifest.
        ConfigError: nothing is planned yet, or Airflow has forgotten how; nothing or too much is
            asked for, or an argument is wrong.
    """

    def __init__(
        self,
        *,
        ranges: Asset,
        output_dir: str,
        manifest_dir: str | None = None,
        keys: Sequence[str] | str | None = None,
        start: Any = None,
        end: Any = None,
        max_bytes: int | str | None = "1GiB",
        max_ranges: int | str | None = None,
        again: bool | str = False,
        preview: bool | str = True,
        aws_conn_id: str | None = files.DEFAULT_AWS_CONN_ID,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        plan = plan_asset(ranges)
        inlets, outlets = kwargs.pop("inlets", None) or [], kwargs.pop("outlets", None) or []
        kwargs["max_active_tis_per_dag"] = 1
        super().__init__(inlets=[*inlets, plan], outlets=[*outlets, plan], **kwargs)

    def execute(self, context: Context) -> list[str]:
        """Find the ranges, list them, and hand them on."""
        dry_run, again = parse_flag("preview", self.preview), parse_flag("again", self.again)
        most = self._most()
        found, new, removed, topic_id = self._find(context)
        self._check_removed(removed)
        todo = found if again else self._unwritten(found)
        if again and len(todo) > most:
            raise ConfigError(
                f"again asks for {counted(len(todo), 'range')}, and one run takes {most}: the next "
                "run would take the same ones once more. Ask for less at a time"
            )
        taken = todo[:most]
        result = self._result(len(found), len(todo), taken)
        result |= {"removed": len(removed), "dry_run": dry_run}
        context["ti"].xcom_push(PLAN_KEY, result)
        keys = [range_key(each.range) for each in taken]
        if dry_run or not (taken or new):
            context["ti"].xcom_push("return_value", keys)
            raise AirflowSkipException("a preview runs nothing" if dry_run else "nothing is left")
        if new:
            extra = Cuts.of(new, topic_id).to_extra()
            context["outlet_events"][plan_asset(self.ranges)].extra = extra
        return keys

    def _most(self) -> int:
        mapped = conf.getint("core", "max_map_length", fallback=MAX_MAPPED)
        most = count_or(mapped, "max_ranges", self.max_ranges)
        if most == 0:
            raise ConfigError("max_ranges = 0: a run takes 1 range or more")
        return most

    def _find(
        self, context: Context
    ) -> tuple[list[RangeContents], list[OffsetRange], list[OffsetRange], str]:
        """Find the retained ranges that touch what is wanted, oldest first; those that are cut now;
        those whose beginning retention has removed; and the topic id.
        """
        last, known = known_ranges(context["inlet_events"], plan_asset(self.ranges))
        limits = Limits.read({"max_bytes": self.max_bytes})
        if last is None:
            raise ConfigError(
                f"nothing was planned yet to asset {self.ranges.name!r}, so what a plan would take "
                "is not known. Run the planner once; with start='latest' it leaves all that there "
                "is to backfills"
            )
        with self.hook.topic(self.topic) as client:
            state = read_state(self.topic, client)
            check_same_topic(last, state)
            topic_id = last.topic_id
            wanted = [self._of(state, each) for each in self._wanted(client)]
            if lost := forgotten(wanted, [*known, *last.gaps], last.origins, last.ends):
                raise ConfigError(
                    f"how {', '.join(map(str, lost[:MAX_NAMED]))} of {self.topic!r} were planned "
                    "is not known: Airflow no longer has the events of those plans (airflow db "
                    "clean). Ask for offsets that were planned since, or clear the runs of those "
                    "ranges"
                )
            stretches = uncut(wanted, known, last.origins)
            if stretches:  # also by a backfill whose event Airflow has no longer
                of = self.manifest_dir, self.output_dir, self.topic
                starts = {each.partition: 0 for each in stretches}
                written = written_ranges(of, topic_id, starts, self.aws_conn_id)
                known |= {*written} & {*uncut(written, known, last.origins)}
                stretches = uncut(wanted, known, last.origins)
            for stretch in stretches:
                client.check_retained(stretch)
            new = [each for stretch in stretches for each in cut_all(client, stretch, limits)]
            touched = touching(known, wanted)
            removed = [each for each in touched if each.start < state.starts[each.partition]]
            found = [contents_of(client, each) for each in touched if each not in removed] + new
        found.sort(key=lambda each: (each.first_ms, each.range))
        return found, [each.range for each in new], removed, topic_id

    def _check_removed(self, removed: list[OffsetRange]) -> None:
        """Do without ranges that no key and no window with a start asks for."""
        if not removed:
            return
        last = removed[-1]
        text = f"{range_key(last)} cannot be run: retention has removed its beginning"
        if len(removed) > 1:
            text += f"; and so it is with {counted(len(removed) - 1, 'range')} before"
        if keys_of(self.keys) or time_ms_or_none("start", self.start) is not None:
            raise OffsetOutOfRangeError(
                f"{text}. Without it, ask by keys: partition {last.partition}, {last.end} and later"
            )
        self.log.warning("%s. The backfill begins behind it", text)

    def _of(self, state: TopicState, wanted: OffsetRange) -> OffsetRange:
        if wanted.topic_id not in ("", state.topic_id):
            raise TopicRecreatedError(
                f"{range_key(wanted)} is of another topic id of {self.topic!r} than "
                f"{state.topic_id}, which there is now: its Batches are gone"
            )
        if wanted.partition not in state.starts:
            raise ConfigError(
                f"{range_key(wanted)}: topic {self.topic!r} has no read partition "
                f"{wanted.partition}; it has 0 to {max(state.starts)}"
            )
        return wanted._replace(topic_id=state.topic_id)

    def _wanted(self, client: SyncTopicClient) -> list[OffsetRange]:
        wanted = keys_of(self.keys)
        start_ms, end_ms = time_ms_or_none("start", self.start), time_ms_or_none("end", self.end)
        timed = start_ms is not None or end_ms is not None
        if timed == bool(wanted):
            raise ConfigError("give either keys of ranges, or a window with start, end or both")
        if start_ms is not None and end_ms is not None and end_ms <= start_ms:
            raise ConfigError(f"the window from {self.start} to {self.end} ends before it begins")
        if timed:
            wanted = [each for each in client.ranges_between(start_ms, end_ms) if each.size > 0]
        if start_ms is not None:
            check_retained_since(self.topic, client, start_ms, end_ms)
        return wanted

    def _unwritten(self, found: list[RangeContents]) -> list[RangeContents]:
        """Return the ranges whose manifest is missing or does not account for all of the range."""
        with ThreadPoolExecutor(READERS) as readers:
            written = readers.map(self._is_written, found)
            return [each for each, done in zip(found, written, strict=True) if not done]

    def _is_written(self, expected: RangeContents) -> bool:
        """Return whether a manifest accounts for a range; log one that does not."""
        path = manifest_path(self.manifest_dir, self.output_dir, self.topic, expected.range)
        payload = files.read_if_any(path, self.aws_conn_id)
        if payload is None:
            return False
        try:
            check(decode_manifest(payload), self.topic, expected)
        except (CorruptDataError, DataLossError, TopicRecreatedError) as exc:
            self.log.warning("%s does not hold, so its range is not done: %s", path, exc)
            return False
        return True

    def _result(self, found: int, todo: int, taken: list[RangeContents]) -> dict[str, Any]:
        rows = [each.to_row() | to_row(each.range) for each in taken]
        for row in rows:
            self.log.info("%(key)s: batches %(batches)d, bytes %(bytes)d", row)
        left = todo - len(taken)
        self.log.info("to do: %s; done already: %d", counted(len(taken), "range"), found - todo)
        if left:
            self.log.warning("%s more than one run takes: run it again", counted(left, "range"))
        return {
            "topic": self.topic,
            "ranges": rows,
            "batches": sum(each.batches for each in taken),
            "bytes": sum(each.size_bytes for each in taken),
            "done": found - todo,
            "left": left,
        }


def after_range(context: Any, result: Any = None) -> None:
    """Name the range in the events of a task that is mapped over ranges: its `post_execute`.

    Args:
        context: of the task.
        result: of a range operator.
    """
    key = range_key(OffsetRange(*(result[name] for name in OffsetRange._fields)))
    for asset in context["task"].outlets:
        if isinstance(asset, Asset):
            context["outlet_events"][asset].add_partitions([key])


def keys_of(keys: Sequence[str] | str | None) -> list[OffsetRange]:
    """Read the ranges that a list of keys names, or its text with commas.

    Raises:
        ConfigError: one of them names no range.
    """
    return [parse_key(each) for each in names_in(keys) if each != "None"]
