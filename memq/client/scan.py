"""What `scan` returns: an Arrow stream that can be read again."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    Rows = Callable[[], Iterator[pa.RecordBatch]]


class Scan:
    """Rows that were settled when `scan` was called; every reading of it gives the same ones.

    Whatever takes an Arrow stream takes it: pyarrow, pandas, Polars, DuckDB. Iterate over it for
    RecordBatches. Close it, use it with `with`, or forget it: then its connections close.

    Args:
        schema: of the rows.
        rows: begins to read them; called for each reading.
        close: what they are read from.

    Attributes:
        schema: of the rows.
    """

    def __init__(self, schema: pa.Schema, rows: Rows, close: Callable[[], None]) -> None:
        self.schema = schema
        self._rows = rows
        self.close = weakref.finalize(self, close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows()  # a generator, which keeps this alive and open

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Begin to read from the first row.

        Returns:
            A reader. It raises a MemqError where brokers or storage fail, and where retention
            removes what it has not read yet.
        """
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def read_all(self) -> pa.Table:
        """Read all rows into memory.

        Raises:
            MemqError: as while `reader` is read.
        """
        return self.reader().read_all()
