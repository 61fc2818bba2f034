"""`MemqGlueOperator`: run a Spark program over one exact range as a job of AWS Glue.

What is checked before and after is in `range_job`, and how a job is found again in `aws_job`.

Glue passes arguments to a program by name, adds some of its own, and keeps names for itself, such
as `--mode`. So the program's arguments travel as one, `--memq_arguments`, which the programs of
`spark_apps/` understand (`memq.spark.app.own_arguments`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Never

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.launch.aws_job import LOOK_BACK, AwsRangeJobMixin
from airflow_provider_memq.triggers.aws import MemqGlueTrigger
from memq.core.defaults import GLUE_ARGUMENTS
from memq.errors import ConfigError

with from_extra("amazon"):
    from airflow.providers.amazon.aws.operators.glue import (
        JOB_RUN_SUCCESS_STATES,
        JOB_RUN_TERMINAL_STATES,
        GlueJobOperator,
    )

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TOKEN = "--memq_job"  # noqa: S105 - the name of an argument
_PAGE = 200  # runs that Glue lists at a time, at most


class MemqGlueOperator(AwsRangeJobMixin, GlueJobOperator):
    """Runs a Spark program over exactly one range as a job of AWS Glue, and checks its manifest.

    A retry finds the run that an earlier try has started. Killing the task stops the run, also
    while it is deferred.

    Args:
        script_location: the program, as `GlueJobOperator` takes it (templated); it must understand
            `--memq_arguments`, as the programs of `spark_apps/` do.
        stop_job_run_on_kill: False leaves a run alone when the task is killed.
        **kwargs: as `RangeJobMixin` and `GlueJobOperator`, but for `durable`, which is always so.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        Exception: as `RangeJobMixin.begin`, `RangeJobMixin.end`, and `GlueJobOperator`.
    """

    operator_extra_links: Any = (
        *GlueJobOperator.operator_extra_links,
        *AwsRangeJobMixin.operator_extra_links,
    )
    template_fields: Sequence[str] = (
        *GlueJobOperator.template_fields,
        *AwsRangeJobMixin.template_fields,
    )
    told = (*AwsRangeJobMixin.template_fields, "job_name", "script_location")
    starts = "start_job_run"
    is_over = frozenset({*JOB_RUN_TERMINAL_STATES, "STOPPING"} - {*JOB_RUN_SUCCESS_STATES})

    def __init__(
        self,
        *,
        script_location: str | None = None,
        stop_job_run_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            script_location=script_location,
            stop_job_run_on_kill=stop_job_run_on_kill,
            durable=False,  # Airflow would take the result of a run that was judged before
            **kwargs,
        )
        if not self.wait_for_completion:
            raise ConfigError("wait_for_completion = False: the manifest is checked after the job")

    def give(self, arguments: list[str], token: str) -> None:
        """Fill in the arguments."""
        own = {GLUE_ARGUMENTS: json.dumps(arguments), _TOKEN: token}
        self.script_args = {**self.script_args, **own}

    def state_of(self, job: str) -> str | None:
        """Of a run of the job."""
        client = self.hook.conn
        try:
            found = client.get_job_run(JobName=self.job_name, RunId=job)
        except client.exceptions.EntityNotFoundException:
            return None
        return str(found["JobRun"]["JobRunState"])

    def jobs(self) -> Iterator[tuple[str, str, str]]:
        """Runs of the job; none where there is no such job yet."""
        client = self.hook.conn
        pages = client.get_paginator("get_job_runs").paginate(
            JobName=self.job_name, PaginationConfig={"MaxItems": LOOK_BACK, "PageSize": _PAGE}
        )
        try:
            for page in pages:
                for run in page["JobRuns"]:
                    yield run["Id"], run["JobRunState"], run.get("Arguments", {}).get(_TOKEN, "")
        except client.exceptions.EntityNotFoundException:
            return

    def answer(self, job: str) -> dict[str, Any]:
        """Of `StartJobRun`."""
        return {"JobRunId": job}

    def started(self, answer: dict[str, Any]) -> str:
        """By `StartJobRun`."""
        return str(answer["JobRunId"])

    def defer(self, *, trigger: Any, **kwargs: Any) -> Never:
        """Wait in the triggerer, by a trigger that stops the run when the task is killed."""
        own = MemqGlueTrigger(**trigger.serialize()[1], stop_on_kill=self.stop_job_run_on_kill)
        super().defer(trigger=own, **kwargs)
