"""Times of rows against times of a topic: they are the same kind, or the query has to say how.

Arrow casts any time to any other, and a number or a text as well, and takes what has no time zone
for UTC. Spark takes it for the time zone of the session, which no task of a write can know for
sure. So 12:00 of New York would be stored as 12:00 UTC, four hours off, without a word. A cast in
the query is Spark's own and right in every session, also where clocks are put forward or back.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pat

from memq.errors import SchemaMismatchError


class _Kind(NamedTuple):
    """A kind of time: what Spark calls it, and what it is."""

    spark: str
    means: str


_KINDS = (
    (lambda t: pat.is_timestamp(t) and t.tz is not None, _Kind("timestamp", "an instant")),
    (pat.is_timestamp, _Kind("timestamp_ntz", "a time without a zone")),
    (pat.is_date, _Kind("date", "a day")),
    (pat.is_time, _Kind("time", "a time of day")),
    (pat.is_duration, _Kind("interval day to second", "a duration")),
)


def check_times(rows: pa.Schema, topic_schema: pa.Schema, topic: str) -> None:
    """Refuse rows that have another kind of time than the topic, at any depth.

    Args:
        rows: schema of the rows.
        topic_schema: of the topic.
        topic: named in the error.

    Raises:
        SchemaMismatchError: naming the column, both types, and the cast to make in the query.
    """
    for field in topic_schema:
        at = rows.get_field_index(field.name)
        if at >= 0:
            _check(rows.types[at], field.type, field.name, topic)


def _check(given: pa.DataType, expected: pa.DataType, name: str, topic: str) -> None:
    if pat.is_null(given):
        return
    for part, wanted, label in _parts(given, expected, name):
        _check(part, wanted, label, topic)
    has, needs = _kind(given), _kind(expected)
    if has == needs:
        return
    hint = f"cast it to a {needs.spark}" if needs else "cast it"
    raise SchemaMismatchError(
        f"topic {topic!r} expects column {name!r} as {expected}"
        f"{f', {needs.means}' if needs else ''}, but got {given}"
        f"{f', {has.means}' if has else ''}; {hint} in the query, where Spark does it in the "
        "time zone of the session"
    )


def _kind(kind: pa.DataType) -> _Kind | None:
    return next((each for test, each in _KINDS if test(kind)), None)


def _parts(
    given: pa.DataType, expected: pa.DataType, name: str
) -> list[tuple[pa.DataType, pa.DataType, str]]:
    """What both types have inside, in pairs; where they differ in shape Arrow refuses the cast."""
    if pat.is_struct(given) and pat.is_struct(expected):
        known = {field.name: field.type for field in given}
        return [
            (known[field.name], field.type, f"{name}.{field.name}")
            for field in expected
            if field.name in known
        ]
    if pat.is_map(given) and pat.is_map(expected):
        return [
            (given.key_type, expected.key_type, f"{name}.key"),
            (given.item_type, expected.item_type, f"{name}.value"),
        ]
    if _is_list(given) and _is_list(expected):
        return [(given.value_type, expected.value_type, f"{name}.element")]
    return []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind))
