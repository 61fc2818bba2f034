"""Settings shared by all tests, and a broker for those that want one as it comes."""

import atexit
import logging
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings

from memq.testing.broker import BrokerProcess
from tests.harness import spark_classes
from tests.topics.lopsided import lopsided as lopsided_topic

pytest_plugins = ["tests.harness.services.fixtures", "tests.harness.scheduling"]

# No deadline: a busy machine is not a failing test. `--hypothesis-profile=thorough` tries more.
settings.register_profile("default", max_examples=15, deadline=None, print_blob=True)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile("default")

PYTEST_LOGGING = "_pytest.logging"

# A script that starts the suite with `&` has it ignore SIGINT, and every process below it: the
# commands that the tests interrupt would go on.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Profiles of the one who runs the tests are not for them, nor for the processes that they start.
os.environ["MEMQ_CONFIG"] = os.devnull
os.environ.pop("MEMQ_PROFILE", None)

# For every Spark that a test or a program of it starts; those that are killed leave files.
_spark_files = tempfile.mkdtemp(prefix="memq-spark-")
atexit.register(shutil.rmtree, _spark_files, ignore_errors=True)
os.environ["SPARK_LOCAL_DIRS"] = _spark_files
os.environ[spark_classes.VARIABLE] = (
    f"{spark_classes.java_options()} -Djava.io.tmpdir={_spark_files}"
)


@pytest.fixture(autouse=True, scope="module")
def _logging():
    """Take back what others do to logging: Airflow makes it write to stdout once it is imported."""
    root = logging.getLogger()
    root.handlers[:] = [each for each in root.handlers if type(each).__module__ == PYTEST_LOGGING]
    root.setLevel(logging.WARNING)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker for all tests of a module."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="module", params=["memory", "kafka"])
def lopsided(request, tmp_path_factory):
    """A topic whose read partitions differ in all that they can; nobody changes it."""
    with lopsided_topic(tmp_path_factory.mktemp("lopsided"), request.param) as topic:
        yield topic
