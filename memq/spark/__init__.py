"""MemQ for Spark: the data source `memq`, for `spark.read`, `spark.readStream` and `write`.

    from memq.spark import MemqDataSource
    spark.dataSource.register(MemqDataSource)
    spark.read.format("memq").option("topic", "clicks").load()

Spark finds the source without being told where the module `pyspark_memq` can be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memq.spark.source import MemqDataSource

__all__ = ["MemqDataSource"]

NEEDS_PYSPARK = (
    "memq.spark needs PySpark, which is not installed: pip install 'pyspark>=4.2' 'pandas>=2.2,<3'"
)


def __getattr__(name: str) -> object:
    if name != "MemqDataSource":
        raise AttributeError(f"module 'memq.spark' has no attribute {name!r}")
    try:
        from memq.spark.source import MemqDataSource  # noqa: PLC0415 - loads PySpark
    except ModuleNotFoundError as exc:
        if exc.name not in ("pyspark", "py4j"):
            raise
        raise ImportError(NEEDS_PYSPARK, name="pyspark") from None
    return MemqDataSource
