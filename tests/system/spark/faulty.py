"""A writer whose first attempts fail in the middle, in ways that tasks do fail."""

from __future__ import annotations

import os
import signal
import time
from itertools import islice

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource

from memq import AdminClient
from memq.spark.writer import MemqWriter, batch_writer

FAILING_ATTEMPTS = 2  # of each task


class FaultyWriter(MemqWriter):
    """Fails each task `FAILING_ATTEMPTS` times, later each time, after some rows were written.

    What an attempt that dies while it sends has written are the Messages of its first rows.
    """

    fault = "raise"

    def write(self, iterator):
        """Write the rows, or some of them."""
        attempt = TaskContext.get().attemptNumber()
        if attempt < FAILING_ATTEMPTS:
            super().write(islice(iterator, 4 * (attempt + 1)))
            fail(self.fault)
        return super().write(iterator)


def until_published(address, topic, timeout_s=20.0):
    """Wait until the topic has a Batch: what fails before that could not be doubled."""
    deadline_s = time.monotonic() + timeout_s
    with AdminClient(address) as admin:
        while not any(each.end for each in admin.offsets(topic)):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nothing was published to {topic} in {timeout_s} s")
            time.sleep(0.01)


def fail(fault):
    """End this attempt."""
    if fault == "exit":
        os._exit(3)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("this attempt fails on purpose")


class FaultySource(DataSource):
    """The format `memq_faulty`, with the option `fault` beside those of `memq`."""

    @classmethod
    def name(cls):
        """What `format(...)` takes."""
        return "memq_faulty"

    def writer(self, schema, overwrite):
        """A writer that fails."""
        options = dict(self.options)
        fault = options.pop("fault")
        writer = batch_writer(options, schema, overwrite=overwrite)
        writer.__class__ = FaultyWriter
        writer.fault = fault
        return writer
