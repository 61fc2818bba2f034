"""One Batch: its records, those that a filter lets through; and whether every byte is sound."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from memq.client.batches import batch_at, batch_row, check_looked_into, verify_batch
from memq.console.filters import compile_filter
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.units import iso_us
from memq.errors import InvalidRequestError
from memq.reading.objects import BatchSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow.compute as pc

    from memq.console.visit import Visit
    from memq.reading.batch import Batch, LogMessage

RECORDS = 100  # of a page
MAX_SHOWN = 1_000  # characters of a key or a value
MAX_HEADERS = 20  # of a record
NUMBER = "\0"  # a column beside those of the topic: no filter can name it


@dataclass
class OneBatch:
    """See above.

    Attributes:
        topic: its topic.
        batch: its row.
        filter: as given.
        problem: what is wrong with that; empty when nothing is.
        matches: records that it lets through.
        records: rows of these, as many as are shown.
        is_typed: the topic has columns of its own.
        findings: what does not hold; None when that was not asked.
    """

    topic: str
    batch: Mapping[str, Any]
    filter: str
    problem: str = ""
    matches: int = 0
    records: Sequence[Mapping[str, Any]] = ()
    is_typed: bool = False
    findings: Sequence[str] | None = None


async def page(visit: Visit) -> OneBatch:
    """Read a Batch through a broker."""
    topic = visit.topic()
    place = visit.number("partition") or 0, visit.number("offset") or 0
    published = await batch_at(topic, *place)
    found = OneBatch(topic.topic, batch_row(published), visit.query.get("filter", "").strip())
    async with visit.heavy:
        if visit.query.get("verify"):
            found.findings = await verify_batch(topic, published)
            return found
        check_looked_into(published)
        source = BatchSource(topic, visit.executor, read_through="broker")
        batch = (await source.fetch(published)).batch
        found.is_typed = not batch.schema.equals(DEFAULT_SCHEMA)
        try:
            found.matches, found.records = await source.run(partial(_chosen, found.filter), batch)
        except (InvalidRequestError, pa.ArrowException) as exc:
            found.problem = str(exc)
    return found


def _chosen(text: str, batch: Batch) -> tuple[int, list[dict[str, Any]]]:
    """Return how many records a filter lets through, and the first of them."""
    if text:
        batch = batch.where(partial(_wanted, compile_filter(text, batch.schema)))
    return len(batch), [_row(each) for each in batch.slice(0, RECORDS)]


def _wanted(chosen: pc.Expression, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return which rows a filter lets through."""
    numbers = pa.array(range(len(rows)), pa.int64())
    numbered = pa.Table.from_arrays([*rows.columns, numbers], [*rows.schema.names, NUMBER])
    kept = set(numbered.filter(chosen)[NUMBER].to_pylist())
    return pa.array([number in kept for number in range(len(rows))], pa.bool_())


def _row(record: LogMessage) -> dict[str, Any]:
    headers = (record.headers or [])[:MAX_HEADERS]
    return {
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [(name[:MAX_SHOWN], _text(value)) for name, value in headers],
        "timestamp": iso_us(record.timestamp_us),
        "message": f"{record.producer_id} {record.epoch}/{record.sequence}/{record.position}",
    }


def _text(value: Any) -> str | None:
    """Write a value for the eye; what is no text is escaped, what is long is cut."""
    if value is None:
        return None
    if isinstance(value, bytes):
        text = value[: 4 * MAX_SHOWN].decode(errors="backslashreplace")
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
