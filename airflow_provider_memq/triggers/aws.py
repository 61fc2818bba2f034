"""Triggers of Airflow for jobs at AWS that end the job as well when its task is killed.

A task that is deferred has no process whose `on_kill` could. `EmrServerlessStartJobTrigger` of
Airflow does so by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_memq.extras import from_extra

with from_extra("amazon"):
    from airflow.providers.amazon.aws.triggers.emr import EmrAddStepsTrigger
    from airflow.providers.amazon.aws.triggers.glue import GlueJobCompleteTrigger


class MemqEmrStepTrigger(EmrAddStepsTrigger):
    """Waits for steps of an EMR cluster, and cancels them when the task is killed.

    Args:
        **kwargs: as `EmrAddStepsTrigger`.
    """

    async def on_kill(self) -> None:
        """Cancel the steps."""
        cluster, steps = (self.serialized_fields[name] for name in ("job_flow_id", "step_ids"))
        self.log.info("cancelling steps %s of %s", steps, cluster)
        await asyncio.to_thread(
            self.hook().get_conn().cancel_steps,
            ClusterId=cluster,
            StepIds=steps,
            StepCancellationOption="TERMINATE_PROCESS",
        )


class MemqGlueTrigger(GlueJobCompleteTrigger):
    """Waits for a run of a Glue job, and stops it when the task is killed.

    Args:
        stop_on_kill: False leaves it alone.
        **kwargs: as `GlueJobCompleteTrigger`.
    """

    def __init__(self, *, stop_on_kill: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stop_on_kill = stop_on_kill
        self.serialized_fields["stop_on_kill"] = stop_on_kill

    async def on_kill(self) -> None:
        """Stop the run."""
        if self.stop_on_kill:
            self.log.info("stopping run %s of job %s", self.run_id, self.job_name)
            await asyncio.to_thread(
                self.hook().get_conn().batch_stop_job_run,
                JobName=self.job_name,
                JobRunIds=[self.run_id],
            )
