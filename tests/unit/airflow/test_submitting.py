"""What `spark-submit` is given, as a process of the machine sees it."""

from __future__ import annotations

import gc
import os

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.operators.memq import MemqAuditOperator, MemqSparkSubmitOperator
from airflow_provider_memq.operators.range_job import RangeRun
from airflow_provider_memq.ranges import RangeContents
from memq.core.defaults import STORAGE_OPTIONS_VARIABLE, TOKEN_VARIABLE
from memq.core.named_values import parse_storage_options
from memq.core.ranges import Interval, OffsetRange
from memq.errors import ConfigError
from tests.advice import follows

TOKEN = "s3cr3t"  # noqa: S105 - it protects nothing
RANGE = OffsetRange(0, 1, 3, "0123456789abcdef")

# What spark-submit says that the hook looks for, where it looks for something.
SUBMIT = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/arguments
env > {folder}/environment
echo submitted driver-1
exit {code}
"""

CONNECTIONS = {
    "none": None,
    "local": "local://",
    "standalone": "spark://master:7077",
    "yarn": "yarn://",
    "yarn cluster": "yarn://?deploy-mode=cluster",
    "kubernetes": "k8s://https%3A%2F%2Fmaster:443?namespace=jobs",
    "kubernetes cluster": "k8s://https%3A%2F%2Fmaster:443?namespace=jobs&deploy-mode=cluster",
}

# Airflow's own hook does not close the pipe of the program that it submitted.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    """A connection with a token, and none to Spark; Airflow as if it had its Kubernetes package."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://:{TOKEN}@127.0.0.1:6367")
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    yield
    gc.collect()  # that pipe, while its warning is expected


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Puts a stand-in for `spark-submit` on the PATH; gives what it was started with."""

    def install(code: int = 0):
        (tmp_path / "spark-submit").write_text(SUBMIT.format(folder=tmp_path, code=code))
        (tmp_path / "spark-submit").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return lambda: ((tmp_path / "arguments").read_text(), environment(tmp_path))

    return install


def environment(folder):
    lines = (folder / "environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def operator(**options):
    return MemqSparkSubmitOperator(
        task_id="process",
        topic="clicks",
        application="/apps/range_to_parquet.py",
        conn_id="memq_spark",
        default_master="local[2]",
        **{"output_dir": "/out"} | options,
    )


def hook_of(task):
    task.application_args = task.arguments(RangeRun(RangeContents(RANGE), "/manifest.json", None))
    return task._get_hook()


@pytest.mark.parametrize("own", [{}, {"COLOUR": "red"}], ids=["", "own variables"])
@pytest.mark.parametrize("connection", CONNECTIONS.values(), ids=CONNECTIONS)
def test_the_token_stands_on_no_command_line(submitted, monkeypatch, connection, own):
    """Whatever Spark runs on, the token is in the environment of `spark-submit` and only there."""
    started_with = submitted()
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", connection)
    hook = hook_of(operator(env_vars=own))
    hook._spark_exit_code = 0  # of a pod; the stand-in has none

    command = hook._build_spark_submit_command("/apps/range_to_parquet.py")
    hook.submit("/apps/range_to_parquet.py")

    arguments, variables = started_with()
    assert not [each for each in command if TOKEN in each]
    assert TOKEN not in arguments
    assert f"--token-env\n{TOKEN_VARIABLE}\n" in arguments
    assert variables[TOKEN_VARIABLE] == TOKEN
    if own:
        assert variables.get("COLOUR") == "red" or "driverEnv.COLOUR=red" in arguments


def test_the_program_reads_by_the_aws_connection(submitted, monkeypatch):
    """Credentials for Batches in S3 are in the environment of the program, and only there."""
    started_with = submitted()
    uri = f"memq://:{TOKEN}@127.0.0.1:6367?aws_conn_id=lake"
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", uri)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://me:hush@?region_name=eu-west-1")

    hook_of(operator()).submit("/apps/range_to_parquet.py")

    arguments, variables = started_with()
    assert "hush" not in arguments
    assert dict(parse_storage_options(variables[STORAGE_OPTIONS_VARIABLE])) == {
        "access_key_id": "me",
        "secret_access_key": "hush",
        "region": "eu-west-1",
    }


@follows("…, by which Spark programs get it; give the connection another one")
def test_a_secret_that_no_variable_holds(submitted, monkeypatch):
    """It is refused, and not taken for options of other names; the error does not show it."""
    started_with = submitted()
    uri = f"memq://:{TOKEN}@127.0.0.1:6367?aws_conn_id=lake"
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", uri)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://me:hush%2Cregion%3Dhush@")

    with pytest.raises(ConfigError, match="'lake': secret_access_key has a comma") as refused:
        hook_of(operator()).submit("/apps/range_to_parquet.py")
    assert "hush" not in str(refused.value)

    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://me:hush@")
    hook_of(operator()).submit("/apps/range_to_parquet.py")
    assert "secret_access_key=hush" in started_with()[1][STORAGE_OPTIONS_VARIABLE]


def test_a_standalone_cluster_takes_the_operator(submitted, monkeypatch):
    """A token is no reason to refuse a mode in which Airflow's hook takes no variables."""
    started_with = submitted()
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", "spark://master:7077?deploy-mode=cluster")

    hook_of(operator()).submit("/apps/range_to_parquet.jar")

    assert TOKEN not in started_with()[0]


def test_a_driver_in_the_cluster_needs_the_token_from_there(submitted, monkeypatch, capsys):
    """The log says so, since nothing that Airflow has can carry it there unseen."""
    submitted()
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", CONNECTIONS["kubernetes cluster"])

    hook_of(operator())

    assert f"its environment must have {TOKEN_VARIABLE}" in capsys.readouterr().out


def test_variables_of_a_user_come_first(submitted):
    """A task that gives a variable of its own overrides what the operator would set."""
    started_with = submitted()

    hook_of(operator(env_vars={"PYSPARK_PYTHON": "/other/python"})).submit("/apps/x.py")

    arguments, variables = started_with()
    assert variables["PYSPARK_PYTHON"] == "/other/python"
    assert "local[2]" in arguments
    assert "PYSPARK_PYTHON" not in arguments


def test_a_machine_without_java_says_so_first(tmp_path, monkeypatch):
    """What `spark-submit` says in many lines is one error; a task's own JAVA_HOME is trusted."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ConfigError, match=r"no Java: JAVA_HOME = .* has none\. Spark"):
        hook_of(operator())
    hook_of(operator(env_vars={"JAVA_HOME": "/another"}))
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", CONNECTIONS["standalone"])
    hook_of(operator())  # its driver may run elsewhere


def test_a_failed_audit_does_not_tell_the_token(submitted, tmp_path):
    """The error of a program that failed has its command line; the token is not in it."""
    started_with = submitted(code=1)
    audit = MemqAuditOperator(
        task_id="audit",
        topic="clicks",
        output_dir=str(tmp_path / "out"),
        application="/apps/audit_reconcile.py",
        default_master="local[2]",
    )

    with pytest.raises(AirflowException, match=r"--token-env MEMQ_TOKEN") as raised:
        audit._audit_by_spark(Interval(0, 1))

    assert TOKEN not in str(raised.value)
    assert TOKEN not in started_with()[0]
    assert started_with()[1][TOKEN_VARIABLE] == TOKEN


@pytest.mark.parametrize("connection", CONNECTIONS.values(), ids=CONNECTIONS)
def test_only_spark_on_this_machine_uses_its_python(submitted, monkeypatch, connection):
    """A cluster has a Python of its own, wherever that is."""
    started_with = submitted()
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", connection)
    hook = hook_of(operator())
    hook._spark_exit_code = 0  # of a pod; the stand-in has none

    hook.submit("/apps/range_to_parquet.py")

    here = connection in {None, CONNECTIONS["local"]}
    assert ("PYSPARK_PYTHON" in started_with()[1]) is here


S3A = "s3a://lake/clicks"


@pytest.fixture
def pip_spark(tmp_path, monkeypatch):
    """A Spark as `pip install pyspark` makes it: without S3A."""
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "hadoop-client-api-3.5.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    return home


def test_a_folder_that_spark_cannot_write_to_is_refused_before_the_submit(pip_spark):
    """The error of a Spark without S3A names the folder, and the package that brings it."""
    with pytest.raises(ConfigError, match=rf"{S3A}.*org.apache.hadoop:hadoop-aws:3.5.0"):
        hook_of(operator(output_dir=S3A))


@pytest.mark.parametrize(
    "options",
    [
        {"packages": "org.apache.hadoop:hadoop-aws:3.5.0"},
        {"jars": "/jars/hadoop-aws.jar"},
        {"conf": {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}},
        {"conf": {"spark.driver.extraClassPath": "/jars/*"}},
    ],
)
def test_who_brings_a_file_system_is_not_refused(pip_spark, options):
    """Whatever may hold S3A is not looked into."""
    hook_of(operator(output_dir=S3A, **options))


def test_a_spark_that_has_s3a_is_not_refused(pip_spark):
    """Neither is a Spark whose folder of jars has it, nor one on another machine."""
    (pip_spark / "jars" / "hadoop-aws-3.5.0.jar").touch()

    hook_of(operator(output_dir=S3A))


def test_a_cluster_is_not_judged(pip_spark, monkeypatch):
    """Its Spark is another one than that of this machine."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", "spark://master:7077")

    hook_of(operator(output_dir=S3A))
