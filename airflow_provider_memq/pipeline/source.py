"""Settings of DAGs as people write them, in Python or in a YAML file, and what is wrong with them.

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
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_memq.pipeline.settings import OPTIONS, TopicSettings
from memq.core.options import defaults
from memq.core.topic import check_topic_name
from memq.errors import ConfigError, MemqError


class Source(NamedTuple):
    """Settings as somebody wrote them.

    Attributes:
        where: what errors call it: a file, or the class.
        topics: the topics, and the settings of each; one text for a topic that is alone.
        common: settings of all topics.
        folder: beside which the Spark programs are looked for.
    """

    where: str
    topics: object
    common: Mapping[str, Any]
    folder: Path | None = None


def read_yaml(path: str | Path) -> Source:
    """The settings in a file.

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
    """The settings of each topic.

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
    """What holds for a topic: its own, or that of all, or the default."""
    fields = defaults(OPTIONS.values()) | _read(source.common)[0] | dict(own)
    if not fields["spark_apps"] and source.folder:
        fields["spark_apps"] = str(source.folder.parent / "spark_apps")
    suffix = "" if isinstance(source.topics, str) else f".{topic}"
    return TopicSettings(topic=topic, id_suffix=suffix, **fields)


def _at_odds(topic: TopicSettings) -> list[str]:
    """What is wrong with settings that are right one by one."""
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
    """The topics with their own settings; says what cannot be one."""
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
