"""Run a Spark program over one exact range at AWS: on EMR Serverless, as an EMR step, by Glue.

What is checked before and after is in `range_job`, and how a job is found again in `aws_job`.

Glue passes arguments to a program by name, adds some of its own, and keeps names for itself, such
as `--mode`. So the program's arguments travel as one, `--memq_arguments`, which the programs of
`spark_apps/` understand (`memq.spark.app.own_arguments`).
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Never

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.launch.aws_job import AwsRangeJobMixin
from airflow_provider_memq.triggers.aws import MemqEmrStepTrigger, MemqGlueTrigger
from memq.core.defaults import GLUE_ARGUMENTS

with from_extra("amazon"):
    from airflow.providers.amazon.aws.operators.emr import (
        EmrAddStepsOperator,
        EmrServerlessStartJobOperator,
    )
    from airflow.providers.amazon.aws.operators.glue import GlueJobOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "memq-range"


class MemqEmrServerlessOperator(AwsRangeJobMixin, EmrServerlessStartJobOperator):
    """Runs a Spark program over exactly one range on EMR Serverless, and checks its manifest.

    The task's `aws_conn_id` starts the job and reads the manifest; the job reads Batches and writes
    files with `execution_role_arn`. A retry finds the job that an earlier try has started. Killing
    the task cancels the job.

    Args:
        application: the program, such as `s3://code/range_to_parquet.py` (templated).
        spark_submit_parameters: what `spark-submit` takes, such as `--conf k=v` (templated).
        **kwargs: as `RangeJobMixin` and `EmrServerlessStartJobOperator`, but for `job_driver` and
            `client_request_token`.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        Exception: as `RangeJobMixin.begin`, `RangeJobMixin.end`, and
            `EmrServerlessStartJobOperator`.
    """

    template_fields = ("application", "spark_submit_parameters")
    starts, answers = "start_job_run", "jobRunId"
    asks, state_at, unknown = "get_job_run", "jobRun.state", "ResourceNotFoundException"
    is_over = frozenset({"FAILED", "CANCELLING", "CANCELLED"})

    def __init__(
        self, *, application: str, spark_submit_parameters: str = "", **kwargs: Any
    ) -> None:
        self._take(locals())
        super().__init__(job_driver={}, **{"name": NAME} | kwargs)

    def give(self, arguments: list[str], token: str) -> None:
        """Fill in the driver; the service takes a token once, however often it is sent."""
        driver = {"entryPoint": self.application, "entryPointArguments": arguments}
        if self.spark_submit_parameters:
            driver["sparkSubmitParameters"] = self.spark_submit_parameters
        self.job_driver = {"sparkSubmit": driver}
        self.client_request_token = token

    def key_of(self, job: str) -> dict[str, Any]:
        """Name a job run."""
        return {"applicationId": self.application_id, "jobRunId": job}

    def on_kill(self) -> None:
        """Cancel the job, also one that Airflow's operator has not noted yet."""
        self.job_id = self.job_id or self.running
        super().on_kill()


class MemqEmrStepOperator(AwsRangeJobMixin, EmrAddStepsOperator):
    """Runs a Spark program over exactly one range as a step of an EMR cluster, and checks its
    manifest.

    It adds one step, which calls `spark-submit`, and waits for it. A retry finds the step that an
    earlier try has added. Killing the task cancels the step, also while it is deferred.

    Args:
        application: the program, such as `s3://code/range_to_parquet.py` (templated).
        spark_submit_args: what `spark-submit` takes before the program, one text each, such as
            `["--deploy-mode", "cluster"]` (templated).
        step_name: how the step is called (templated).
        action_on_failure: what the cluster does when the step fails: "CONTINUE",
            "CANCEL_AND_WAIT" or "TERMINATE_CLUSTER".
        **kwargs: as `RangeJobMixin` and `EmrAddStepsOperator`, but for `steps`.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        Exception: as `RangeJobMixin.begin`, `RangeJobMixin.end`, and `EmrAddStepsOperator`.
    """

    template_fields = ("application", "spark_submit_args", "step_name")
    template_ext: Sequence[str] = ()  # a manifest ends in .json, and is no template
    starts, answers = "add_job_flow_steps", "StepIds"
    asks, state_at, unknown = "describe_step", "Step.Status.State", "InvalidRequestException"
    is_over = frozenset({"FAILED", "INTERRUPTED", "CANCEL_PENDING", "CANCELLED"})

    def __init__(
        self,
        *,
        application: str,
        spark_submit_args: Sequence[str] = (),
        step_name: str = NAME,
        action_on_failure: str = "CONTINUE",
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        super().__init__(**kwargs)

    @cached_property
    def cluster(self) -> str:
        """Id of the cluster."""
        found = self.job_flow_id or self.hook.get_cluster_id_by_name(
            str(self.job_flow_name), self.cluster_states
        )
        return found or ""  # which the operator of Airflow refuses, by name

    def give(self, arguments: list[str], token: str) -> None:  # noqa: ARG002 - EMR takes no tokens
        """Fill in the step."""
        submit = ["spark-submit", *map(str, self.spark_submit_args), self.application, *arguments]
        self.steps = [
            {
                "Name": self.step_name,
                "ActionOnFailure": self.action_on_failure,
                "HadoopJarStep": {"Jar": "command-runner.jar", "Args": submit},
            }
        ]

    def key_of(self, job: str) -> dict[str, Any]:
        """Name a step."""
        return {"ClusterId": self.cluster, "StepId": job}

    def defer(self, *, trigger: Any, **kwargs: Any) -> Never:
        """Wait in the triggerer, by a trigger that cancels the step when the task is killed."""
        super().defer(trigger=MemqEmrStepTrigger(**trigger.serialize()[1]), **kwargs)

    def on_kill(self) -> None:
        """Cancel the step."""
        if self.running:
            self.log.info("cancelling step %s of %s", self.running, self.cluster)
            self.hook.conn.cancel_steps(
                ClusterId=self.cluster,
                StepIds=[self.running],
                StepCancellationOption="TERMINATE_PROCESS",
            )


class MemqGlueOperator(AwsRangeJobMixin, GlueJobOperator):
    """Runs a Spark program over exactly one range as a job of AWS Glue, and checks its manifest.

    A retry finds the run that an earlier try has started. Killing the task stops the run, also
    while it is deferred.

    Args:
        stop_job_run_on_kill: False leaves a run alone when the task is killed.
        **kwargs: as `RangeJobMixin` and `GlueJobOperator`, except `durable`, which is always on.
            The program `script_location` must understand `--memq_arguments`, as those of
            `spark_apps/` do.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        Exception: as `RangeJobMixin.begin`, `RangeJobMixin.end`, and `GlueJobOperator`.
    """

    starts, answers = "start_job_run", "JobRunId"
    asks, state_at, unknown = "get_job_run", "JobRun.JobRunState", "EntityNotFoundException"
    is_over = frozenset({"FAILED", "TIMEOUT", "STOPPING", "STOPPED", "ERROR", "EXPIRED"})

    def __init__(self, *, stop_job_run_on_kill: bool = True, **kwargs: Any) -> None:
        # Durable, Airflow would take the result of a run that was judged before.
        super().__init__(stop_job_run_on_kill=stop_job_run_on_kill, durable=False, **kwargs)

    def give(self, arguments: list[str], token: str) -> None:  # noqa: ARG002 - Glue takes no tokens
        """Fill in the arguments."""
        self.script_args = {**self.script_args, GLUE_ARGUMENTS: json.dumps(arguments)}

    def key_of(self, job: str) -> dict[str, Any]:
        """Name a run of the job."""
        return {"JobName": self.job_name, "RunId": job}

    def defer(self, *, trigger: Any, **kwargs: Any) -> Never:
        """Wait in the triggerer, by a trigger that stops the run when the task is killed."""
        own = MemqGlueTrigger(**trigger.serialize()[1], stop_on_kill=self.stop_job_run_on_kill)
        super().defer(trigger=own, **kwargs)

    def on_kill(self) -> None:
        """Stop the run, also one that Airflow's operator has not noted yet."""
        self._job_run_id = self._job_run_id or self.running
        super().on_kill()  # type: ignore[no-untyped-call]
