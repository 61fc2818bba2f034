"""Any topic's schema, any table that may be written to it, and what makes two values the same.

Nothing here asks the product, or Arrow's casts, what is equal: values are taken out of Arrow one by
one, as whole numbers, fractions and bytes.
"""

import math
import struct
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pyarrow.types as pat

NAMES = ("a", "b", "A", "key")
UNITS = ("s", "ms", "us", "ns")
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ZONES = ("UTC", "America/New_York", "+02:00")
MAX_ROWS = 4

NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(5, 2), pa.decimal64(12, 4), pa.decimal128(10, 2), pa.decimal128(38, 0)),
]
TEXTS = [pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary(), pa.binary(2)]
INSTANTS = [pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES]
LOCAL_TIMES = [pa.timestamp(unit) for unit in UNITS]
DAYS = [pa.date32(), pa.date64()]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
DURATIONS = [pa.duration(unit) for unit in UNITS]
FAMILIES = [
    NUMBERS,
    TEXTS,
    INSTANTS,
    LOCAL_TIMES,
    DAYS,
    TIMES,
    DURATIONS,
    [pa.bool_()],
    [pa.null()],
]
GIVEN_ONLY = [
    pa.decimal256(50, 3),
    pa.string_view(),
    pa.binary_view(),
    pa.month_day_nano_interval(),
]
LEAVES = [kind for family in FAMILIES for kind in family]


def fields_of(chance, make, *, least):
    """Some fields with names of their own, of types that are made by chance."""
    names = chance.sample(NAMES, chance.randint(least, 3))
    return [field(name, make(chance), chance.randint(0, 3) > 0) for name in names]


def field(name, kind, nullable):
    """A field; one of nulls can be nothing else."""
    return pa.field(name, kind, nullable=nullable or pat.is_null(kind))


def topic_type(chance, depth=3):
    """A type that a topic may have."""
    shape = chance.randint(0, 9) if depth else 0
    if shape < 6:
        return chance.choice(chance.choice(FAMILIES))

    def inner(chance):
        return topic_type(chance, depth - 1)

    if shape == 6:
        return pa.struct(fields_of(chance, inner, least=0))
    item = field("item", inner(chance), chance.random() < 0.5)
    if shape == 7:
        return chance.choice([pa.list_(item), pa.large_list(item), pa.list_(item, 2)])
    return pa.list_(item) if shape == 8 else pa.map_(chance.choice(LEAVES[:-1]), item)


def given_type(chance, kind, *, values=False):  # noqa: PLR0911 - a case for each kind
    """A type that rows for a column of this type may come in: the same, one like it, or another;
    one that has values, if it must.
    """
    how = chance.randint(0, 15)
    if how == 0:
        return chance.choice(LEAVES[:-1] + GIVEN_ONLY)
    if how == 1:
        return kind if values else pa.null()
    if pat.is_null(kind):
        return pa.int8() if values else kind
    if how == 2 and not pat.is_nested(kind):  # Arrow itself dies of some nested dictionaries
        return pa.dictionary(chance.choice([pa.int8(), pa.uint32()]), kind)
    if how == 3:
        inner = given_type(chance, kind, values=True)
        return inner if pat.is_dictionary(inner) else pa.opaque(inner, "wrapped", "tests")
    if pat.is_struct(kind):
        fields = [
            field(each.name, given_type(chance, each.type), chance.random() < 0.5)
            for each in chance.sample(list(kind), len(list(kind)))
        ]
        if how == 4:
            fields = fields[1:]
        if how == 5:
            fields += fields_of(chance, lambda chance: topic_type(chance, 1), least=1)
        return pa.struct(fields)
    if pat.is_map(kind):
        keys = given_type(chance, kind.key_type, values=True)
        return pa.map_(keys, pa.field("value", given_type(chance, kind.item_type)))
    if pat.is_nested(kind):
        item = field("element", given_type(chance, kind.value_type), chance.random() < 0.5)
        size = chance.randint(1, 3)
        return chance.choice([pa.list_(item), pa.large_list(item), pa.list_(item, size)])
    return kind if how < 9 else chance.choice(next(each for each in FAMILIES if kind in each))


def leaf(chance, kind):  # noqa: PLR0911 - a case for each kind
    """A value of a type, as what Arrow makes it of."""
    if pat.is_integer(kind):
        return whole(chance, kind.bit_width, signed="u" not in str(kind))
    if pat.is_floating(kind):
        odd = [0.1, 1.005, 2.0**24 + 1, 65504.0, 1e300, 2.0**63, -0.0, 1.5, math.inf, math.nan]
        any_bits = struct.unpack("<d", chance.getrandbits(64).to_bytes(8, "little"))[0]
        wide = chance.choice([chance.choice(odd), float(chance.randint(-300, 300)), any_bits])
        return narrowed(wide, kind.bit_width)
    if pat.is_decimal(kind):
        most = 10 ** min(kind.precision, 40) - 1
        units = chance.randint(-9, 9) * 10**kind.scale
        number = chance.choice([chance.randint(-most, most), units, chance.randint(-999, 999)])
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.scale))
    if pat.is_boolean(kind):
        return chance.random() < 0.5
    if pat.is_fixed_size_binary(kind):
        return chance.choice([b"ab", b"\xff\xfe", b"\xc3\xa4"])
    if "string" in str(kind):
        return chance.choice(["", "a", "ab", "ä", "a text that is no longer kept inline"])
    return chance.choice([b"", b"ab", b"\xff\xfe", b"a text that is no longer kept inline"])


def whole(chance, bits, *, signed=True):
    """A whole number, often one at the ends of what it may be."""
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return chance.choice([chance.randint(0, 3), chance.randint(least, most), least, most])


def narrowed(number, bits):
    """A float as one of so many bits is."""
    form = {16: "e", 32: "f", 64: "d"}[bits]
    try:
        return struct.unpack(form, struct.pack(form, number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def ticks(chance, kind):
    """A whole number that a time of this type is kept as; now and then one that it must not be."""
    if pat.is_date32(kind):
        return chance.choice([whole(chance, 32), chance.randint(-5, 5)])
    if pat.is_date64(kind):
        return chance.randint(-(10**5), 10**5) * 86_400_000 + (chance.randint(0, 5) == 0)
    step = TICKS[kind.unit]
    if pat.is_time(kind):
        fine = [chance.randrange(86_400 * step), chance.randrange(86_400) * step]
        return chance.choice(fine) if chance.randint(0, 5) else 86_400 * step
    return chance.choice([whole(chance, 64), chance.randint(-(10**6), 10**6) * step])


def array_of(chance, kind, rows):
    """Values of a type, some null, with others hidden below the nulls and beside the slice."""
    before, after = chance.randint(0, 1), chance.randint(0, 1)
    return _array(chance, kind, before + rows + after).slice(before, rows)


def _array(chance, kind, rows):  # noqa: PLR0911 - a case for each kind
    if pat.is_null(kind):
        return pa.nulls(rows)
    if isinstance(kind, pa.OpaqueType):
        return pa.ExtensionArray.from_storage(kind, _array(chance, kind.storage_type, rows))
    some = chance.randint(0, 2) == 0
    nulls = [some and chance.random() < 0.5 for _ in range(rows)]
    mask = pa.array(nulls, pa.bool_())
    if pat.is_dictionary(kind):
        indices = [None if null else chance.randint(0, 2) for null in nulls]
        indices = pa.array(indices, kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, _array(chance, kind.value_type, 3))
    if pat.is_struct(kind):
        children = [_array(chance, each.type, rows) for each in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pat.is_fixed_size_list(kind):
        values = _array(chance, kind.value_type, rows * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    if pat.is_nested(kind):
        return _lists(chance, kind, mask)
    if pat.is_interval(kind):
        return pa.array([None if null else (1, 2, 3) for null in nulls], kind)
    hidden = mask.to_numpy(zero_copy_only=False)
    if pat.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([ticks(chance, kind) for _ in nulls], width, mask=hidden).view(kind)
    if (pat.is_string(kind) or pat.is_large_string(kind)) and chance.randint(0, 9) == 0:
        raw = pa.binary() if pat.is_string(kind) else pa.large_binary()
        texts = [chance.choice([b"a", b"\xff\xfe"]) for _ in nulls]
        return pa.array(texts, raw, mask=hidden).view(kind)
    return pa.array([None if null else leaf(chance, kind) for null in nulls], kind)


def _lists(chance, kind, mask):
    ends = [0]
    for _ in range(len(mask)):
        ends.append(ends[-1] + chance.randint(0, 2))
    if pat.is_map(kind):
        keys = _array(chance, kind.key_type, ends[-1])
        if any(value(one) is None for one in keys):
            keys, ends = keys.slice(0, 0), [0] * len(ends)
        items = _array(chance, kind.item_type, ends[-1])
        offsets = pa.array(ends, pa.int32())
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    values = _array(chance, kind.value_type, ends[-1])
    if pat.is_large_list(kind):
        offsets = pa.array(ends, pa.int64())
        return pa.LargeListArray.from_arrays(offsets, values, type=kind, mask=mask)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind, mask=mask)


def topic_and_table(chance):
    """The schema of a topic, and a table that somebody writes to it."""
    schema = pa.schema(fields_of(chance, topic_type, least=1))
    fields = [
        pa.field(each.name, given_type(chance, each.type))
        for each in chance.sample(list(schema), len(schema))
    ]
    how = chance.randint(0, 11)
    if how == 0:
        fields = fields[1:]
    if how == 1:
        fields += fields_of(chance, lambda chance: topic_type(chance, 1), least=1)
    rows = chance.randint(1, MAX_ROWS)
    split = chance.randint(0, rows)
    columns = [
        pa.chunked_array(
            [array_of(chance, each.type, split), array_of(chance, each.type, rows - split)],
            each.type,
        )
        for each in fields
    ]
    return schema, pa.Table.from_arrays(columns, names=[each.name for each in fields])


# -- what is the same -----------------------------------------------------------------------


def value(scalar):  # noqa: PLR0911 - a case for each kind
    """What a scalar is, in terms of Python alone."""
    if isinstance(scalar, pa.ExtensionScalar | pa.DictionaryScalar):
        inner = scalar.value
        return None if inner is None or not scalar.is_valid else value(inner)
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pat.is_struct(kind):
        return [(kind.field(at).name, value(scalar[at])) for at in range(kind.num_fields)]
    if pat.is_map(kind):
        entries = scalar.values
        return [(value(key), value(item)) for key, item in zip(*entries.flatten(), strict=True)]
    if pat.is_nested(kind):
        return ["list", *map(value, scalar.values)]
    if pat.is_timestamp(kind):
        return ("local" if kind.tz is None else "instant", Fraction(scalar.value, TICKS[kind.unit]))
    if pat.is_time(kind):
        return ("time", Fraction(scalar.value, TICKS[kind.unit]))
    if pat.is_duration(kind):
        return ("duration", Fraction(scalar.value, TICKS[kind.unit]))
    if pat.is_date(kind):
        return ("day", Fraction(scalar.value, 86_400_000 if pat.is_date64(kind) else 1))
    if pat.is_boolean(kind):
        return ("boolean", scalar.as_py())
    if pat.is_interval(kind):
        return ("interval", scalar.as_py())
    if pat.is_decimal(kind):
        return (kind, scalar.as_py())
    if pat.is_integer(kind) or pat.is_floating(kind):
        return (kind, scalar.as_py())
    return ("bytes", scalar.as_buffer().to_pybytes())


def same(given, found):
    """Whether what was found is what was given; a field that was not given is null."""
    if given is None or found is None:
        return given is found
    if isinstance(given, list):
        if given[:1] == ["list"] or found[:1] == ["list"]:
            return len(given) == len(found) and all(map(same, given, found))
        return _same_pairs(given, found)
    if isinstance(given, str) or isinstance(given[0], str) or isinstance(found[0], str):
        return given == found
    return _same_number(given, found)


def _same_pairs(given, found):
    if any(isinstance(name, str) for name, _ in given + found):  # the fields of a struct
        there = dict(found)
        return (
            len({name for name, _ in given}) == len(given)
            and all(name in there and same(one, there.pop(name)) for name, one in given)
            and all(each is None for each in there.values())
        )
    return len(given) == len(found) and all(
        same(one, other)
        for pair in zip(given, found, strict=True)
        for one, other in zip(*pair, strict=True)
    )


def _same_number(given, found):
    (kind, one), (other_kind, other) = given, found
    if pat.is_floating(kind) and math.isnan(one):
        return pat.is_floating(other_kind) and math.isnan(other)
    if pat.is_floating(kind) and pat.is_decimal(other_kind):
        return narrowed(float(other), kind.bit_width) == one and _sign(one) == _sign(float(other))
    if pat.is_decimal(kind) and pat.is_floating(other_kind):
        return math.isfinite(other) and round(Decimal(other), kind.scale) == one
    if pat.is_floating(kind) and _sign(one) != _sign(other):
        return False
    return one == other  # of ints, floats and Decimals Python compares exactly


def _sign(number):
    return math.copysign(1, number)
