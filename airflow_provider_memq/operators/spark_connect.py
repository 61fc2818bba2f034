"""`MemqSparkConnectOperator`: run a Spark program over one exact range by Spark Connect.

The program is a process beside the task, as with `spark-submit`, but what it asks of Spark runs in
a server elsewhere. Its address, with the token of that connection, is in the environment of the
program (`SPARK_REMOTE`), where others of the machine cannot read it; so are the credentials for
the brokers. Python of the server must have memq, and reads Batches with what the server has.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch.range_job import RangeJobMixin
from airflow_provider_memq.launch.submitting import credentials_of

with from_extra("spark"):
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

KILL_AFTER_S = 10.0  # for a program that is asked to end; Airflow kills a task after 60 s
REMOTE_VARIABLE = "SPARK_REMOTE"


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
        super().__init__(**kwargs)
        self.application = application
        self.conn_id = conn_id
        self.env_vars = env_vars
        self._program: subprocess.Popen[str] | None = None

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
        self.log.info("running %s", command)
        with subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as self._program:
            for line in self._program.stdout or ():
                self.log.info("%s", line.rstrip())
        if code := self._program.returncode:
            raise AirflowException(f"{self.application} ended with {code}; its log is above")
        return self.end(context, run)

    def on_kill(self) -> None:
        """End the program, which stops its session."""
        if self._program is None or self._program.poll() is not None:
            return
        self._program.terminate()
        try:
            self._program.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self.log.warning("the program did not end within %s s, and is killed", KILL_AFTER_S)
            self._program.kill()
