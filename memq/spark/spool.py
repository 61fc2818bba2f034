"""The rows of one task on the disk of its machine, until all of them are known to be good.

A Message is readable as soon as it is acked, so a row that cannot be written must be found before
the first Message of the task is sent. A partition of Spark may be larger than memory; so it goes to
a file in Spark's local folders, which has no name from the start: whatever becomes of the process,
nothing is left behind. It is written once and read once, mostly out of the page cache.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import TYPE_CHECKING

import pyarrow as pa

from memq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self


class Spool:
    """RecordBatches of one schema, in order. Use it with `with`.

    What bounds it is the disk: one that is full ends the task.

    Args:
        folder: where the file goes; None for Spark's local folder of this executor.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder or local_folder()
        self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by `__exit__`
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def __repr__(self) -> str:
        return f"<Spool in {self._folder}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # of what nobody reads any more
            self._file.close()

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Keep some batches.

        Raises:
            StorageError: the disk is full, or fails.
        """
        try:
            for batch in batches:
                if self._writer is None:
                    self._writer = pa.ipc.new_stream(self._file, batch.schema)
                self._writer.write_batch(batch)
        except OSError as exc:
            raise self._failed(exc) from exc

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, as they were added; no more can be added then.

        Raises:
            StorageError: the disk is full, or fails.
        """
        if self._writer is None:
            return
        try:
            self._writer.close()
            self._file.flush()
            mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as exc:
            raise self._failed(exc) from exc
        yield from pa.ipc.open_stream(pa.py_buffer(mapped))

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            f"the rows of this task cannot be written to disk, in {self._folder}: {error}. They "
            "are kept there until all are checked; make room, or set spark.local.dir to a folder "
            "that has it, or give the DataFrame more partitions"
        )


def local_folder() -> str:
    """The first of the local folders that Spark gave this executor, or else the system's."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return given if os.path.isdir(given) else tempfile.gettempdir()  # noqa: PTH112 - a str
