"""EMR Serverless, EMR and Glue in this process: moto's server, whose jobs really run.

moto keeps jobs, and would say of each that it is done. Here a job is done when somebody ran its
program with the arguments that the service was told, or says what became of it. What moto lacks of
the calls that end a job is added.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
from moto.core.responses import ActionResult
from moto.emr.models import Cluster, ElasticMapReduceBackend
from moto.emr.responses import ElasticMapReduceResponse
from moto.emrserverless.models import EMRServerlessBackend, emrserverless_backends
from moto.glue.models import FakeJob, FakeJobRun
from moto.glue.responses import GlueResponse
from moto.moto_api import state_manager
from moto.server import ThreadedMotoServer

from airflow_provider_memq.operators.memq import (
    MemqEmrServerlessOperator,
    MemqEmrStepOperator,
    MemqGlueOperator,
)
from airflow_provider_memq.planning.ranges import range_key
from memq.core.ranges import OffsetRange
from memq.spark.app import own_arguments
from tests.fakes import light_app
from tests.harness.airflow.rest import BACKSTOP_S, until

TOPIC = "clicks"
KEY = range_key(OffsetRange(0, 1, 3))
PROGRAM = "s3://code/range_to_parquet.py"
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/memq"
GLUE_JOB = "ranges"
REGION = "eu-west-1"
WAIT_S = 60

RUNNING = "RUNNING"  # of all three
STATES = {"EmrServerless": "SUCCESS", "EmrStep": "COMPLETED", "Glue": "SUCCEEDED"}
CANCELLED = {"EmrServerless": "CANCELLED", "EmrStep": "CANCELLED", "Glue": "STOPPED"}
ROWS = [b"value 1", b"value 2"]  # of the range


@dataclass
class Job:
    """A job that a service was told to run.

    Attributes:
        service: which.
        id: that the service gave it.
        arguments: the program as the service has it, and what it passes to it.
    """

    service: str
    id: str
    arguments: list[str]
    _model: Any

    @property
    def name(self) -> str:
        """By which people know it."""
        return str(self._model.name)

    @property
    def state(self) -> str:
        """As the service says."""
        return str(self._model._status if self.service == "Glue" else self._model.state)

    @state.setter
    def state(self, state: str) -> None:
        name = "_status" if self.service == "Glue" else "state"
        setattr(self._model, name, state)

    def run(self, run: Callable[[list[str]], int]) -> None:
        """Run the program to its end, which is the job's."""
        self.state = STATES[self.service] if run(self.arguments) == 0 else "FAILED"


class Aws:
    """The services.

    Attributes:
        url: of their endpoint.
        jobs: what they were told to run, in order.
        application: of EMR Serverless.
        cluster: of EMR.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.jobs: list[Job] = []
        serverless = self.client("emr-serverless").create_application(
            name="ranges", releaseLabel="emr-8.0.0", type="SPARK", clientToken="t"
        )
        self.application = serverless["applicationId"]
        self.client("emr-serverless").start_application(applicationId=self.application)
        # moto knows no list of runs before there is one.
        emrserverless_backends[ACCOUNT][REGION].job_runs[self.application] = []
        self.cluster = self.client("emr").run_job_flow(
            Name="ranges",
            Instances={"InstanceCount": 1, "KeepJobFlowAliveWhenNoSteps": True},
            JobFlowRole="role",
            ServiceRole="role",
        )["JobFlowId"]
        self.client("glue").create_job(
            Name=GLUE_JOB,
            Role=ROLE,
            Command={"Name": "glueetl", "ScriptLocation": "s3://code/range_to_parquet.py"},
            ExecutionProperty={"MaxConcurrentRuns": 10},
        )

    def client(self, service: str) -> Any:
        return boto3.client(service, region_name=REGION, endpoint_url=self.url)

    def next_job(self) -> Job:
        """The newest job, when it has arrived."""
        until(lambda: self.jobs, "a job")
        return self.jobs[-1]


@contextmanager
def services(patch: Any) -> Iterator[Aws]:
    """Start the services, and put them into the environment of the tests.

    Args:
        patch: of pytest, which undoes what it did at the end of the tests.
    """
    state_manager.set_transition("glue::job_run", {"progression": "manual", "times": 10**9})
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    for name in ("AWS_PROFILE", "AIRFLOW_CONN_AWS_DEFAULT", "AWS_ENDPOINT_URL"):
        patch.delenv(name, raising=False)
    settings = {
        **{f"AWS_ENDPOINT_URL_{name}": f"http://127.0.0.1:{port}" for name in _ENDPOINTS},
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": REGION,
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in settings.items():
        patch.setenv(name, value)
    try:
        here = Aws(port)
        _record_jobs(here, patch)
        yield here
    finally:
        server.stop()
        state_manager.unset_transition("glue::job_run")


_ENDPOINTS = ("EMR", "EMR_SERVERLESS", "GLUE", "S3", "STS", "IAM")


def _record_jobs(here: Aws, patch: Any) -> None:
    serverless, steps, runs = (
        EMRServerlessBackend.start_job_run,
        Cluster.add_steps,
        FakeJob.start_job_run,
    )

    by_token: dict[str, Any] = {}

    def start_serverless(self: Any, *args: Any, client_token: str, **kwargs: Any) -> Any:
        if client_token in by_token:  # moto takes a token twice, and the service does not
            return by_token[client_token]
        run = serverless(self, *args, client_token=client_token, **kwargs)
        by_token[client_token] = run
        driver = run.job_driver["sparkSubmit"]
        run.state = RUNNING
        arguments = [driver["entryPoint"], *driver["entryPointArguments"]]
        here.jobs.append(Job("EmrServerless", run.id, arguments, run))
        return run

    def add_steps(self: Any, given: Any) -> Any:
        added = steps(self, given)
        for step in added:
            step.state = RUNNING
            start = next(i for i, text in enumerate(step.args) if text.endswith(".py"))
            here.jobs.append(Job("EmrStep", step.id, step.args[start:], step))
        return added

    def start_glue(self: Any, **kwargs: Any) -> str:
        run_id: str = runs(self, **kwargs)
        run: FakeJobRun = self.job_runs[-1]
        run.status = RUNNING
        given = itertools.chain.from_iterable(run.arguments.items())
        # As Glue calls a program: with arguments of its own on both sides.
        before = ["--JOB_ID", "j_1", "true", "--JOB_RUN_ID", run_id]
        program = self.command["ScriptLocation"]
        arguments = [program, *before, *given, "--JOB_NAME", self.name]
        here.jobs.append(Job("Glue", run_id, arguments, run))
        return run_id

    patch.setattr(EMRServerlessBackend, "start_job_run", start_serverless)
    patch.setattr(Cluster, "add_steps", add_steps)
    patch.setattr(FakeJob, "start_job_run", start_glue)
    patch.setattr(ElasticMapReduceResponse, "cancel_steps", _cancel_steps, raising=False)
    patch.setattr(GlueResponse, "batch_stop_job_run", _batch_stop_job_run, raising=False)


def _cancel_steps(self: ElasticMapReduceResponse) -> ActionResult:
    backend: ElasticMapReduceBackend = self.backend
    for step in self._get_param("StepIds"):
        found = backend.describe_step(self._get_param("ClusterId"), step)
        found.state = "CANCELLED"
    return ActionResult({"CancelStepsInfoList": []})


def _batch_stop_job_run(self: GlueResponse) -> ActionResult | str:
    job = self.glue_backend.get_job(self._get_param("JobName"))
    for run in self._get_param("JobRunIds"):
        job.get_job_run(run).status = "STOPPED"
    stopped = [{"JobName": job.name, "JobRunId": run} for run in self._get_param("JobRunIds")]
    return json.dumps({"SuccessfulSubmissions": stopped, "Errors": []})


def light(arguments: list[str]) -> int:
    """Does here, and without Spark, what the real program does."""
    light_app.main(own_arguments(arguments[1:]))
    return 0


def values(out) -> list[bytes]:
    """What stands in the output."""
    files = sorted(Path(out).glob("memq_topic=*/*/*/memq_range=*/*.parquet"))
    return sorted(v for f in files for v in pq.ParquetFile(f).read()["value"].to_pylist())


def operator(launcher, application, cluster, out, **options):
    """A task of this launcher, as a DAG would have it."""
    common = {
        "task_id": "process",
        "topic": TOPIC,
        "range_key": KEY,
        "output_dir": str(out),
        "aws_conn_id": None,
        "waiter_delay": 1,
    }
    emr = {"application": PROGRAM, "waiter_max_attempts": int(BACKSTOP_S)}
    if launcher == "EmrServerless":
        emr |= {"application_id": application, "execution_role_arn": ROLE}
        own = {"spark_submit_parameters": "--conf spark.executor.cores=2"}
        return MemqEmrServerlessOperator(**common | emr | own | options)
    if launcher == "EmrStep":
        own = {"job_flow_id": cluster, "spark_submit_args": ["--deploy-mode", "cluster"]}
        return MemqEmrStepOperator(**common | emr | own | options)
    own = {"job_name": GLUE_JOB, "script_location": PROGRAM, "job_poll_interval": 0.05}
    return MemqGlueOperator(**common | own | options)
