"""Turn the many small Batches of a topic into few large Parquet files; run it again to go on.

The program is `memq.spark.apps.compact`; this file is what Spark is given.
"""

from __future__ import annotations

import sys

from memq.spark.app import run
from memq.spark.apps.compact import main

if __name__ == "__main__":
    sys.exit(run(main))
