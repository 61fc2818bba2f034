"""Registers the data source `memq` with Spark, which looks for modules named `pyspark_*`."""
