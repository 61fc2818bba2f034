"""How Spark programs are submitted: with the credential, and where there is no Spark connection."""

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


def program_environment(settings: ClientSettings, default_master: str | None) -> dict[str, str]:
    """Environment of a program: the credential, and on this machine the Python that has memq."""
    environment = {TOKEN_VARIABLE: settings.token} if settings.token else {}
    if (default_master or "").startswith("local"):
        folder = str(Path(sys.executable).parent)
        path = os.pathsep.join([os.environ.get("PATH", ""), folder])
        environment |= {"PATH": path, "PYSPARK_PYTHON": sys.executable}
    return environment


def set_master(hook: SparkSubmitHook, conn_id: str, default_master: str | None) -> None:
    """Give a hook whose connection is missing a master; by itself it would take YARN.

    Raises:
        ConfigError: there is neither a connection nor a default.
    """
    try:
        hook.get_connection(conn_id)
    except AirflowNotFoundException as exc:
        if not default_master:
            raise ConfigError(
                f"there is no Spark connection {conn_id!r}; add it, or give default_master, such "
                "as 'local[2]'"
            ) from exc
        hook._connection["master"] = default_master  # noqa: SLF001 - nothing else takes it
