"""Write an exact range of offsets to Parquet, once: a second run replaces its own output.

The program is `memq.spark.apps.range_to_parquet`; this file is what Spark is given.
"""

from __future__ import annotations

import sys

from memq.spark.app import run
from memq.spark.apps.range_to_parquet import main

if __name__ == "__main__":
    sys.exit(run(main))
