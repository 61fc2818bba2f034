"""Airflow for MemQ: wait for offsets, run Spark over exact ranges, prove nothing was lost."""
