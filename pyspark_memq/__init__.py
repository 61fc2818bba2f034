"""Registers the data source `memq` with Spark, which looks for modules named `pyspark_*`."""

from memq.spark import MemqDataSource as DefaultSource

__all__ = ["DefaultSource"]
