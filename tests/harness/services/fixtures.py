"""A pytest plugin: real services for tests, each started on first use.

A test that needs a service which this machine cannot run is skipped, and the last line that pytest
prints says so. With `MEMQ_REQUIRE_SERVICES=1` in the environment it fails.
"""

import os
import textwrap
from collections import Counter
from collections.abc import Generator, Iterator

import pytest

from tests.harness.services.browser import Browser
from tests.harness.services.errors import ServiceUnavailableError
from tests.harness.services.jars import Jars
from tests.harness.services.kafka import Kafka
from tests.harness.services.s3proxy import S3Proxy
from tests.harness.services.zookeeper import ZooKeeper

REQUIRED = "MEMQ_REQUIRE_SERVICES"
MISSING = pytest.StashKey[Counter[str]]()  # tests that were skipped, by `service: reason`
PROPERTY = "skipped for want of"
"""Name of the JUnit property of such a test; its value is `service: reason`."""
SHOWN_CHARACTERS = 200  # of each reason, so that all are one line


@pytest.fixture(scope="session")
def service_jars() -> Jars:
    """The jars that all services of these tests run."""
    return Jars()


@pytest.fixture(scope="session")
def s3_server(service_jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Proxy]:
    """An S3-compatible server for all tests; each makes a bucket of its own."""
    with S3Proxy(tmp_path_factory.mktemp("s3"), jars=service_jars) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(
    service_jars: Jars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeper]:
    """A ZooKeeper server for all tests; each has a node of its own for its root."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper"), jars=service_jars) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(service_jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka for all tests; each makes topics of its own."""
    with Kafka(tmp_path_factory.mktemp("kafka"), jars=service_jars) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of a module."""
    with Browser() as started:
        yield started


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Turn the error of a service that this machine cannot run into a skip."""
    error = call.excinfo.value if call.excinfo else None
    if not isinstance(error, ServiceUnavailableError) or os.environ.get(REQUIRED) == "1":
        return
    skipped = pytest.CallInfo.from_call(lambda: pytest.skip(str(error)), call.when)
    call.excinfo = skipped.excinfo
    why = f"{error.service}: {error.reason.splitlines()[0]}"
    item.user_properties.append((PROPERTY, why))


def pytest_configure(config: pytest.Config) -> None:
    """Count what is skipped, in whichever process."""
    config.pluginmanager.register(_Counting(config))


class _Counting:
    def __init__(self, config: pytest.Config) -> None:
        self._missing = config.stash[MISSING] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that was skipped for want of a service."""
        for name, why in report.user_properties:
            if name == PROPERTY and report.skipped:
                self._missing[textwrap.shorten(str(why), SHOWN_CHARACTERS, placeholder=" …")] += 1


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """After all that pytest says, say what was skipped."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    missing = session.config.stash[MISSING]
    if missing and reporter is not None:
        parts = (f"{count} for want of {why}" for why, count in sorted(missing.items()))
        line = f"!!! TESTS WERE SKIPPED: {'; '.join(parts)} !!!"
        reporter.write_line(line, red=True, bold=True)
