"""What a user says of nulls in `.schema()` is checked: Spark believes it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

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


def test_a_column_that_may_be_null_is_not_called_not_null():
    """Spark answers `n IS NULL` from such a schema alone, so it is refused before the read."""
    with pytest.raises(ConfigError, match="column 'n' may be null"):
        read(StructType([StructField("n", LongType(), nullable=False)]))


def test_what_the_topic_calls_not_null_is_checked_in_every_message():
    """A topic's own NOT NULL may be used, as may that of an origin; a null in it is an error."""
    wanted = StructType(
        [
            StructField("id", LongType(), nullable=False),
            StructField("offset", LongType(), nullable=False),
        ]
    )

    assert read(wanted, ROWS.slice(0, 1)).to_pylist() == [{"id": 1, "offset": 0}]
    with pytest.raises(SchemaMismatchError, match="'id' is null in 1 of 2 rows, but the schemas"):
        read(wanted)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tags", ArrayType(StringType(), containsNull=False)),
        ("spot", StructType([StructField("x", LongType(), nullable=False)])),
    ],
)
def test_no_nulls_inside_of_a_column_cannot_be_promised(name, kind):
    """A schema that excludes nulls inside of a column is refused before anything is read."""
    with pytest.raises(ConfigError, match=f"column '{name}' may be null, or hold nulls"):
        read(StructType([StructField(name, kind)]))


def test_columns_are_offered_with_nulls_everywhere():
    """What the topic's own schema excludes Spark is not told: nobody checks each row for that."""
    shape = shape_of("t", TOPIC, ["tags", "spot"], None)

    assert shape.spark.simpleString() == "struct<tags:array<string>,spot:struct<x:bigint>>"
    assert shape.spark["tags"].dataType.containsNull
    assert shape.spark["spot"].dataType["x"].nullable
    read(shape.spark)
