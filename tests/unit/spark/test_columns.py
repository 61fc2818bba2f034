"""What Spark is told of the columns of a topic, and what it could not tell apart or would lose."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import ConfigError, SchemaMismatchError
from memq.spark.columns import project, shape_of

TOPIC = pa.schema(
    [
        ("n", pa.int64()),
        pa.field("id", pa.int64(), nullable=False),
        ("tags", pa.list_(pa.field("item", pa.utf8(), nullable=False))),
        ("spot", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"n": 1, "id": 1, "tags": ["a"], "spot": {"x": 1}},
        {"n": None, "id": None, "tags": None, "spot": None},
    ],
    TOPIC,
)


def read(wanted, rows=ROWS):
    """The rows of a Message under a user's schema."""
    shape = shape_of("t", TOPIC, None, wanted)
    return project(shape.arrow(), shape.own, rows, {"offset": 0})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("n", LongType()),
        ("id", LongType()),
        ("tags", ArrayType(StringType(), containsNull=False)),
        ("spot", StructType([StructField("x", LongType(), nullable=False)])),
    ],
)
def test_no_nulls_cannot_be_promised(name, kind):
    """Spark answers `IS NULL` from a schema alone, so one that excludes nulls, or those inside of a
    column, is refused before anything is read.
    """
    with pytest.raises(ConfigError, match=f"column '{name}' may be null, or hold nulls"):
        read(StructType([StructField(name, kind, nullable=name not in {"n", "id"})]))


def frame_of(schema, rows, *, columns=None, wanted=None, maps=None):
    """The rows of a Message as Spark gets them."""
    shape = shape_of("t", schema, columns, wanted, maps)
    return project(shape.arrow(), shape.own, rows, {}, maps).to_pylist()


LATE = 2**62
"""In seconds or milliseconds a time that microseconds have no room for."""
DEEP = {
    "top": (lambda time: time, LATE),
    "key": (lambda time: pa.map_(time, pa.utf8()), [(LATE, "v")]),
    "deep": (lambda time: pa.list_(pa.struct([("at", pa.list_(time))])), [{"at": [LATE]}]),
}


@pytest.mark.parametrize(("build", "value"), DEEP.values(), ids=DEEP)
@pytest.mark.parametrize(
    "time",
    [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.duration("s"), pa.duration("ms")],
    ids=str,
)
def test_a_time_beyond_microseconds_is_refused_wherever_it_stands(build, value, time):
    """It is an error that names the column; without the check it would be read as 1970."""
    schema = pa.schema([("e", build(time))])
    rows = pa.RecordBatch.from_pylist([{"e": None}, {"e": value}], schema)

    with pytest.raises(SchemaMismatchError, match=r"column 'e' is .* which does not become"):
        frame_of(schema, rows, columns=["e"])


def test_times_finer_than_microseconds_are_cut_wherever_they_stand():
    """So it is said of columns, and so it is of their parts; all else stays what it is."""
    kind = pa.struct(
        [("at", pa.list_(pa.timestamp("ns"))), ("n", pa.uint64()), ("h", pa.float16())]
    )
    schema = pa.schema([("e", kind)])
    rows = pa.RecordBatch.from_pylist(
        [{"e": {"at": [1_999, None], "n": 2**64 - 1, "h": 0.5}}], schema
    )

    (row,) = frame_of(schema, rows, columns=["e"])

    assert [each and each.microsecond for each in row["e"]["at"]] == [1, None]
    assert (int(row["e"]["n"]), row["e"]["h"]) == (2**64 - 1, 0.5)


ALIKE = {
    "case": ([("id", pa.int64()), ("ID", pa.int64())], "'id' and 'ID'"),
    "origin": ([("n", pa.int64()), ("Offset", pa.int64())], "'Offset' and 'offset'"),
    "same as an origin": ([("n", pa.int64()), ("topic", pa.utf8())], "'topic' and 'topic'"),
    "long s": ([("s", pa.int64()), ("\u017f", pa.int64())], "'s' and '\u017f'"),
    "field": (
        [("n", pa.int64()), ("e", pa.list_(pa.struct([("a", pa.int8()), ("A", pa.int8())])))],
        "'e.item.a' and 'e.item.A'",
    ),
}


@pytest.mark.parametrize(("fields", "names"), ALIKE.values(), ids=ALIKE)
def test_names_that_spark_takes_for_one(fields, names):
    """They are refused by name before the read, at any depth; a choice of columns reads on."""
    schema = pa.schema(fields)
    rows = pa.RecordBatch.from_pylist([], schema)

    with pytest.raises(SchemaMismatchError, match=f"with the columns {names}: Spark"):
        shape_of("t", schema, None, None)
    assert frame_of(schema, rows, columns=schema.names[:1]) == []


MAPS = {
    "top": (pa.map_(pa.utf8(), pa.int8()), [("a", 1), ("a", 2)]),
    "list": (pa.list_(pa.map_(pa.utf8(), pa.int8())), [[], [("b", 1), ("b", 2)]]),
    "struct": (pa.struct([("m", pa.map_(pa.int8(), pa.int8()))]), {"m": [(0, 1), (0, 2)]}),
    "finer": (pa.map_(pa.timestamp("ns"), pa.int8()), [(1_001, 1), (1_002, 2)]),
    "keys": (pa.map_(pa.struct([("k", pa.int8())]), pa.int8()), [({"k": 1}, 1), ({"k": 1}, 2)]),
}


@pytest.mark.parametrize(("kind", "value"), MAPS.values(), ids=MAPS)
def test_a_map_with_a_key_twice(kind, value):
    """Spark would show one of the two: it is refused, or read as pairs, or as it is when asked."""
    schema = pa.schema([("m", kind)])
    rows = pa.RecordBatch.from_pylist([{"m": None}, {"m": value}], schema)

    with pytest.raises(SchemaMismatchError, match="column 'm' has a key twice"):
        frame_of(schema, rows, columns=["m"])

    for maps in ("pairs", "map"):
        kept = frame_of(schema, rows, columns=["m"], maps=maps)
        assert [each["m"] is None for each in kept] == [True, False]


def test_headers_are_pairs():
    """As of records read with Kafka's source; who asks for a map gets one, if no name is lost."""
    rows = pa.RecordBatch.from_pylist(
        [{"headers": [("a", b"1"), ("a", b"2")], "timestamp": 0}], DEFAULT_SCHEMA
    )
    shape = shape_of("t", DEFAULT_SCHEMA, None, None)
    assert (
        shape.spark["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    )
    (row,) = frame_of(DEFAULT_SCHEMA, rows, columns=["headers"])
    assert row["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]

    asked = StructType([StructField("headers", MapType(StringType(), BinaryType()))])
    with pytest.raises(SchemaMismatchError, match="column 'headers' has a key twice"):
        frame_of(DEFAULT_SCHEMA, rows, wanted=asked)
    other = rows.set_column(2, "headers", pa.array([[("a", b"1")]], rows.column(2).type))
    assert frame_of(DEFAULT_SCHEMA, other, wanted=asked) == [{"headers": [("a", b"1")]}]
    assert shape_of("t", DEFAULT_SCHEMA, ["headers"], StructType([shape.spark["headers"]])).spark
