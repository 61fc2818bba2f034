"""`spark.read`: an exact range, planned once for each `load()`.

There is no `pushFilters` on purpose. Spark 4.3 keeps the planned read with the DataFrame, and a
pushed filter would stay for every later use of it: wrong rows, and no error. Ranges are options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from memq.spark.driver import Driver
from memq.spark.plan import Split
from memq.spark.planner import Range, plan
from memq.spark.ranges import resolve
from memq.spark.seen import History

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from memq.spark.options import ReadOptions
    from memq.spark.worker import Task

FOR_EVER_MS = 1 << 62  # a range knows all of its Messages


class MemqReader(DataSourceReader):
    """Plans on the driver, reads on the workers.

    Args:
        options: of the read.
        task: what the workers do.
    """

    def __init__(self, options: ReadOptions, task: Task) -> None:
        self._options = options
        self._task = task

    def __repr__(self) -> str:
        return f"<MemqReader {self._options.topic}>"

    def partitions(self) -> Sequence[InputPartition]:
        """The splits of the range that the options name, as of now.

        Raises:
            OffsetOutOfRangeError: some of it is not held.
            MemqError: see `memq.spark.planner.plan`.
        """
        with Driver(self._options) as driver:
            stretches = resolve(driver, self._options)
            return plan(driver, self._options, Range(stretches, (), History(FOR_EVER_MS)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        assert isinstance(partition, Split)  # noqa: S101 - ours, from `partitions`
        return self._task.read(partition)
