"""The provider says which extra it needs."""

import sys
from importlib import import_module

import pytest
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException
from packaging.requirements import Requirement
from rich.text import Text


def test_a_missing_extra_is_named(monkeypatch):
    """What an extra brings is asked for by the name of the extra, as Airflow prints it."""
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.operators.spark_submit", None)
    monkeypatch.delitem(sys.modules, "airflow_provider_memq.operators.spark", raising=False)

    with pytest.raises(
        AirflowOptionalProviderFeatureException,
        match=r'pip install "airflow-provider-memq\[ spark \]"',
    ) as refused:
        import_module("airflow_provider_memq.operators.spark")
    # As `airflow dags list-import-errors` prints it.
    assert str(Text.from_markup(str(refused.value))) == str(refused.value)
    assert Requirement("airflow-provider-memq[ spark ]").extras == {"spark"}
