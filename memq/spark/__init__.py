"""MemQ for Spark: the data source `memq`, for `spark.read`, `spark.readStream` and `write`.

    from memq.spark import MemqDataSource
    spark.dataSource.register(MemqDataSource)
    spark.read.format("memq").option("topic", "clicks").load()

Spark finds the source without being told where the module `pyspark_memq` can be imported.
"""

from memq.spark.source import MemqDataSource

__all__ = ["MemqDataSource"]
