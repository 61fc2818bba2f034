"""What goes with this provider: its memq, the Airflow that is there, and the extras.

The provider needs what Airflow has from 3.3.2 on: runs by partition key, state of tasks and assets
that triggers can await, and sensors that start in the triggerer. What needs an extra that is not
installed names it: `from_extra`.

memq must be of the very version of this provider: the two call each other's inner parts. pip sees
to that and to Airflow's version, and can be told not to; then nothing of the provider that does
work can be imported, and says why.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from airflow import __version__ as airflow_version
from packaging.version import Version

from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER = "airflow-provider-memq"
AIRFLOW = "3.3.2"


def check_airflow() -> None:
    """Refuse an Airflow that is too old; a pre-release counts as its release.

    Raises:
        ConfigError: it is.
    """
    if Version(Version(airflow_version).base_version) < Version(AIRFLOW):
        raise ConfigError(
            f"{PROVIDER} needs Airflow {AIRFLOW} or later, and this is Airflow {airflow_version}: "
            f"pip install apache-airflow=={AIRFLOW}"
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
        from airflow.sdk.exceptions import (  # noqa: PLC0415 - after the check of Airflow
            AirflowOptionalProviderFeatureException,
        )

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


check_airflow()
check_same_version()
