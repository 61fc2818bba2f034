"""Folders have the names that Spark's own integration with OpenLineage gives them."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from airflow_provider_memq.lineage import name_of_folder
from tests.harness.airflow.rest import BACKSTOP_S
from tests.harness.airflow.standalone import BIN
from tests.unit.airflow.test_lineage import FOLDERS

pytestmark = pytest.mark.timeout(2 * BACKSTOP_S)  # its waits end by what happens

PROGRAM = """
import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
names = spark._jvm.io.openlineage.client.utils.filesystem.FilesystemDatasetUtils
uri = spark._jvm.java.net.URI
found = {each: names.fromLocation(uri(each)) for each in json.loads(sys.argv[1])}
print("NAMES", json.dumps({k: [v.getNamespace(), v.getName()] for k, v in found.items()}))
"""


def test_folders_are_called_what_spark_calls_them(tmp_path, openlineage_jar):
    """Letter by letter, so that the lineage of both is one graph."""
    program = tmp_path / "names.py"
    program.write_text(PROGRAM)
    options = f"--master local[1] --conf spark.ui.enabled=false --jars {openlineage_jar}".split()
    command = [BIN / "spark-submit", *options, program, json.dumps(list(FOLDERS))]
    env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("NAMES ")]
    names = json.loads(line.removeprefix("NAMES "))
    assert {each: list(name_of_folder(each)) for each in FOLDERS} == names
