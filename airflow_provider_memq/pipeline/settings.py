"""The settings that the DAGs of a topic have: their defaults, limits and meanings.

Texts that tasks use may be templates, such as `{{ var.value.lake }}`, which are rendered and
checked when the task runs. The others are needed while DAGs are parsed, when nothing is looked up.

People write them in Python or in a YAML file:

    output: s3a://lake/parquet     # for all topics
    topics:
      clicks:
      views: {max_range_bytes: 4GiB}

A setting stands at the top, for all topics, or below a topic, for that one. Whatever is wrong is
found when the file is read, all of it at once; the error names file, topic, setting and value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from airflow_provider_memq.planning.ranges import Limits
from airflow_provider_memq.values import (
    count_or,
    duration_ms_or,
    names_in,
    parse_texts,
    parse_time_ms,
)
from memq.core.options import Option, defaults, options_of
from memq.core.topic import check_topic_name
from memq.core.units import DAY_MS, HOUR_MS, SECOND_MS
from memq.errors import ConfigError, MemqError

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("ranges", "hourly", "audit", "backfill", "retention")
"""The DAGs that there may be for a topic; "ranges" are two."""

MAX_RETRIES = 1_000
TEMPLATE = "{{"


def _or_template(check: Callable[[str], object]) -> Callable[[Any], str]:
    """Reads a text that a task checks again: one that is a template is checked there alone."""

    def read(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError("must be a text or a number")
        text = str(value)
        if TEMPLATE not in text:
            check(text)
        return text

    return read


_duration = _or_template(lambda text: duration_ms_or(0, text))
_count = _or_template(lambda text: count_or(0, "", text))


def _limit(name: str) -> Callable[[Any], str]:
    """Reads a limit of ranges, which the planner calls so."""
    return _or_template(lambda text: Limits.read({name: text}))


def _check_folder(text: str) -> None:
    if "/" not in text:
        raise ConfigError("must be a folder or URI, with a slash, such as s3a://lake/clicks")


_folder = _or_template(_check_folder)


def _texts(value: Any) -> list[str]:
    """Parse a list of texts, or one text with commas."""
    if not isinstance(value, str | list | tuple) or not all(isinstance(e, str) for e in value):
        raise ConfigError('must be a list of texts, such as [one, two], or one: "one,two"')
    return names_in(value)


def _kinds(value: Any) -> list[str]:
    kinds = _texts(value)
    if unknown := [each for each in kinds if each not in KINDS]:
        raise ConfigError(f"{unknown[0]!r}: must be of {', '.join(KINDS)}")
    return kinds


def _named_texts(value: Any) -> dict[str, str]:
    return parse_texts("", value)


def _time(value: Any) -> datetime | None:
    """Parse a time. YAML itself makes one of text that looks like a time or a day."""
    if value == "":
        return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime | str):
        raise ConfigError("must be a time such as 2026-01-02T03:00:00Z")
    return datetime.fromtimestamp(parse_time_ms("", value) / 1000, UTC)


def _cron(value: Any) -> str:
    from croniter import croniter  # type: ignore[import-untyped]  # noqa: PLC0415 - of Airflow

    if not isinstance(value, str) or not croniter.is_valid(value):
        raise ConfigError('must be a cron expression such as "0 * * * *"')
    return value


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the DAGs of one topic.

    Attributes:
        topic: the topic.
        id_suffix: what the ids of its DAGs end with.
        dags: which DAGs `MemqPipeline.dags` makes: of `ranges` (two: plan and process), `hourly`,
            `audit`, `backfill` and `retention`.
        owner: of all tasks, as Airflow shows it.
        pool: in which all tasks run; it must exist.
        tags: of all DAGs, besides `memq`.
        retries: of each task; audits have 3, five minutes apart, for reports come late.
        retry_delay: time between two tries.
        memq_conn_id: connection to the brokers.
        spark_conn_id: connection to Spark.
        spark_master: where Spark runs when there is no such connection; empty makes that an error.
        spark_conf: settings of Spark, by name.
        spark_packages: what Spark fetches, such as `org.apache.hadoop:hadoop-aws:3.4.2`.
        spark_apps: folder with MemQ's Spark programs.
        output: folder or URI for the Parquet files of planned ranges; where there is a table, for
            their manifests.
        table: Iceberg table into which planned ranges go, such as `prod:lake.clicks`, each once.
        group: consumer group that follows what is processed.
        max_range_bytes: how large a range may get.
        max_range_offsets: how many Batches it may have.
        min_range_bytes: a range of this size is planned at once.
        range_linger: a smaller one waits for more until it is this old.
        max_pending_ranges: while so many runs have not ended, ranges grow up to their limits before
            they are planned; 0 for never.
        max_running_ranges: how many ranges of the topic are processed at a time.
        plan_every: time between two plans at least, while data comes in all the time.
        missed_after: a range that has no run so long after it was planned is emitted again.
        gate_max_skipped: LogMessages at most that the job of a range may skip. Where a limit of the
            gate does not hold, the range does not count as processed.
        gate_min_records: LogMessages at least in a range's files.
        gate_max_age: how old its newest record may be when its last Batch is published.
        gate_columns: types by name that its Parquet files must have.
        hourly_output: folder or URI for the Parquet files of hours.
        hourly_cron: when intervals begin.
        hourly_since: every interval since this time gets its run; when it is not given, those that
            pass while Airflow is down or the DAG is paused are left out.
        hourly_on_removed: `fail` when retention may have removed Batches of an hour, or `skip` to
            take what is left.
        audit_output: folder or URI for the tables of findings.
        audit_consumers: groups and jobs that must consume everything; when it is not given, all
            that have reported, but then one that has stopped is not missed.
        audit_consumed_within: the time that they have.
        audit_grace: how long a job may take before what it left out counts.
        audit_wait: how long the watermark may take to pass the end of an hour.
        audit_since: audit begins with the hour of this time, and not with the one in which the DAG
            is let go.
        warn_before: how long before retention removes what is not processed somebody is told; when
            it is not given, half of the topic's retention.
    """

    topic: str
    id_suffix: str = ""
    dags: Annotated[list[str], Option("value", "ranges,audit,backfill,retention", read=_kinds)]
    owner: Annotated[str, Option("text", "airflow")]
    pool: Annotated[str, Option("text", "default_pool")]
    tags: Annotated[list[str], Option("value", "", read=_texts)]
    retries: Annotated[int, Option("count", 5, 0, MAX_RETRIES)]
    retry_delay_ms: Annotated[int, Option("duration", "10s", 0, DAY_MS)]
    memq_conn_id: Annotated[str, Option("text", "memq_default")]
    spark_conn_id: Annotated[str, Option("text", "memq_spark")]
    spark_master: Annotated[str, Option("text", "local[2]")]
    spark_conf: Annotated[
        dict[str, str] | None,
        Option("value", None, read=_named_texts, shown="no UI, and the loopback"),
    ]
    spark_packages: Annotated[str, Option("text", "")]
    spark_apps: Annotated[str, Option("text", "", shown="`spark_apps` beside the file's folder")]
    output: Annotated[str, Option("value", "/tmp/memq/parquet", read=_folder)]  # noqa: S108 - to try it out
    table: Annotated[str, Option("text", "")]
    group: Annotated[str, Option("text", "range_to_parquet")]
    max_range_bytes: Annotated[str, Option("value", "1GiB", read=_limit("max_bytes"))]
    max_range_offsets: Annotated[str, Option("value", "10000", read=_limit("max_offsets"))]
    min_range_bytes: Annotated[str, Option("value", "64MiB", read=_limit("min_bytes"))]
    range_linger: Annotated[str, Option("value", "5m", read=_limit("linger"))]
    max_pending_ranges: Annotated[str, Option("value", "4", read=_count)]
    max_running_ranges: Annotated[int, Option("count", 2, 1, 10_000)]
    plan_every_ms: Annotated[int, Option("duration", "10s", SECOND_MS, DAY_MS)]
    missed_after: Annotated[str, Option("value", "5m", read=_duration)]
    gate_max_skipped: Annotated[str, Option("value", "", read=_count)]
    gate_min_records: Annotated[str, Option("value", "", read=_count)]
    gate_max_age: Annotated[str, Option("value", "", read=_duration)]
    gate_columns: Annotated[dict[str, str], Option("value", "", read=_named_texts)]
    hourly_output: Annotated[str, Option("value", "/tmp/memq/hourly", read=_folder)]  # noqa: S108 - to try it out
    hourly_cron: Annotated[str, Option("value", "0 * * * *", read=_cron)]
    hourly_since: Annotated[datetime | None, Option("value", "", read=_time)]
    hourly_on_removed: Annotated[str, Option("text", "fail", choices=("fail", "skip"))]
    audit_output: Annotated[str, Option("value", "/tmp/memq/audit", read=_folder)]  # noqa: S108 - to try it out
    audit_consumers: Annotated[list[str], Option("value", "", read=_texts)]
    audit_consumed_within: Annotated[str, Option("value", "1h", read=_duration)]
    audit_grace: Annotated[str, Option("value", "10m", read=_duration)]
    audit_wait_ms: Annotated[int, Option("duration", "6h", SECOND_MS, 365 * 24 * HOUR_MS)]
    audit_since: Annotated[datetime | None, Option("value", "", read=_time)]
    warn_before: Annotated[str, Option("value", "", read=_duration)]


OPTIONS = {option.name: option for option in options_of(TopicSettings)}
"""Every setting by the name that people write."""


# -- as people write them -------------------------------------------------------------------


class Source(NamedTuple):
    """Settings as somebody wrote them.

    Attributes:
        where: what errors call it: a file, or the class.
        topics: the topics, and the settings of each; one text for a topic that is alone.
        common: settings of all topics.
        folder: next to which the Spark programs are looked for.
    """

    where: str
    topics: object
    common: Mapping[str, Any]
    folder: Path | None = None


def read_yaml(path: str | Path) -> Source:
    """Read the settings in a file.

    Raises:
        ConfigError: there is no such file, or it is not YAML with a `topic` or `topics`.
    """
    path = Path(path)
    try:
        found = _load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"{path}: {exc.strerror or exc}. Bring one with `memq examples copy dags/memq.yaml "
            f"{path.parent}`, or name the one that you have"
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: cannot be read as YAML: {exc}") from exc
    if not isinstance(found, dict) or ("topic" in found) == ("topics" in found):
        raise ConfigError(
            f"{path}: must have either `topic: clicks`, or `topics:` with names and settings below"
        )
    topics = found.pop("topic") if "topic" in found else found.pop("topics")
    return Source(str(path), topics, found, path.resolve().parent)


def settings_of(source: Source) -> list[TopicSettings]:
    """Return the settings of each topic.

    Raises:
        ConfigError: something is wrong; a line for each, with file, topic, setting and value.
    """
    problems: list[str] = []
    topics = _topics(source, problems)
    problems += _read(source.common)[1]
    found = []
    for topic, own in topics.items():
        fields, wrong = _read(own)
        found.append(_of_topic(source, topic, fields))
        wrong += _at_odds(found[-1])
        problems += [f"topic {topic!r}: {each}" for each in wrong]
    if problems:
        raise ConfigError("\n".join(f"{source.where}: {each}" for each in problems))
    return found


def _of_topic(source: Source, topic: str, own: Mapping[str, Any]) -> TopicSettings:
    """Return what holds for a topic: its own settings, or those of all, or the defaults."""
    fields = defaults(OPTIONS.values()) | _read(source.common)[0] | dict(own)
    if not fields["spark_apps"] and source.folder:
        fields["spark_apps"] = str(source.folder.parent / "spark_apps")
    suffix = "" if isinstance(source.topics, str) else f".{topic}"
    return TopicSettings(topic=topic, id_suffix=suffix, **fields)


def _at_odds(topic: TopicSettings) -> list[str]:
    """List the conflicts between settings that are right one by one."""
    wrong = []
    if not topic.spark_apps:
        wrong.append("spark_apps = '': must name the folder with MemQ's Spark programs")
    named = "{{" in topic.table or ("." in topic.table and "/" not in topic.table)
    if topic.table and not named:
        wrong.append(
            f"table = {topic.table!r}: must be a table, such as prod:lake.clicks; give "
            "output for Parquet files in a folder, and no table"
        )
    if topic.table and topic.gate_columns:
        wrong.append(
            f"gate_columns = {topic.gate_columns!r}: a table has columns of its own, which every "
            "range must fit; leave gate_columns out"
        )
    return wrong


def _topics(source: Source, problems: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return the topics with their own settings; refuse what cannot be one."""
    given = source.topics
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Sequence):
        pairs: list[tuple[Any, Any]] = [(each, None) for each in given]
    else:
        pairs = list(given.items()) if isinstance(given, Mapping) else []
    if not pairs:
        problems.append(f"topics = {given!r}: must name a topic, such as `topics: [clicks]`")
    found: dict[str, Mapping[str, Any]] = {}
    for topic, own in pairs:
        if wrong := _wrong_topic(topic, own, found):
            problems.append(wrong)
        else:
            found[topic] = own or {}
    return found


def _wrong_topic(topic: object, own: object, others: Mapping[str, object]) -> str:
    """Why it cannot be a topic with settings; empty where it can."""
    if not isinstance(topic, str):
        return f'topic {topic!r}: must be a text; write it in quotes: "{topic}"'
    if topic in others:
        return f"topic {topic!r}: stands there twice; give it once, with all its settings"
    if own is not None and not isinstance(own, Mapping):
        return f"topic {topic!r} = {own!r}: must be settings, such as {{retries: 3}}, or empty"
    try:
        check_topic_name(topic)
    except MemqError as exc:
        return f"topic {topic!r}: {exc}"
    return ""


def _read(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Fields and values; and what is wrong."""
    fields: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in given.items():
        option = OPTIONS.get(name)
        if option is None:
            wrong.append(_unknown(name, value))
            continue
        try:
            fields[option.field] = option.parse(value)
        except ConfigError as exc:
            wrong.append(_named(name, value, str(exc)))
    return fields, wrong


def _named(name: str, value: object, error: str) -> str:
    """Say an error of a value by the name of its setting, whatever name the task has for it."""
    if error.startswith(f"{name} "):
        return error
    other = re.match(rf"\w* = {re.escape(repr(value))}", error)
    return f"{name} = {value!r}" + (error[other.end() :] if other else f": {error}")


def _unknown(name: object, value: object) -> str:
    close = difflib.get_close_matches(str(name), OPTIONS, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(OPTIONS)}"
    return f"unknown setting {name!r} = {value!r}; {hint}"


def _load(text: str) -> Any:
    """YAML, in which no name may stand twice: the second one would win in silence.

    Raises:
        ValueError: it is not.
    """
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - only where there is a file

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # as the import
        """Refuses a name that stands twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names: list[Any] = []
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    continue  # `<<`: what it brings gives way to what stands here
                name = self.construct_object(key, deep=True)
                if name in names:
                    line = key.start_mark.line + 1
                    raise ValueError(f"{name!r} stands twice, again in line {line}")
                names.append(name)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as exc:
        raise ValueError(str(exc)) from exc
