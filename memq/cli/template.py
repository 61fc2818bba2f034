r"""Lines of a form that the user writes, with the letters of kcat: `%t/%p/%o %k=%v\n`.

What Arrow can join is joined by it, a whole Message at a time; headers are made one by one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from memq.cli.formats import Lines, bytes_of
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.reading.batch import Batch

LETTERS = "tpokKvsShT%"
"""Topic, read partition, offset (of the Batch), key and its size, value (twice: kcat's s and rpk's
v) and its size, headers, milliseconds since 1970, and the sign itself."""

_LETTER = re.compile(rb"%(.?)", re.DOTALL)
_TEXT = pa.large_binary()


def template_lines(template: bytes, schema: pa.Schema) -> Lines:
    """Make what turns Batches into text.

    Args:
        template: text with letters, each after a percent sign.
        schema: of the topic.

    Raises:
        InvalidRequestError: there is no such letter, or the topic is a typed one.
    """
    if not schema.equals(DEFAULT_SCHEMA):
        raise InvalidRequestError(
            "a typed topic has columns, and neither key nor value; print it with --format json"
        )
    parts = _LETTER.split(template)
    for letter in parts[1::2]:
        if not letter or letter not in LETTERS.encode():
            given = letter.decode("latin-1")
            raise InvalidRequestError(f"template: %{given} is none of %{' %'.join(LETTERS)}")

    def lines(batch: Batch) -> Iterator[memoryview]:
        for rows in (section.rows for section in batch.sections if len(section.rows)):
            columns = [
                _column(part.decode(), batch, rows) if place % 2 else pa.scalar(part, _TEXT)
                for place, part in enumerate(parts)
            ]
            # The last makes a text for each row, where all others are the same for all of them.
            columns += [pa.repeat(pa.scalar(b"", _TEXT), len(rows)), pa.scalar(b"", _TEXT)]
            options = {"null_handling": "replace", "null_replacement": b""}
            yield bytes_of(pc.binary_join_element_wise(*columns, **options))

    return Lines(lines)


def _column(letter: str, batch: Batch, rows: pa.RecordBatch) -> Any:
    """Return what stands for a letter: a text for each row, or one for all."""
    said = {"t": batch.topic, "p": batch.partition, "o": batch.offset, "%": "%"}
    if letter in said:
        return pa.scalar(str(said[letter]).encode(), _TEXT)
    if letter == "T":
        return _text(pc.divide(rows.column("timestamp").view(pa.int64()), 1_000))
    if letter == "h":
        return pa.array(map(_headers, rows.column("headers").to_pylist()), _TEXT)
    column = rows.column("key" if letter in "kK" else "value")
    return (
        _text(pc.fill_null(pc.binary_length(column), -1)) if letter in "KS" else column.cast(_TEXT)
    )


def _text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.utf8()).cast(_TEXT)


def _headers(pairs: list[tuple[str, bytes | None]] | None) -> bytes:
    """Return `name=value,name=value`, as kcat does."""
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in pairs or ())
