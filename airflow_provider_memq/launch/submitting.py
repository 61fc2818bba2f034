"""How Spark programs are submitted: with credentials, and where there is no Spark connection.

Credentials travel in the environment of `spark-submit`: the token, what TLS needs, and those by
which Batches in S3 are read. A command line can be read by everybody on the machine, and stands in
logs and errors. In client modes, and on this machine, the driver has that environment. In cluster
modes it does not, and every way to pass them on there is visible to others: the cluster must give
its drivers the variables `MEMQ_TOKEN`, `MEMQ_SECURITY` and `MEMQ_STORAGE_OPTIONS`; the log of the
task says so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_memq.aws import storage_options_of
from memq.core.defaults import SECURITY_VARIABLE, STORAGE_OPTIONS_VARIABLE, TOKEN_VARIABLE
from memq.core.named_values import text_of
from memq.errors import ConfigError
from memq.runtime.java import check_java

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_memq.settings import ClientSettings
    from memq.core.named_values import NamedValues


def program_arguments(settings: ClientSettings, arguments: dict[str, str]) -> list[str]:
    """Arguments of a program in `spark_apps/`, all text; the token is named, and not among them."""
    given = {"--bootstrap": settings.bootstrap, **arguments}
    if settings.token:
        given["--token-env"] = TOKEN_VARIABLE
    return [text for pair in given.items() for text in pair]


def prepare(
    hook: SparkSubmitHook,
    settings: ClientSettings,
    default_master: str | None,
) -> None:
    """Give a hook what its program needs besides arguments: a master, and an environment.

    Args:
        hook: from Airflow.
        settings: of the connection to the brokers.
        default_master: where there is no Spark connection.

    Raises:
        ConfigError: there is neither a Spark connection nor a default, or this machine has no Java
            for Spark; or as `credentials_of`.
        StorageError: as `credentials_of`.
    """
    _set_master(hook, default_master)
    master = hook._connection["master"] or ""  # noqa: SLF001 - below
    own_java = {"JAVA_HOME", "PATH"} & (hook._env_vars or {}).keys()  # noqa: SLF001 - below
    if master.startswith("local") and not own_java:
        check_java()
    credentials = credentials_of(settings)
    _carry(hook, _environment(master) | credentials)
    if credentials and hook._connection["deploy_mode"] == "cluster":  # noqa: SLF001 - see below
        hook.log.warning(
            "the driver runs in the cluster, where credentials of the connection do not reach it: "
            "its environment must have %s",
            " and ".join(credentials),
        )


def credentials_of(settings: ClientSettings) -> dict[str, str]:
    """Return the credentials of a program for the brokers and the storage, by variable.

    Raises:
        ConfigError: as `storage_options_of`; or the variable cannot hold what it gives.
        StorageError: as `storage_options_of`.
    """
    found = {
        TOKEN_VARIABLE: settings.token,
        STORAGE_OPTIONS_VARIABLE: _text(
            f"connection {settings.aws_conn_id!r}",
            STORAGE_OPTIONS_VARIABLE,
            storage_options_of(settings),
        ),
        SECURITY_VARIABLE: _text("the extra 'security'", SECURITY_VARIABLE, settings.security),
    }
    return {variable: text for variable, text in found.items() if text}


def _text(where: str, variable: str, values: NamedValues) -> str:
    try:
        return text_of(values)
    except ConfigError as exc:
        raise ConfigError(
            f"{where}: {exc} in {variable}, by which Spark programs get it; give the connection "
            "another one"
        ) from exc


def _environment(master: str) -> dict[str, str]:
    """Environment of a program: where `spark-submit` may be found, which comes with pyspark; and,
    for a Spark on this machine, the Python that has memq.
    """
    folder = str(Path(sys.executable).parent)
    environment = {"PATH": os.pathsep.join([os.environ.get("PATH", ""), folder])}
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
        hook._connection["master"] = default_master  # noqa: SLF001 - as above
        # What the hook has concluded from YARN: where variables of the user's own go, and more.
        hook._is_yarn = "yarn" in default_master  # noqa: SLF001 - as above
        hook._is_kubernetes = "k8s" in default_master  # noqa: SLF001 - as above


def _carry(hook: SparkSubmitHook, variables: dict[str, str]) -> None:
    """Put variables into the environment of `spark-submit`, whatever the master.

    Airflow's hook writes its `env_vars` onto the command line for YARN and Kubernetes.
    """
    build = hook._build_spark_submit_command  # noqa: SLF001 - nothing else comes after `_env` is set

    def build_and_carry(application: str) -> list[str]:
        command = build(application)
        hook._env = variables | (hook._env or {})  # noqa: SLF001 - as above
        return command

    hook._build_spark_submit_command = build_and_carry  # type: ignore[method-assign]  # noqa: SLF001
