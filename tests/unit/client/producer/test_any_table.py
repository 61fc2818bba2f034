"""Any table, any topic: what is read back is what was given, or nothing of it was sent."""

import re

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
    Message, names a column and, where there is a value at fault, its row.
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
    """The column is one of the topic's or of the table's, and there is such a row."""
    (path,) = re.findall(r"column '([^'.\[]*)", text) or [None]
    if path is None:
        assert "do not become" in text
        return
    assert path in {*schema.names, *table.column_names}, text
    found = re.search(r"row (\d+) (has|is null)", text)
    if found is None:
        assert any(each in text for each in _NO_ROW), text
    else:
        assert int(found[1]) < table.num_rows, text
