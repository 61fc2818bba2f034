"""The Arrow schema of a typed topic, from a file that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from memq.core.format.envelope import ARROW_ERRORS
from memq.core.format.schema import serialize_schema
from memq.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC_BYTES = 6


def read_schema_file(path: Path) -> bytes:
    """The serialized schema of a Parquet file, an Arrow IPC file or an Arrow IPC stream.

    Raises:
        ConfigError: the file cannot be read, or is none of these.
        SchemaMismatchError: no topic can have the schema.
    """
    try:
        schema = _read(path)
    except ARROW_ERRORS as exc:
        raise ConfigError(
            f"{path} gives no schema; a Parquet or Arrow IPC file is expected: {exc}"
        ) from exc
    return serialize_schema(schema)


def _read(path: Path) -> pa.Schema:
    with path.open("rb") as file:
        magic = file.read(_MAGIC_BYTES)
        file.seek(0)
        if magic.startswith(b"PAR1"):
            from pyarrow import parquet  # noqa: PLC0415 - slow to load

            return parquet.read_schema(file)
        reader = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
        return reader(file).schema
