"""Write what a topic holds to Parquet with Spark; needs PySpark, and Java 17."""

import os
import sys

from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers use this Python, with memq in it
spark = SparkSession.builder.master("local[2]").getOrCreate()
clicks = spark.read.format("memq").option("topic", "clicks").load()
clicks.selectExpr(
    "cast(key as string) as user", "cast(value as string) as value", "timestamp", "offset"
).write.mode("overwrite").parquet("clicks.parquet")
print(spark.read.parquet("clicks.parquet").count(), "rows in clicks.parquet")
spark.stop()
