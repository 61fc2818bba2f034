"""MemQ for Spark: the data source `memq`, for `spark.read`, `spark.readStream` and `write`.

    from memq.spark import MemqDataSource
    spark.dataSource.register(MemqDataSource)
    spark.read.format("memq").option("topic", "clicks").load()
    memq.spark.scan(spark, topic="clicks", table="prod:lake.clicks")

Spark finds the source without being told where the module `pyspark_memq` can be imported.
`progress_of` and `ProgressListener` tell how far a stream is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memq.spark.progress import ProgressListener, SourceProgress, progress_of
    from memq.spark.source import MemqDataSource
    from memq.spark.table_scan import scan

__all__ = ["MemqDataSource", "ProgressListener", "SourceProgress", "progress_of", "scan"]

_MODULES = dict.fromkeys(__all__, "memq.spark.progress") | {
    "MemqDataSource": "memq.spark.source",
    "scan": "memq.spark.table_scan",
}

NEEDS_PYSPARK = (
    "memq.spark needs PySpark, which is not installed: pip install 'pyspark>=4.2' 'pandas>=2.2,<3'"
)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'memq.spark' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)  # loads PySpark
    except ModuleNotFoundError as exc:
        if exc.name not in ("pyspark", "py4j"):
            raise
        raise ImportError(NEEDS_PYSPARK, name="pyspark") from None
