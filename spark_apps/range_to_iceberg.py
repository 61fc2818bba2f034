"""Put an exact range of offsets into an Iceberg table, once, whatever is tried again.

The program is `memq.spark.apps.range_to_iceberg`; this file is what Spark is given.
"""

from __future__ import annotations

import sys

from memq.spark.app import run
from memq.spark.apps.range_to_iceberg import main

if __name__ == "__main__":
    sys.exit(run(main))
