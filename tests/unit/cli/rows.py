"""Schemas and rows of any kind, for what turns rows into text and back."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pyarrow.types as pat
from hypothesis import strategies as st

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
CLEAN_NAMES = st.text(  # as JSON can have them without escapes
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\'), max_size=5
)
UNITS = ("s", "ms", "us", "ns")
PLAIN = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary(), pa.binary(7)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.decimal32(5, 1), pa.decimal64(12, 0), pa.decimal128(38, 38)),
    *(pa.timestamp(unit) for unit in UNITS),
    *(pa.timestamp(unit, "Europe/Berlin") for unit in UNITS),
    *(pa.duration(unit) for unit in UNITS),
)


def fields(types, names=NAMES):
    """Columns, and fields inside of types."""
    return st.builds(
        lambda name, kind, nullable: pa.field(name, kind, nullable or pat.is_null(kind)),
        names,
        types,
        st.booleans(),
    )


def keys(types, names):
    """Keys of a map."""
    of_values = types.filter(lambda kind: not pat.is_null(kind))
    return fields(of_values, names | st.just("key")).map(lambda each: each.with_nullable(False))


def nested(types, names=NAMES):
    """Types that have others inside."""
    items = fields(types, names | st.just("item"))
    values = fields(types, names | st.just("value"))
    several = st.lists(fields(types, names), max_size=3, unique_by=lambda each: each.name)
    return (
        items.map(pa.list_)
        | items.map(pa.large_list)
        | st.builds(pa.list_, items, st.integers(1, 9))
        | several.map(pa.struct)
        | st.builds(pa.map_, keys(types, names), values, st.booleans())
    )


def schemas(types, names=NAMES):
    """Schemas with columns of some types."""
    columns = st.lists(
        fields(types, names), min_size=1, max_size=4, unique_by=lambda each: each.name
    )
    return columns.map(pa.schema)


TYPES = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=6)
SCHEMAS = schemas(TYPES)

COARSE = [kind for kind in PLAIN if getattr(kind, "unit", "") != "ns" and not pat.is_duration(kind)]
TEXT_TYPES = st.recursive(
    st.sampled_from(COARSE), lambda types: nested(types, CLEAN_NAMES), max_leaves=4
) | st.sampled_from([pa.timestamp("ns"), pa.timestamp("ns", "UTC")])
"""Types whose values text can hold: Python, which makes nested ones into text, has no ns."""


# -- values ---------------------------------------------------------------------------------


BITS = {pa.int8(): (-(2**7), 2**7 - 1), pa.int64(): (-(2**63), 2**63 - 1)}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
DAY = 86_400
CALENDAR_S = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999
PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def ticks(low_s, high_s, unit):
    """Ticks of a unit."""
    low, high = low_s * PER_S[unit], high_s * PER_S[unit]
    most = 2**63 - 10**12  # Arrow reads no text of the outermost times in ns
    return st.integers(max(low, -most), min(high, most))


def values(kind):  # noqa: PLR0911 - a table of types
    """Values of a type as Arrow takes them; times as their ticks."""
    if pat.is_null(kind):
        return st.none()
    if pat.is_boolean(kind):
        return st.booleans()
    if pat.is_integer(kind):
        return st.integers(*BITS.get(kind, (0, 2**64 - 1)))
    if pat.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pat.is_string(kind) or pat.is_large_string(kind):
        return TEXTS
    if pat.is_fixed_size_binary(kind) and not pat.is_decimal(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pat.is_binary(kind) or pat.is_large_binary(kind):
        return st.binary(max_size=6) | TEXTS.map(str.encode) | st.just(b'{"base64":"AA=="}')
    if pat.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(
            lambda number: Decimal(number).scaleb(-kind.scale, Context(prec=50))
        )
    if pat.is_date32(kind):
        return st.integers(CALENDAR_S[0] // DAY, CALENDAR_S[1] // DAY)
    if pat.is_date64(kind):
        return st.integers(CALENDAR_S[0] // DAY, CALENDAR_S[1] // DAY).map(
            lambda day: day * DAY * 1_000
        )
    if pat.is_time(kind):
        return ticks(0, DAY - 1, kind.unit)
    if pat.is_timestamp(kind):
        return ticks(CALENDAR_S[0] + 2 * DAY, CALENDAR_S[1] - 2 * DAY, kind.unit)
    if pat.is_struct(kind):
        return st.fixed_dictionaries({each.name: cells(each) for each in kind})
    if pat.is_map(kind):
        pairs = st.tuples(cells(kind.key_field), cells(kind.item_field))
        return st.lists(pairs, max_size=3)
    size = kind.list_size if pat.is_fixed_size_list(kind) else None
    return st.lists(
        cells(kind.value_field), min_size=size or 0, max_size=3 if size is None else size
    )


def cells(field):
    """Values of a field, null among them where that is allowed."""
    return st.none() | values(field.type) if field.nullable else values(field.type)


@st.composite
def tables(draw, types=TEXT_TYPES, max_rows=3):
    """Tables of any schema that text can hold."""
    schema = draw(schemas(types, CLEAN_NAMES))
    count = draw(st.integers(1, max_rows))
    columns = [pa.array([draw(cells(field)) for _ in range(count)], field.type) for field in schema]
    return pa.table(columns, schema=schema)
