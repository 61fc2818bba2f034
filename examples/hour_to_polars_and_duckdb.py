"""Read the records of the last hour, by their own time, into Polars and DuckDB.

Install these first: pip install polars duckdb
"""

from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl

from memq import read_range, scan

now = datetime.now(UTC)
hour = {"topic": "clicks", "start_time": now - timedelta(hours=1), "end_time": now}

frame = pl.from_arrow(read_range(**hour))
print(frame.height, "records in Polars")

clicks = scan(**hour)  # read piece by piece, by one query
duckdb.sql("select decode(key) as user, count(*) as clicks from clicks group by user").show()
