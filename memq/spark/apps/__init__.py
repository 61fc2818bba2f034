"""The programs for Spark, each run with `python -m` or by its file in `spark_apps/`."""
