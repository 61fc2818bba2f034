"""Run a Spark program over one exact range on Amazon EMR: `MemqEmrServerlessOperator` and
`MemqEmrStepOperator`.

What is checked before and after is in `range_job`, and how a job is found again in `aws_job`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Never

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.launch.aws_job import LOOK_BACK, AwsRangeJobMixin
from airflow_provider_memq.triggers.aws import MemqEmrStepTrigger
from memq.errors import ConfigError

with from_extra("amazon"):
    from airflow.providers.amazon.aws.operators.emr import (
        EmrAddStepsOperator,
        EmrServerlessStartJobOperator,
    )

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NAME = "memq-range"
_PAGE = 50  # jobs that both services list at a time, at most


class MemqEmrServerlessOperator(AwsRangeJobMixin, EmrServerlessStartJobOperator):
    """Runs a Spark program over exactly one range on EMR Serverless, and checks its manifest.

    The task's `aws_conn_id` starts the job and reads the manifest; the job reads Batches and writes
    files with `execution_role_arn`. A retry finds the job that an earlier try has started. Killing
    the task cancels the job.

    Args:
        application_id: of EMR Serverless (templated).
        execution_role_arn: role of the job (templated).
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

    operator_extra_links: Any = (
        *EmrServerlessStartJobOperator.operator_extra_links,
        *AwsRangeJobMixin.operator_extra_links,
    )
    template_fields: Sequence[str] = (
        *EmrServerlessStartJobOperator.template_fields,
        *AwsRangeJobMixin.template_fields,
        "application",
        "spark_submit_parameters",
    )
    told = (
        *AwsRangeJobMixin.template_fields,
        "application_id",
        "application",
        "spark_submit_parameters",
    )
    starts = "start_job_run"
    is_over = frozenset({"FAILED", "CANCELLING", "CANCELLED"})

    def __init__(
        self,
        *,
        application_id: str,
        execution_role_arn: str,
        application: str,
        spark_submit_parameters: str = "",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", _NAME)
        super().__init__(
            application_id=application_id,
            execution_role_arn=execution_role_arn,
            job_driver={},
            **kwargs,
        )
        if not self.wait_for_completion:
            raise ConfigError("wait_for_completion = False: the manifest is checked after the job")
        self.application = application
        self.spark_submit_parameters = spark_submit_parameters

    def give(self, arguments: list[str], token: str) -> None:
        """Fill in the driver; the service takes a token once, however often it is sent."""
        driver = {"entryPoint": self.application, "entryPointArguments": arguments}
        if self.spark_submit_parameters:
            driver["sparkSubmitParameters"] = self.spark_submit_parameters
        self.job_driver = {"sparkSubmit": driver}
        self.client_request_token = token
        name = self.config.get("name", self.name)  # which wins in Airflow's operator
        self.config = {**self.config, "name": f"{name} {token}"}

    def state_of(self, job: str) -> str | None:
        """Of a job run."""
        client = self.hook.conn
        try:
            found = client.get_job_run(applicationId=self.application_id, jobRunId=job)
        except client.exceptions.ResourceNotFoundException:
            return None
        return str(found["jobRun"]["state"])

    def jobs(self) -> Iterator[tuple[str, str, str]]:
        """Job runs of the application."""
        for page in self.hook.conn.get_paginator("list_job_runs").paginate(
            applicationId=self.application_id,
            PaginationConfig={"MaxItems": LOOK_BACK, "PageSize": _PAGE},
        ):
            for run in page["jobRuns"]:
                yield run["id"], run["state"], run.get("name") or ""

    def answer(self, job: str) -> dict[str, Any]:
        """Of `StartJobRun`."""
        return {"jobRunId": job}

    def started(self, answer: dict[str, Any]) -> str:
        """By `StartJobRun`."""
        return str(answer["jobRunId"])


class MemqEmrStepOperator(AwsRangeJobMixin, EmrAddStepsOperator):
    """Runs a Spark program over exactly one range as a step of an EMR cluster, and checks its
    manifest.

    It adds one step, which calls `spark-submit`, and waits for it. A retry finds the step that an
    earlier try has added. Killing the task cancels the step, also while it is deferred.

    Args:
        application: the program, such as `s3://code/range_to_parquet.py` (templated).
        spark_submit_args: what `spark-submit` takes before the program, one text each, such as
            `["--deploy-mode", "cluster"]` (templated).
        step_name: how the step is called; a token is added (templated).
        action_on_failure: what the cluster does when the step fails: "CONTINUE",
            "CANCEL_AND_WAIT" or "TERMINATE_CLUSTER".
        **kwargs: as `RangeJobMixin` and `EmrAddStepsOperator`, but for `steps` and
            `wait_for_completion`.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        Exception: as `RangeJobMixin.begin`, `RangeJobMixin.end`, and `EmrAddStepsOperator`.
    """

    operator_extra_links: Any = (
        *EmrAddStepsOperator.operator_extra_links,
        *AwsRangeJobMixin.operator_extra_links,
    )
    template_fields: Sequence[str] = (
        *EmrAddStepsOperator.template_fields,
        *AwsRangeJobMixin.template_fields,
        "application",
        "spark_submit_args",
        "step_name",
    )
    template_ext: Sequence[str] = ()  # a manifest ends in .json, and is no template
    told = (
        *AwsRangeJobMixin.template_fields,
        "job_flow_id",
        "job_flow_name",
        "application",
        "spark_submit_args",
    )
    starts = "add_job_flow_steps"
    is_over = frozenset({"FAILED", "INTERRUPTED", "CANCEL_PENDING", "CANCELLED"})

    def __init__(
        self,
        *,
        application: str,
        spark_submit_args: Sequence[str] = (),
        step_name: str = _NAME,
        action_on_failure: str = "CONTINUE",
        **kwargs: Any,
    ) -> None:
        super().__init__(wait_for_completion=True, **kwargs)
        self.application = application
        self.spark_submit_args = spark_submit_args
        self.step_name = step_name
        self.action_on_failure = action_on_failure

    @cached_property
    def cluster(self) -> str:
        """Id of the cluster."""
        found = self.job_flow_id or self.hook.get_cluster_id_by_name(
            str(self.job_flow_name), self.cluster_states
        )
        return found or ""  # which the operator of Airflow refuses, by name

    def give(self, arguments: list[str], token: str) -> None:
        """Fill in the step."""
        submit = ["spark-submit", *map(str, self.spark_submit_args), self.application, *arguments]
        self.steps = [
            {
                "Name": f"{self.step_name} {token}",
                "ActionOnFailure": self.action_on_failure,
                "HadoopJarStep": {"Jar": "command-runner.jar", "Args": submit},
            }
        ]

    def state_of(self, job: str) -> str | None:
        """Of a step."""
        client = self.hook.conn
        try:
            found = client.describe_step(ClusterId=self.cluster, StepId=job).get("Step")
        except client.exceptions.InvalidRequestException:
            return None
        return str(found["Status"]["State"]) if found else None

    def jobs(self) -> Iterator[tuple[str, str, str]]:
        """Steps of the cluster, the newest first."""
        for page in self.hook.conn.get_paginator("list_steps").paginate(
            ClusterId=self.cluster, PaginationConfig={"MaxItems": LOOK_BACK}
        ):
            for step in page["Steps"]:
                yield step["Id"], step["Status"]["State"], step["Name"]

    def answer(self, job: str) -> dict[str, Any]:
        """Of `AddJobFlowSteps`."""
        return {"StepIds": [job]}

    def started(self, answer: dict[str, Any]) -> str:
        """By `AddJobFlowSteps`."""
        return str(answer["StepIds"][0])

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
