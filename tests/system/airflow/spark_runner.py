"""Runs Spark programs in one process, where the JVM of the first serves all: it takes seconds.

Reads a line with a JSON list, the program and its arguments, and answers with its exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from tests.system.spark.conftest import SPARK_CONFIG


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print is not an answer
    settings = " ".join(f"--conf {name}={value}" for name, value in SPARK_CONFIG.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{settings} pyspark-shell"
    for line in sys.stdin:
        sys.argv = json.loads(line)
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        print(code, file=answers, flush=True)


if __name__ == "__main__":
    main()
