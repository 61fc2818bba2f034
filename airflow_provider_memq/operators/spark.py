"""Run a Spark program over one exact range: by `spark-submit`, or by Spark Connect.

With Spark Connect the program is also a process next to the task, but what it asks of Spark runs in
a server elsewhere. Its address, with the token of that connection, is in the environment of the
program (`SPARK_REMOTE`), where others of the machine cannot read it; so are the credentials for the
brokers. Python of the server must have memq, and reads Batches with what the server has.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch.range_job import RangeJobMixin
from airflow_provider_memq.launch.submitting import credentials_of, prepare

with from_extra("spark"):
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

REMOTE_VARIABLE = "SPARK_REMOTE"


class MemqSparkSubmitOperator(RangeJobMixin, SparkSubmitOperator):
    """Submits a Spark program that reads exactly one range, and checks its result manifest.

    The program gets the arguments of `spark_apps/range_to_parquet.py`: `--bootstrap --topic
    --topic-id --partition --start --end --output --manifest --job --mode`, and `--token-env`
    when the connection has a token, which travels in the environment of `spark-submit`: a driver in
    a cluster does not get it from there (see `submitting`). What is checked before the submit and
    after it: see `range_job`. Killing the task kills the submitted program.

    Args:
        application: the program (templated).
        default_master: the Spark master where there is no connection `conn_id`, such as
            "local[2]" (templated); without one that is an error, and not YARN.
        durable: False submits in each try, and when the task is cleared; what an earlier try left
            running in a cluster may run in parallel, and does no harm. True, the default of
            `SparkSubmitOperator`, waits for that instead; but when it has succeeded, a task that is
            cleared takes its manifest for good and submits nothing.
        **kwargs: as `RangeJobMixin` and `SparkSubmitOperator`, but for `application_args`.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        Exception: as `RangeJobMixin.begin`, `RangeJobMixin.end`, and `SparkSubmitOperator`.
    """

    template_fields = ("default_master",)

    def __init__(
        self,
        *,
        application: str,
        default_master: str | None = None,
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        kwargs.setdefault("name", "memq-range")
        super().__init__(application=application, durable=durable, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit, wait, and check the manifest."""
        run = self.begin()
        self.application_args = self.arguments(run)
        super().execute(context)
        return self.end(context, run._replace(earlier=None) if self.durable else run)

    def _get_hook(self) -> SparkSubmitHook:
        settings = MemqHook(self.memq_conn_id).settings()
        hook = super()._get_hook()
        prepare(hook, settings, self.default_master)
        return hook


class MemqSparkConnectOperator(RangeJobMixin):
    """Runs a Spark program over exactly one range by Spark Connect, and checks its manifest.

    `spark_apps/range_to_parquet.py` runs so; it must itself reach the place of the output, under
    the name that the server knows it by. Killing the task ends the program, which stops its
    session: the server interrupts what ran in it. A retry runs the range again, and replaces its
    files with the same rows.

    Args:
        application: the program, a Python file (templated).
        conn_id: connection of type `spark_connect` (templated).
        env_vars: more variables for the environment of the program (templated).
        **kwargs: as `RangeJobMixin`.

    Returns:
        As `RangeJobMixin.end`.

    Raises:
        AirflowException: the program failed; its log says why.
        Exception: as `RangeJobMixin.begin` and `RangeJobMixin.end`.
    """

    template_fields = ("application", "conn_id", "env_vars")

    def __init__(
        self,
        *,
        application: str,
        conn_id: str = SparkConnectHook.default_conn_name,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._take(locals())
        super().__init__(**kwargs)
        self._programs = SubprocessHook()

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the program, and check the manifest."""
        run = self.begin()
        settings = MemqHook(self.memq_conn_id).settings()
        variables = {
            REMOTE_VARIABLE: SparkConnectHook(self.conn_id).get_connection_url(),
            **credentials_of(settings),
            **(self.env_vars or {}),
        }
        command = [sys.executable, self.application, *self.arguments(run)]
        done = self._programs.run_command(command, {**os.environ, **variables}, cwd=".")
        if done.exit_code:
            raise AirflowException(
                f"{self.application} ended with {done.exit_code}; its log is above"
            )
        return self.end(context, run)

    def on_kill(self) -> None:
        """End the program, which stops its session."""
        self._programs.send_sigterm()  # type: ignore[no-untyped-call]
