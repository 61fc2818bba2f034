"""A writer whose first attempts are killed in the middle."""

import os
import signal
from itertools import islice

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource

from memq.spark.writer import MemqWriter, batch_writer

FAILING_ATTEMPTS = 2  # of each task


class FaultyWriter(MemqWriter):
    """Kills each task `FAILING_ATTEMPTS` times, later each time, after some rows were written.

    What an attempt that dies while it sends has written are the Messages of its first rows.
    """

    def write(self, iterator):
        """Write the rows, or some of them."""
        attempt = TaskContext.get().attemptNumber()
        if attempt < FAILING_ATTEMPTS:
            super().write(islice(iterator, 4 * (attempt + 1)))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(iterator)


class FaultySource(DataSource):
    """The format `memq_faulty`."""

    @classmethod
    def name(cls):
        """What `format(...)` takes."""
        return "memq_faulty"

    def writer(self, schema, overwrite):
        """A writer that fails."""
        writer = batch_writer(self.options, schema, overwrite=overwrite)
        writer.__class__ = FaultyWriter
        return writer
