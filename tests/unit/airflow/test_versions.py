"""The provider says which Airflow, which memq and which extra it needs."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException
from packaging.requirements import Requirement
from rich.text import Text

from airflow_provider_memq import versions
from airflow_provider_memq.versions import PROVIDER, check_same_version
from memq.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("there", ["3.1.0", "3.3.1", "3.3.1+local"])
def test_an_older_airflow_is_refused(monkeypatch, there):
    """The message names both versions and what to install; a pre-release counts as its release."""
    project = tomllib.loads((ROOT / "airflow_provider_memq/pyproject.toml").read_text())
    assert f"apache-airflow>={versions.AIRFLOW},<3.4" in project["project"]["dependencies"]
    for enough in ("3.3.2", "3.10.0", "3.3.2rc1", "3.3.2.dev0", "3.3.2+local"):
        monkeypatch.setattr(versions, "airflow_version", enough)
        versions.check_airflow()
    monkeypatch.setattr(versions, "airflow_version", there)

    with pytest.raises(ConfigError) as refused:
        versions.check_airflow()

    assert str(refused.value) == (
        f"airflow-provider-memq needs Airflow 3.3.2 or later, and this is Airflow {there}: pip "
        "install apache-airflow==3.3.2"
    )


@pytest.mark.parametrize("part", ["hooks", "operators", "sensors", "triggers", "pipeline"])
def test_whatever_a_dag_imports_is_refused(monkeypatch, part):
    """Before it needs a name that an older Airflow does not have."""
    monkeypatch.setitem(sys.modules, "airflow_provider_memq.versions", None)
    monkeypatch.delitem(sys.modules, f"airflow_provider_memq.{part}", raising=False)

    with pytest.raises(ImportError, match=r"airflow_provider_memq\.versions"):
        import_module(f"airflow_provider_memq.{part}")


def test_another_memq_is_refused(monkeypatch, tmp_path):
    """The message names both versions and what to install."""
    check_same_version()
    folder = tmp_path / "memq-9.9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: memq\nVersion: 9.9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()
    own = versions.version(PROVIDER)

    with pytest.raises(ConfigError) as refused:
        check_same_version()

    assert str(refused.value) == (
        f"airflow-provider-memq {own} goes with memq {own}, and memq 9.9.9 is installed: pip "
        f"install memq=={own}, or airflow-provider-memq==9.9.9"
    )


@pytest.mark.parametrize(
    ("module", "extra"),
    [("airflow.providers.apache.spark.operators.spark_submit", "spark")],
)
def test_a_missing_extra_is_named(monkeypatch, module, extra):
    """What an extra brings is asked for by the name of the extra."""
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "airflow_provider_memq.operators.spark", raising=False)

    with pytest.raises(
        AirflowOptionalProviderFeatureException,
        match=rf'pip install "airflow-provider-memq\[ {extra} \]"',
    ) as refused:
        import_module("airflow_provider_memq.operators.spark")
    # As `airflow dags list-import-errors` prints it.
    assert str(Text.from_markup(str(refused.value))) == str(refused.value)
    assert Requirement(f"airflow-provider-memq[ {extra} ]").extras == {extra}
