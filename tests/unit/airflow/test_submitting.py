"""What `spark-submit` is given, as a process of the machine sees it."""

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.launch.range_job import RangeRun
from airflow_provider_memq.operators.memq import MemqAuditOperator, MemqSparkSubmitOperator
from airflow_provider_memq.planning.ranges import RangeContents
from memq.core.defaults import STORAGE_OPTIONS_VARIABLE, TOKEN_VARIABLE
from memq.core.named_values import parse_storage_options
from memq.core.ranges import Interval, OffsetRange
from memq.errors import ConfigError
from tests.fakes.spark_submit import SparkSubmit, closed_pipes

TOKEN = "s3cr3t"  # noqa: S105 - it protects nothing
RANGE = OffsetRange(0, 1, 3, "0123456789abcdef")
PROGRAM = "/apps/range_to_parquet.py"
STANDALONE = "spark://master:7077"
IN_KUBERNETES = "k8s://https%3A%2F%2Fmaster:443?namespace=jobs&deploy-mode=cluster"
CONNECTIONS = {
    "none": None,
    "local": "local://",
    "standalone": STANDALONE,
    "yarn": "yarn://",
    "yarn cluster": "yarn://?deploy-mode=cluster",
    "kubernetes": "k8s://https%3A%2F%2Fmaster:443?namespace=jobs",
    "kubernetes cluster": IN_KUBERNETES,
}


@pytest.fixture(autouse=True)
def submitted(tmp_path, monkeypatch):
    """A stand-in for `spark-submit`; a token; Airflow as if it had its Kubernetes package."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://:{TOKEN}@127.0.0.1:6367")
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with closed_pipes(monkeypatch):
        yield SparkSubmit(tmp_path, monkeypatch)


def operator(**options):
    return MemqSparkSubmitOperator(
        task_id="process",
        topic="clicks",
        application=PROGRAM,
        conn_id="memq_spark",
        default_master="local[2]",
        **{"output_dir": "/out"} | options,
    )


def hook_of(task):
    task.application_args = task.arguments(RangeRun(RangeContents(RANGE), "/manifest.json", None))
    hook = task._get_hook()
    hook._spark_exit_code = 0  # of a pod; the stand-in has none
    return hook


@pytest.mark.parametrize("connection", CONNECTIONS.values(), ids=CONNECTIONS)
def test_the_token_stands_on_no_command_line(submitted, monkeypatch, connection):
    """Whatever Spark runs on, the token is in the environment of `spark-submit` and only there.

    A cluster has a Python of its own.
    """
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", connection)
    hook = hook_of(operator(env_vars={"COLOUR": "red"}))

    command = hook._build_spark_submit_command(PROGRAM)
    hook_of(operator()).submit(PROGRAM)
    hook.submit(PROGRAM)

    (_, plain), (arguments, variables) = submitted.calls
    assert not [each for each in (*command, *arguments) if TOKEN in each]
    assert arguments[arguments.index("--token-env") + 1] == TOKEN_VARIABLE
    assert plain[TOKEN_VARIABLE] == variables[TOKEN_VARIABLE] == TOKEN
    assert variables.get("COLOUR") == "red" or "driverEnv.COLOUR=red" in " ".join(arguments)
    assert ("PYSPARK_PYTHON" in plain) is (connection in {None, "local://"})


def test_the_program_reads_by_the_aws_connection(submitted, monkeypatch):
    """Credentials for Batches in S3 are in the environment only, and none that it cannot hold."""
    uri = f"memq://:{TOKEN}@127.0.0.1:6367?aws_conn_id=lake"
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", uri)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://me:hush%2Cregion%3Dhush@")
    with pytest.raises(ConfigError, match="'lake': secret_access_key has a comma") as refused:
        hook_of(operator()).submit(PROGRAM)
    assert "hush" not in str(refused.value)

    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://me:hush@?region_name=eu-west-1")
    hook_of(operator()).submit(PROGRAM)

    ((arguments, variables),) = submitted.calls
    assert "hush" not in "".join(arguments)
    assert dict(parse_storage_options(variables[STORAGE_OPTIONS_VARIABLE])) == {
        "access_key_id": "me",
        "secret_access_key": "hush",
        "region": "eu-west-1",
    }


def test_a_driver_in_the_cluster_needs_the_token_from_there(monkeypatch, capsys):
    """The log says so, since nothing that Airflow has can carry it there unseen."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", IN_KUBERNETES)

    hook_of(operator())

    assert f"its environment must have {TOKEN_VARIABLE}" in capsys.readouterr().out


def test_a_machine_without_java_says_so_first(tmp_path, monkeypatch):
    """What `spark-submit` says in many lines is one error; a task's own JAVA_HOME is trusted."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ConfigError, match=r"no Java: JAVA_HOME = .* has none\. Spark"):
        hook_of(operator())
    hook_of(operator(env_vars={"JAVA_HOME": "/another"}))
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_SPARK", STANDALONE)
    hook_of(operator())  # its driver may run elsewhere


def test_a_failed_audit_does_not_tell_the_token(submitted, monkeypatch):
    """The error of a program that failed has its command line; the token is not in it."""
    monkeypatch.setenv("EXIT_CODE", "1")
    audit = MemqAuditOperator(
        task_id="audit",
        topic="clicks",
        output_dir="/out",
        application="/apps/audit_reconcile.py",
        default_master="local[2]",
    )

    with pytest.raises(AirflowException, match=r"--token-env MEMQ_TOKEN") as raised:
        audit._audit_by_spark(Interval(0, 1))

    ((arguments, variables),) = submitted.calls
    assert TOKEN not in str(raised.value) + "".join(arguments)
    assert variables[TOKEN_VARIABLE] == TOKEN
