"""`memq apply`: topics become what a file says.

What is to change is found out for all topics, and checked as the broker does, before anything is
changed: a change that cannot be made is named first. Nothing is ever deleted, and what the file
does not say stays.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from memq.cli.command import Command, admin_options, option
from memq.cli.output import Row, show_rows
from memq.core.options import parse_options
from memq.core.topic import TOPIC_OPTIONS, TopicConfig
from memq.errors import ConfigError, MemqError

if TYPE_CHECKING:
    from memq import AdminClient
    from memq.core.wire.messages import TopicInfo

_COLUMNS = ("topic", "option", "now", "wanted")
DIFFERS = 3  # exit code of a dry run; 2 is wrong usage


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """What a file says: options by topic, and `schema` as in `memq topic create`."""

    topics: dict[str, dict[str, str | int | bool] | None]


@click.command(
    cls=Command,
    epilog="""
memq apply topics.toml --dry-run
memq apply topics.yaml
""",
)
@click.argument(
    "path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@option("--dry-run", is_flag=True, help="Only show what would change; then the exit code is 3.")
@admin_options
def apply(*, path: Path, dry_run: bool, admin: AdminClient, output: str) -> None:
    """Make and change topics as FILE says; none is deleted.

    FILE is TOML, JSON or YAML, with the options of `memq topic create` by topic, and a schema: in
    TOML a section [topics.clicks] with retention = "30d". A second run changes nothing.
    """
    known = {each.config.name: each for each in admin.list_topics()}
    changes, rows = dict[str, _Change](), list[Row]()
    for name, given in _topics_in(path).items():
        try:
            change = changes[name] = _change_of(name, given or {}, known)
        except MemqError as exc:
            raise ConfigError(f"topic {name!r} in {path}: {exc}. Nothing was changed") from exc
        old = known[name].config if name in known else None
        now = {row.name: row.show(getattr(old, row.field)) if old else "" for row in TOPIC_OPTIONS}
        found = [(each, now[each], text) for each, text in change.texts.items()]
        found += [("schema", "", "changed" if old else "new")] * (change.schema is not None)
        found += [("", "", "new")] * (not found and old is None)
        rows += [dict(zip(_COLUMNS, (name, *each), strict=True)) for each in found]
    show_rows(rows, _COLUMNS, output)
    if dry_run:
        click.get_current_context().exit(DIFFERS if rows else 0)
    for name in {each["topic"]: None for each in rows}:
        do = admin.alter_topic if name in known else admin.create_topic
        do(name, schema=changes[name].schema, **changes[name].texts)


def _topics_in(path: Path) -> dict[str, dict[str, str | int | bool] | None]:
    try:
        return msgspec.convert(_read(path), _File).topics
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc


def _read(path: Path) -> Any:
    text = path.read_text("utf-8")
    if path.suffix in (".toml", ".json"):
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    try:
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - not everybody has it
    except ImportError as exc:
        reason = "YAML needs pyyaml (pip install pyyaml); or write .toml or .json"
        raise ConfigError(f"{path}: {reason}") from exc
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ValueError(str(exc)) from exc


class _Change(NamedTuple):
    """Options and schema of a topic that are to be set; none of either where it is as it should."""

    texts: dict[str, str]
    schema: bytes | None


def _change_of(name: str, given: dict[str, Any], known: dict[str, TopicInfo]) -> _Change:
    """Find out what is to be done about a topic.

    Raises:
        MemqError: it cannot be done.
    """
    from memq.cli.schema import read_schema  # noqa: PLC0415 - loads Arrow
    from memq.core.format.schema import deserialize_schema  # noqa: PLC0415
    from memq.core.governor.topics import Topic, altered_topic, new_topic  # noqa: PLC0415

    schema = read_schema(str(given["schema"])) if "schema" in given else None
    fields = parse_options(TOPIC_OPTIONS, {k: v for k, v in given.items() if k != "schema"})
    info = known.get(name)
    texts = {
        row.name: row.show(fields[row.field])
        for row in TOPIC_OPTIONS
        if row.field in fields
        and (info is None or getattr(info.config, row.field) != fields[row.field])
    }
    if info is None:
        made = TopicConfig.create(name, schema=schema, **texts)
        new_topic(made, known, now_ms=0, topic_id="", request_id="")
        return _Change(texts, schema)
    newest = info.schemas.pop(info.schema_id)
    if schema is not None and deserialize_schema(schema).equals(deserialize_schema(newest)):
        schema = None
    schemas = info.schemas | {info.schema_id: newest}
    there = Topic(
        config=info.config, schemas=schemas, created_ms=0, topic_id="", named_partitions=0
    )
    altered_topic(there, texts, schema, 0)
    return _Change(texts, schema)
