"""Topics as tables of Spark's session catalog: `CREATE TABLE clicks USING memq OPTIONS (…)`.

Spark 4.3 hands the OPTIONS of a table to a source in Python once, when the table is made without
columns and the source is asked for them. When the table is read the source is given the columns,
and only the options that stand in the query (`SELECT … FROM clicks WITH (…)`). So the options are
kept where Spark keeps the columns: in the metadata of the first one. They can be seen there, and
therefore are never secrets.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from memq.errors import ConfigError
from memq.spark.options import SECRET_OPTIONS, TOPIC_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "option."  # of each of the OPTIONS, among the properties of a table
_PROVIDER = "provider"  # a property that every table has, and no read by itself
_METADATA = "memq.options"


def table_options(given: Mapping[str, str]) -> Mapping[str, str] | None:
    """The OPTIONS of a table that is being made; None where it is a read by itself.

    Raises:
        ConfigError: a secret is among them.
    """
    if _PROVIDER not in given:
        return None
    own = {
        key.removeprefix(_PREFIX): text for key, text in given.items() if key.startswith(_PREFIX)
    }
    for name in SECRET_OPTIONS:
        if name.lower() in own:
            raise ConfigError(
                f"option '{name}' is a secret, and whoever reads a table can see its options: "
                "give it to the driver by its environment or profile, or in each query, by WITH"
            )
    return own


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a table, with its options."""
    first, *others = schema
    metadata = first.metadata | {_METADATA: json.dumps(dict(sorted(options.items())))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def recall(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a read: those given, and those of the table if it is one that is read.

    Options that are given, as by WITH, win. Where they say what is read, it is no read of a table.
    """
    lower = {key.lower(): text for key, text in given.items()}
    if lower.keys() & TOPIC_NAMES:
        return given
    stored = (field.metadata.get(_METADATA) for field in schema)
    found: dict[str, str] = next((json.loads(text) for text in stored if text), {})
    return found | lower
