"""What goes with this provider: its memq, the Airflow that is there, and the extras.

Connection, hook, sensors, triggers and audit run on Airflow 3.1 and later. What needs more says so
when it is made, which is while a DAG is parsed, with the version that is there and the one that is
needed: `require_airflow`. What needs an extra that is not installed names it: `from_extra`.

Airflow moved some names after 3.1; modules here take those from this one.

memq must be of the very version of this provider: the two call each other's inner parts. pip sees
to that, and can be told not to; then nothing that asks a broker can be imported, and says why.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from airflow import __version__ as airflow_version
from packaging.version import Version

from memq.errors import ConfigError

try:
    from airflow.sdk import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowOptionalProviderFeatureException,
        AirflowSensorTimeout,
        AirflowSkipException,
    )
except ImportError:  # Airflow 3.1
    from airflow.configuration import conf  # type: ignore[assignment]
    from airflow.exceptions import (  # type: ignore[attr-defined, no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowOptionalProviderFeatureException,
        AirflowSensorTimeout,
        AirflowSkipException,
    )

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowOptionalProviderFeatureException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "conf",
]

PROVIDER = "airflow-provider-memq"

PLANNING = "3.3.2"
"""Airflow with what planned ranges need: runs by partition key, and state of assets."""
ASSET_STATE = PLANNING  # of which triggers can await what is kept
START_FROM_TRIGGER = "3.3.0"
TASK_STATE = "3.3.0"  # what the tries of a task share


def has_airflow(needed: str) -> bool:
    """Whether Airflow is of this version or a later one; a pre-release counts as its release."""
    return Version(Version(airflow_version).base_version) >= Version(needed)


def require_airflow(needed: str, what: str) -> None:
    """Refuse what this Airflow cannot do.

    Args:
        needed: the first version that can.
        what: is refused, such as the name of a class.

    Raises:
        AirflowOptionalProviderFeatureException: this Airflow is an older one.
    """
    if not has_airflow(needed):
        raise AirflowOptionalProviderFeatureException(
            f"{what} needs Airflow {needed} or later, and this is Airflow {airflow_version}"
        )


@contextmanager
def from_extra(name: str) -> Iterator[None]:
    """Name the extra that brings what is imported here.

    Raises:
        AirflowOptionalProviderFeatureException: it is not installed.
    """
    try:
        yield
    except ImportError as exc:
        # `airflow dags list-import-errors` takes [spark] for markup, and drops it.
        raise AirflowOptionalProviderFeatureException(
            f'{exc}: pip install "{PROVIDER}[ {name} ]"'
        ) from exc


def check_same_version() -> None:
    """Make sure that memq is of the version of this provider.

    A copy that was not installed, such as a checkout on PYTHONPATH, has no version to compare.

    Raises:
        ConfigError: it is of another version.
    """
    try:
        own, found = version(PROVIDER), version("memq")
    except PackageNotFoundError:
        return
    if own != found:
        raise ConfigError(
            f"{PROVIDER} {own} goes with memq {own}, and memq {found} is installed: "
            f"pip install memq=={own}, or {PROVIDER}=={found}"
        )


check_same_version()
