"""The schema of a typed topic comes from a file."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet

from memq.cli.topic import read_schema_file
from memq.core.format.schema import deserialize_schema
from memq.errors import ConfigError, SchemaMismatchError

TABLE = pa.table({"id": [1], "name": pa.array(["a"]).dictionary_encode()})
PLAIN = pa.schema({"id": pa.int64(), "name": pa.utf8()})


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

    assert deserialize_schema(read_schema_file(path)) == PLAIN


@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1", b"id,name\n1,a\n"])
def test_other_files(content, tmp_path):
    """A file without a schema is refused by name."""
    path = tmp_path / "table"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match="table gives no schema"):
        read_schema_file(path)


def test_schema_that_no_topic_can_have(tmp_path):
    """A schema that cannot be stored is refused before it is sent."""
    path = tmp_path / "table"
    write_file(pa.table({}), str(path))

    with pytest.raises(SchemaMismatchError, match="at least one column"):
        read_schema_file(path)
