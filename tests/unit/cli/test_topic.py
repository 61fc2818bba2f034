"""The schema of a typed topic comes from a short text or from a file."""

import json

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet

from memq.cli.schema import parse_schema, read_schema, schema_text, type_text
from memq.core.format.schema import check_topic_schema, deserialize_schema
from memq.errors import ConfigError, SchemaMismatchError
from tests.unit.cli.rows import SCHEMAS

TABLE = pa.table({"id": [1], "name": pa.array(["a"]).dictionary_encode()})
TABLE_SCHEMA = pa.schema({"id": pa.int64(), "name": pa.utf8()})


def write_stream(table, path):
    """As an Arrow IPC stream."""
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def write_file(table, path):
    """As an Arrow IPC file."""
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("write", [parquet.write_table, write_file, write_stream])
def test_kinds_of_files(write, tmp_path):
    """Each kind of file gives the plain schema of its table."""
    path = tmp_path / "table"
    write(TABLE, str(path))

    assert deserialize_schema(read_schema(str(path))) == TABLE_SCHEMA


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"ARROW1", b"id,name\n1,a\n", b"{", b"[1]", b'[{"name": "a", "type": "no"}]'],
)
def test_other_files(content, tmp_path):
    """A file without a schema is refused by name."""
    path = tmp_path / "table"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match="table gives no schema"):
        read_schema(str(path))


# -- the short text -------------------------------------------------------------------------


def test_text():
    """A column has a name, a type by Arrow's name, and a mark where values may be missing."""
    text = (
        "id:int64, at:timestamp[us],name:string?,when:timestamp[ms, tz=+02:00]?,"
        "price:decimal(9,2),tags:list<string?>?,"
        '"a,b":struct<x: int8 not null, y: map<string, double>>,f:float64'
    )

    schema = parse_schema(text)

    assert schema.field("price") == pa.field("price", pa.decimal128(9, 2), nullable=False)
    assert schema_text(schema) == (
        "id:int64,at:timestamp[us],name:string?,when:timestamp[ms, tz=+02:00]?,"
        "price:decimal128(9, 2),tags:list<string>?,"
        '"a,b":struct<x: int8 not null, y: map<string, double>>,f:double'
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id:Text?,more:" + "x" * 40, " 'id': expected a type .* at 'Text.,more:x+…'"),
        ("id:i", "column 'id': expected a type .* at 'i' of the schema; the types are bool, int8"),
        ("at:time32[ns]", "column 'at': .*time32"),
        ("p:decimal128(100, 2)", "column 'p': expected a type .precision"),
        ("id:int64,", "expected a column such as name:string"),
        ("id:int64 name:string", "column 'id': expected a comma, or the end at 'name:string'"),
        ("t:list<string", "column 't': expected '>' at the end"),
        ("t:" + "list<" * 100_000, "column 't': types are nested deeper than 16 levels"),
        ("rides.parket", "is no file, and no schema; write one like 'id:int64"),
        ("id:int64,id:int8", "more than one column named 'id'"),
    ],
)
def test_text_with_a_mistake(text, said):
    """The column is named, and what could stand there."""
    with pytest.raises((ConfigError, SchemaMismatchError), match=said):
        read_schema(text)


@hypothesis.given(SCHEMAS)
def test_text_of_any_schema(schema):
    """Whatever schema a topic can have, its text gives it back."""
    check_topic_schema(schema)

    assert parse_schema(schema_text(schema)).equals(schema)


@hypothesis.given(schema=SCHEMAS)
def test_description_gives_the_schema_back(tmp_path_factory, schema):
    """What `topic describe -o json` prints can be given to `topic create`, whole or its columns."""
    path = tmp_path_factory.getbasetemp() / "described.json"
    columns = [
        {"name": each.name, "type": type_text(each.type), "nullable": each.nullable}
        for each in schema
    ]
    for document in (columns, {"topic": "t", "schema": columns}):
        path.write_text(json.dumps(document))
        assert deserialize_schema(read_schema(str(path))).equals(schema)


@hypothesis.given(st.text(st.sampled_from('ab:,<>?[]()"\\ 1') | st.characters(), max_size=30))
def test_any_text_is_a_schema_or_an_error(text):
    """No text does anything but give a schema or say what is wrong."""
    try:
        schema = parse_schema(text)
    except ConfigError:
        return
    assert parse_schema(schema_text(schema)).equals(schema)
