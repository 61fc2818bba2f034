"""Any table, any topic: what is read back is what was given, or nothing of it was sent."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.types as pat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memq.client.producer.tables import to_batches
from memq.core.format.message import encode_message, open_message
from memq.errors import SchemaMismatchError
from tests.unit.client.producer.any_tables import same, topic_and_table, value

_NO_ROW = (
    "cannot hold",
    "no such column",
    "more than once",
    "; cast it first",
    "not in the schema",
    "do not become",
)


def stored(schema, table):
    """The rows of the table as the broker takes and readers find them."""
    for batch in to_batches(
        table, schema, "t", now_us=0, message_bytes=1 << 20, max_message_bytes=1 << 20
    ):
        yield open_message(encode_message(batch), schema)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_any_table_is_stored_as_it_is_or_refused(chance):
    """At any depth, each value is read back as it was given; or the error, raised before the first
    Message, names a column and, where there is a value at fault, its row and the value.
    """
    schema, table = topic_and_table(chance)
    try:
        batches = list(stored(schema, table))
    except SchemaMismatchError as refused:
        check_refusal(str(refused), schema, table)
        return
    check_stored([row for batch in batches for row in batch.to_struct_array()], schema, table)


def check_stored(rows, schema, table):
    """All rows are there, in order, and each value is what was given, or null where none was."""
    assert len(rows) == table.num_rows
    assert len(set(table.column_names)) == len(table.column_names)
    assert set(table.column_names) <= set(schema.names)
    for number, row in enumerate(rows):
        for field in schema:
            if field.name in table.column_names:
                assert same(value(table.column(field.name)[number]), value(row[field.name]))
            else:
                assert value(row[field.name]) is None
            assert sound(row[field.name], field)


def sound(scalar, field):
    """Whether nothing is null where the topic says so, at any depth."""
    if not scalar.is_valid:
        return field.nullable
    if pat.is_struct(field.type):
        return all(sound(scalar[each.name], each) for each in field.type)
    if pat.is_map(field.type):
        keys, items = scalar.values.flatten()
        return all(sound(one, field.type.key_field) for one in keys) and all(
            sound(one, field.type.item_field) for one in items
        )
    if pat.is_nested(field.type):
        return all(sound(one, field.type.value_field) for one in scalar.values)
    return True


def check_refusal(text, schema, table):
    """The column is one of the topic's or of the table's, and its row has that value."""
    (path,) = re.findall(r"column '([^']*)'", text) or [None]
    if path is None:
        assert "do not become" in text
        return
    name, *steps = re.findall(r"\[\]|[^.\[\]]+", path)
    assert name in {*schema.names, *table.column_names}, text
    found = re.search(r"row (\d+) (has|is null)", text)
    if found is None:
        assert any(each in text for each in _NO_ROW), text
        return
    row = int(found[1])
    assert row < table.num_rows, text
    columns = [at for at, each in enumerate(table.column_names) if each == name]
    there = [one for at in columns for one in inside(table.column(at)[row], steps)]
    assert any(is_named(one, text) for one in there), text


def inside(scalar, steps):
    """What is in a value at a path."""
    while isinstance(scalar, pa.ExtensionScalar | pa.DictionaryScalar):
        scalar = scalar.value
    if not steps or scalar is None or not scalar.is_valid:
        return [scalar]
    first, *rest = steps
    kind = scalar.type
    if pat.is_map(kind):
        part = scalar.values.flatten()[["key", "value"].index(rest[0])]
        return [each for one in part for each in inside(one, rest[1:])]
    if first == "[]":
        return [each for one in scalar.values for each in inside(one, rest)]
    places = [at for at in range(kind.num_fields) if kind.field(at).name == first]
    return [each for at in places for each in inside(scalar[at], rest)]


def is_named(scalar, text):
    """Whether an error names this value; of times and days it may do so in other words."""
    if scalar is None or not scalar.is_valid:
        return "is null" in text
    try:
        given = scalar.as_py()
    except (ValueError, OverflowError):
        return True
    shown = str(given) if hasattr(given, "isoformat") else repr(given)
    return shown[:90] in text or pat.is_time(scalar.type) or pat.is_date64(scalar.type)
