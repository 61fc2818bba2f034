"""What needs an extra of this package that is not installed names it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER = "airflow-provider-memq"


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
