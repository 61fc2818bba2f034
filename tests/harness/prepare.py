"""Get what tests of a new checkout would wait for: jars, programs, Spark's archive.

`make test` runs it beside the first tests, which need neither. Whoever needs something before it is
there waits for its lock, or does without the archive; what cannot be had is said by the tests that
need it, so here a line is enough.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.harness import spark_classes
from tests.harness.services import browser, prometheus
from tests.harness.services.errors import ServiceError
from tests.harness.services.jars import ARTIFACTS, Jars


def fetch_jars() -> None:
    """Fetch the jars of all services that are not there, one after the other."""
    jars = Jars()
    for artifact in ARTIFACTS:
        try:
            jars.get(artifact)
        except ServiceError as exc:
            sys.stderr.write(f"tests: {exc}\n")


def fetch_programs() -> None:
    """Fetch Debian's packages, one after the other."""
    for get in (browser.get, partial(prometheus.program, "prometheus")):
        try:
            get()
        except ServiceError as exc:
            sys.stderr.write(f"tests: {exc}\n")


def main() -> None:
    """Get all of it.

    Raises:
        RuntimeError: Spark does not run here.
        subprocess.TimeoutExpired: it takes too long.
    """
    with ThreadPoolExecutor() as threads:
        for work in [
            threads.submit(each) for each in (fetch_jars, fetch_programs, spark_classes.make)
        ]:
            work.result()


if __name__ == "__main__":
    main()
