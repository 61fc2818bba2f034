"""Values of one Arrow type become those of a topic's, or the first that would change is named.

Theory of operation
-------------------
Arrow casts more than a topic may: it drops fields that the other struct lacks, makes 1e300 infinite
and a wall clock's time UTC, and believes texts and dates that its own check refuses. So:

Rule 1. A value keeps its kind, at any depth: a number, a text, an instant, a day. Fields of structs
    go by their exact names. One that the topic lacks, or that stands twice, is refused.
Rule 2. What is cast is cast back and compared, bit by bit where it is a float. NaN is NaN, whatever
    its payload. An instant is the same in every zone; a text is the same as its UTF-8.
Rule 3. Nothing is null where the topic says so, at any depth, nor unsound where Arrow checks.
Rule 4. What is hidden by a null, or lies outside a slice, is no value.

Each level of nesting looks at its children without what is hidden. A child that is refused says at
which of its positions, and each level on the way up says where that is in its own terms.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from memq.core.format.envelope import ARROW_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHOWN = 100  # characters of a value in an error

_KINDS = (
    ("u?int|halffloat|float|double|decimal", "a number"),
    ("(large_)?(string|binary)|fixed_size_binary", "a text or bytes"),
    (r"timestamp\[..?, tz=", "an instant"),
    ("timestamp", "a time without a zone"),
    ("date", "a day"),
    ("time", "a time of day"),
    ("(large_|fixed_size_)?list<", "a list"),
)
"""How the name of a type begins, and what its values are; others are what their type is called."""


@dataclass
class Misfit(Exception):  # noqa: N818 - never leaves the producer, which names topic and row
    """A value does not fit.

    Attributes:
        expected: a type; None where the topic has no such field.
        found: what was found in its place; nothing for a null.
        then: what to do, or what is wrong with the value.
        at: position of the value; None where it is no single one.
        value: as it is shown.
        path: from the column to the value.
    """

    expected: object
    found: str
    then: str = ""
    at: int | None = None
    value: str = ""
    path: str = ""

    def text(self, topic: str, first_row: int | None) -> str:
        """Say it to the user; rows count from `first_row`, and are not named if it is None."""
        path = self.path.removeprefix(".")
        said = f"topic {topic!r} expects column {path!r} as {self.expected}, but {self.found}"
        if self.expected is None:
            said = f"column {path!r} is not in the schema of topic {topic!r}, which has "
            said += self.found
        if self.at is not None:
            row = "the row" if first_row is None else f"row {first_row + self.at}"
            said += f"; {row} has {self.value}" if self.found else f"{row} is null"
        return said + self.then


def fit(array: pa.Array, field: pa.Field, within: pa.Array | None = None) -> pa.Array:
    """Return the values as what a field takes; not copied where they are that already.

    Args:
        array: the values.
        field: of the topic.
        within: the structs that they are in, whose nulls are not theirs.

    Raises:
        Misfit: a value would not come back the same.
    """
    array, kind = _decoded(array), field.type
    if not field.nullable and array.null_count > (within.null_count if within is not None else 0):
        nulls = array.is_null()
        at = _first(nulls if within is None else pc.and_(nulls, within.is_valid()))
        raise Misfit(f"{kind}, not null", "", at=at)
    if pat.is_null(array.type):
        return _nulls(kind, len(array))
    has, needs = _kind_of(array.type), _kind_of(kind)
    if has != needs:
        at = _first(array.is_valid())
        found = f"got {array.type}, {has}"
        raise Misfit(f"{kind}, {needs}", found, "; cast it first", at, _shown(array, at))
    if pat.is_struct(kind):
        return fit_struct(array, kind)
    if pat.is_map(kind):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        offsets = pc.add(_offsets(array), 0)  # a copy, as those of a slice go with no mask
        array = pa.ListArray.from_arrays(offsets, entries, mask=array.is_null())
        return _fit_list(array, kind)
    return _fit_list(array, kind) if pat.is_nested(kind) else _fit_leaf(array, kind)


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    """Return nulls; those of `pa.nulls` have children that no slice gets rid of."""
    return pa.array([], kind).take(pa.nulls(count, pa.int32()))


def _kind_of(kind: pa.DataType) -> str:
    words = (words for start, words in _KINDS if re.match(start, str(kind)))
    return next(words, re.split(r"\W", str(kind))[0])


@contextmanager
def _inside(label: str, row_of: Callable[[int], int] = int) -> Iterator[None]:
    try:
        yield
    except Misfit as wrong:
        wrong.path = label + wrong.path
        wrong.at = None if wrong.at is None else row_of(wrong.at)
        raise


def _decoded(array: Any) -> pa.Array:
    """Return the values without what is only another way to write them down."""
    if isinstance(array, pa.ExtensionArray):
        return _decoded(array.storage)
    if pat.is_dictionary(array.type):
        words = _decoded(array.dictionary)  # nested ones stay: Arrow dies of some it took from
        return array if pat.is_nested(words.type) else words.take(array.indices)
    if pat.is_string_view(array.type):  # which Arrow cannot take from
        return array.cast(pa.large_binary()).view(pa.large_utf8())
    return array.cast(pa.large_binary()) if pat.is_binary_view(array.type) else array


def fit_struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """Return structs as those of a type; the rows of a table are structs, too.

    Raises:
        Misfit: as `fit`.
    """
    known, parts = [field.name for field in kind], {}
    for name, part in zip([field.name for field in array.type], array.flatten(), strict=True):
        with _inside(f".{name}"):
            if name in parts:
                raise Misfit("one", "it is there more than once; rename or drop one")
            if name not in known:
                near = [each for each in known if each.casefold() == name.casefold()]
                hint = f"; names differ by case: rename it to {near[0]!r}" if near else ""
                at = _first(part.is_valid())
                raise Misfit(None, ", ".join(known) or "none", hint, at, _shown(part, at))
        parts[name] = part
    fitted = []
    for field in kind:
        with _inside(f".{field.name}"):
            if field.name in parts:
                fitted.append(_filled(fit(parts[field.name], field, array), field))
            elif field.nullable:
                fitted.append(_nulls(field.type, len(array)))
            else:
                raise Misfit(f"{field.type}, not null", "the rows have no such column")
    return pa.StructArray.from_arrays(fitted, fields=list(kind), mask=array.is_null())


def _filled(part: pa.Array, field: pa.Field) -> pa.Array:
    """Return a field with something below null structs where it may not be null, as Arrow has it;
    those who write Parquet refuse a null there.
    """
    if field.nullable or not part.null_count:
        return part
    filler = pa.array([None], pa.struct([field])).field(0)
    places = pc.cumulative_sum(pa.repeat(1, len(part)), start=-1)
    places = pc.if_else(part.is_valid(), places, len(part))
    return pa.concat_arrays([part, filler]).take(places)


def _fit_list(array: Any, kind: Any) -> pa.Array:
    """Return lists with their values fitted; a map is one of keys and values."""
    lengths = pc.list_value_length(array)
    if not pat.is_fixed_size_list(array.type):  # what follows believes the offsets
        type(array).from_arrays(_offsets(array), pa.nulls(len(array.values))).validate(full=True)
    if pat.is_fixed_size_list(kind):
        at = _first(pc.not_equal(lengths, kind.list_size))
        if at is not None:
            then = f", not of length {kind.list_size}"
            raise Misfit(kind, f"got {array.type}", then, at, _shown(array, at))
    # Arrow dies of flattening lists of which none has a value, where these are dictionaries.
    values = array.flatten() if pc.sum(lengths).as_py() else array.values.slice(0, 0)
    ends = pc.cumulative_sum_checked(lengths.fill_null(0).cast(pa.int64()))
    row_of = lambda at: bisect_right(ends, at, key=lambda end: end.as_py())  # noqa: E731 - short
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    offsets = offsets.cast(pa.int64() if pat.is_large_list(kind) else pa.int32())
    if pat.is_map(kind):
        with _inside("[].key", row_of):
            keys = fit(values.field(0), kind.key_field)
        with _inside("[].value", row_of):
            items = fit(values.field(1), kind.item_field)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())
    with _inside("[]", row_of):
        values = fit(values, kind.value_field)
    if pat.is_large_list(kind):
        return pa.LargeListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if not pat.is_fixed_size_list(kind):
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if array.null_count:  # a null list has places below it as well; they hold nulls
        places = pc.subtract(pc.cumulative_sum(pa.repeat(1, len(values))), 1)
        lists = pa.ListArray.from_arrays(offsets, places, mask=array.is_null())
        lists = pc.coalesce(lists, pa.scalar([None] * kind.list_size, lists.type))
        values = values.take(lists.flatten())
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=array.is_null())


def _offsets(array: Any) -> pa.Array:
    """Return the offsets of lists; Java leaves out those of none, and Arrow would read them."""
    return array.offsets if len(array) else pa.array([0], array.offsets.type)


def _fit_leaf(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if (fitted := _cast(array, kind)) is not None:
        return fitted
    at: int | None = bisect_left(
        range(len(array)), True, key=lambda at: _cast(array.slice(0, at + 1), kind) is None
    )
    if at == len(array) or not array[at].is_valid:  # no value of the type is taken
        at = _first(array.is_valid())
    then = ", which that cannot hold unchanged"
    raise Misfit(kind, f"got {array.type}", then, at, _shown(array, at))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return the values as this type; None where one is unsound, or does not come back the same."""
    try:
        array.validate(full=True)
        if array.type.equals(kind):
            return array
        fitted = array.cast(kind)
        back = fitted.cast(array.type)
    except ARROW_ERRORS:
        return None
    if pat.is_floating(array.type):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[array.type.bit_width]
        nans = pc.and_(pc.is_nan(array), pc.is_nan(back))
        same = pc.or_(pc.equal(array.view(bits), back.view(bits)), nans)
    else:
        same = pc.equal(array, back)
    return None if _first(pc.invert(same)) is not None else fitted


def _first(flags: Any) -> int | None:
    at = pc.index(flags, True).as_py()
    return None if at < 0 else at


def _shown(array: pa.Array, at: int | None) -> str:
    if at is None:
        return ""
    one = array.slice(at, 1)
    if pat.is_date64(one.type):  # Python has no milliseconds of days, nor nanoseconds of times
        one = one.view(pa.int64())
    try:
        if not pat.is_time(one.type):
            return shown(one[0].as_py())
    except UnicodeDecodeError:
        return shown(one.cast(pa.large_binary())[0].as_py())
    except ARROW_ERRORS:  # no Python object has this value
        pass
    return shown(one.to_string(skip_new_lines=True))


def shown(value: object) -> str:
    """Return a value as errors show it."""
    text = str(value) if hasattr(value, "isoformat") else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
