"""Compare what was produced with what is stored and consumed, and keep the findings as a table.

The program is `memq.spark.apps.audit_reconcile`; this file is what Spark is given.
"""

from __future__ import annotations

import sys

from memq.spark.app import run
from memq.spark.apps.audit_reconcile import main

if __name__ == "__main__":
    sys.exit(run(main))
