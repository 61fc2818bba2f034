"""Schemas and rows of any kind, for what turns rows into text and back.

A kind is a type of Arrow with a strategy for its values, times as their ticks.
"""

from decimal import Context, Decimal
from functools import partial

import pyarrow as pa
import pyarrow.types as pat
from hypothesis import strategies as st

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
CLEAN_NAMES = st.text(  # as JSON can have them without escapes
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\'), max_size=5
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
BYTES = st.binary(max_size=6) | TEXTS.map(str.encode) | st.just(b'{"base64":"AA=="}')
DAY = 86_400
DAYS = (-719_162, 2_932_895)  # the years 1 to 9999
PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
MOST = 2**63 - 10**12  # Arrow reads no text of the outermost times in ns


def decimals(kind):
    """A kind of decimals."""
    most = 10**kind.precision - 1
    scaled = partial(Decimal.scaleb, other=-kind.scale, context=Context(prec=50))
    return kind, st.integers(-most, most).map(lambda number: scaled(Decimal(number)))


def of_day(kind):
    """A kind of times of the day."""
    return kind, st.integers(0, (DAY - 1) * PER_S[kind.unit])


def instants(kind):
    """A kind of times, in whichever zone within the years 1 to 9999."""
    low, high = (
        (day + room) * DAY * PER_S[kind.unit] for day, room in zip(DAYS, (2, -2), strict=True)
    )
    return kind, st.integers(max(low, -MOST), min(high, MOST))


COARSE = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    *(
        (kind, st.floats(width=kind.bit_width))
        for kind in (pa.float16(), pa.float32(), pa.float64())
    ),
    *((kind, TEXTS) for kind in (pa.utf8(), pa.large_utf8())),
    *((kind, BYTES) for kind in (pa.binary(), pa.large_binary())),
    (pa.binary(7), st.binary(min_size=7, max_size=7)),
    (pa.date32(), st.integers(*DAYS)),
    (pa.date64(), st.integers(*DAYS).map(lambda day: day * DAY * 1_000)),
    *map(of_day, (pa.time32("s"), pa.time32("ms"), pa.time64("us"))),
    *map(decimals, (pa.decimal32(5, 1), pa.decimal64(12, 0), pa.decimal128(38, 38))),
    *(instants(pa.timestamp(unit, zone)) for unit in ("s", "ms", "us") for zone in ("UTC", None)),
    instants(pa.timestamp("us", "Europe/Berlin")),
]
FINE = [instants(pa.timestamp("ns")), instants(pa.timestamp("ns", "UTC"))]
DURATIONS = [(pa.duration(unit), st.nothing()) for unit in PER_S]


@st.composite
def fields(draw, kinds, names=NAMES):
    """A column, or a field inside of a type, and its values, null among them if it may be."""
    kind, values = draw(kinds)
    nullable = draw(st.booleans()) or pat.is_null(kind)
    field = pa.field(draw(names), kind, nullable)
    return field, st.none() | values if nullable else values


@st.composite
def nested(draw, kinds, names=NAMES):
    """Kinds that have others inside."""
    make = draw(st.sampled_from(["list", "large list", "pair", "struct", "map"]))
    if make == "struct":
        inside = fields(kinds, names)
        found = draw(st.lists(inside, max_size=3, unique_by=lambda each: each[0].name))
        values = st.fixed_dictionaries({field.name: cells for field, cells in found})
        return pa.struct([field for field, _ in found]), values
    item, cells = draw(fields(kinds, names | st.sampled_from(["item", "value"])))
    if make == "map":
        of_keys = kinds.filter(lambda kind: not pat.is_null(kind[0]))
        key, values = draw(of_keys)
        key = pa.field(draw(names | st.just("key")), key, nullable=False)
        pairs = st.lists(st.tuples(values, cells), max_size=3)
        return pa.map_(key, item, draw(st.booleans())), pairs
    if make == "pair":
        return pa.list_(item, 2), st.lists(cells, min_size=2, max_size=2)
    return (pa.list_ if make == "list" else pa.large_list)(item), st.lists(cells, max_size=3)


def columns(kinds, names=NAMES):
    """The columns of a schema, with their values."""
    column = fields(kinds, names)
    return st.lists(column, min_size=1, max_size=4, unique_by=lambda each: each[0].name)


SCHEMAS = columns(
    st.recursive(
        st.sampled_from([*COARSE, *FINE, *DURATIONS, of_day(pa.time64("ns"))]), nested, max_leaves=6
    )
).map(lambda found: pa.schema([field for field, _ in found]))

TEXT_KINDS = st.recursive(
    st.sampled_from(COARSE), lambda kinds: nested(kinds, CLEAN_NAMES), max_leaves=4
) | st.sampled_from(FINE)
"""Kinds whose values text can hold: Python, which makes nested ones into text, has no ns."""


@st.composite
def tables(draw, max_rows=3):
    """Tables of any schema that text can hold."""
    found = draw(columns(TEXT_KINDS, CLEAN_NAMES))
    count = draw(st.integers(1, max_rows))
    arrays = [pa.array([draw(cells) for _ in range(count)], field.type) for field, cells in found]
    return pa.table(arrays, schema=pa.schema([field for field, _ in found]))
