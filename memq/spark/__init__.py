"""MemQ for Spark: the data source `memq`, for `spark.read`, `spark.readStream` and `write`.

    from memq.spark import MemqDataSource
    spark.dataSource.register(MemqDataSource)
    spark.read.format("memq").option("topic", "clicks").load()
    memq.spark.scan(spark, topic="clicks", table="prod:lake.clicks")

Spark finds the source without being told where the module `pyspark_memq` can be imported.
`progress_of` tells how far a stream is.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from memq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from memq.spark.progress import SourceProgress, progress_of
    from memq.spark.source import MemqDataSource
    from memq.spark.table_scan import scan

__all__ = ["MemqDataSource", "SourceProgress", "progress_of", "scan"]

_MODULES = dict.fromkeys(__all__, "memq.spark.progress") | {
    "MemqDataSource": "memq.spark.source",
    "scan": "memq.spark.table_scan",
}

NEEDS_PYSPARK = (
    "memq.spark needs PySpark, which is not installed: pip install 'pyspark>=4.2' 'pandas>=2.2,<3'"
)


def check_pyspark() -> None:
    """Refuse a PySpark of which another version of pyspark-client has overwritten files.

    Raises:
        ConfigError: naming both versions.
    """
    try:
        spark, client = version("pyspark"), version("pyspark-client")
    except PackageNotFoundError:
        return
    if spark != client:
        raise ConfigError(
            f"pyspark {spark} and pyspark-client {client} are both installed, and one has "
            "overwritten files of the other: pip uninstall -y pyspark-client, then pip install "
            f"--force-reinstall --no-deps pyspark=={spark}"
        )


def is_remote(spark: SparkSession) -> bool:
    """Tell whether a session is one of Spark Connect, with no JVM in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'memq.spark' has no attribute {name!r}")
    check_pyspark()
    try:
        return getattr(import_module(_MODULES[name]), name)  # loads PySpark
    except ModuleNotFoundError as exc:
        if exc.name not in ("pyspark", "py4j"):
            raise
        raise ImportError(NEEDS_PYSPARK, name="pyspark") from None
