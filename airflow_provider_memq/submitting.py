"""How Spark programs are submitted: with the credential, and where there is no Spark connection.

The credential travels in the environment of `spark-submit`. A command line can be read by everybody
on the machine, and stands in logs and errors. In client modes, and on this machine, the driver has
that environment. In cluster modes it has not, and there is no way there that others cannot see: the
cluster must give its drivers the variable `MEMQ_TOKEN`, and the log of the task says so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowNotFoundException

from memq.errors import ConfigError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_memq.settings import ClientSettings

TOKEN_VARIABLE = "MEMQ_TOKEN"  # noqa: S105 - the name of a variable


def program_arguments(settings: ClientSettings, arguments: dict[str, str]) -> list[str]:
    """Arguments of a program in `spark_apps/`, all text; the token is named, and not among them."""
    given = {"--bootstrap": settings.bootstrap, **arguments}
    if settings.token:
        given["--token-env"] = TOKEN_VARIABLE
    return [text for pair in given.items() for text in pair]


def prepare(hook: SparkSubmitHook, settings: ClientSettings, default_master: str | None) -> None:
    """Give a hook what its program needs beside arguments: a master, and an environment.

    Raises:
        ConfigError: there is neither a Spark connection nor a default.
    """
    _set_master(hook, default_master)
    _carry(hook, _environment(settings, hook._connection["master"] or ""))  # noqa: SLF001 - below
    if settings.token and hook._connection["deploy_mode"] == "cluster":  # noqa: SLF001 - see below
        hook.log.warning(
            "the driver runs in the cluster, where the token of the connection does not reach it: "
            "its environment must have %s",
            TOKEN_VARIABLE,
        )


def _environment(settings: ClientSettings, master: str) -> dict[str, str]:
    """Environment of a program: the credential; where `spark-submit` may be found, which comes with
    pyspark; and, for a Spark on this machine, the Python that has memq.
    """
    folder = str(Path(sys.executable).parent)
    environment = {"PATH": os.pathsep.join([os.environ.get("PATH", ""), folder])}
    if settings.token:
        environment[TOKEN_VARIABLE] = settings.token
    if master.startswith("local"):
        environment["PYSPARK_PYTHON"] = sys.executable
    return environment


def _set_master(hook: SparkSubmitHook, default_master: str | None) -> None:
    """Give a hook whose connection is missing a master; by itself it would take YARN."""
    conn_id = hook._conn_id  # noqa: SLF001 - nothing else tells or takes these
    try:
        hook.get_connection(conn_id)
    except AirflowNotFoundException as exc:
        if not default_master:
            raise ConfigError(
                f"there is no Spark connection {conn_id!r}; add it, or give default_master, such "
                "as 'local[2]'"
            ) from exc
        hook._connection["master"] = default_master  # noqa: SLF001 - likewise
        # What the hook has concluded from YARN: where variables of the user's own go, and more.
        hook._is_yarn = "yarn" in default_master  # noqa: SLF001 - likewise
        hook._is_kubernetes = "k8s" in default_master  # noqa: SLF001 - likewise


def _carry(hook: SparkSubmitHook, variables: dict[str, str]) -> None:
    """Put variables into the environment of `spark-submit`, whatever the master.

    Airflow's hook writes its `env_vars` onto the command line for YARN and Kubernetes.
    """
    build = hook._build_spark_submit_command  # noqa: SLF001 - nothing else comes after `_env` is set

    def build_and_carry(application: str) -> list[str]:
        command = build(application)
        hook._env = variables | (hook._env or {})  # noqa: SLF001 - likewise
        return command

    hook._build_spark_submit_command = build_and_carry  # type: ignore[method-assign]  # noqa: SLF001
