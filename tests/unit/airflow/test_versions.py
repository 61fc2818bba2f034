"""The provider says which Airflow, which memq and which extra it needs."""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches

import pytest
from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException
from packaging.requirements import Requirement
from rich.text import Text

from airflow_provider_memq import versions
from airflow_provider_memq.operators import memq as operators
from airflow_provider_memq.range_assets import processed_asset, ranges_asset
from airflow_provider_memq.triggers.watch import MemqWatchTrigger
from airflow_provider_memq.versions import PROVIDER, check_same_version, has_airflow
from memq.errors import ConfigError

RANGES = ranges_asset("clicks")
DONE = processed_asset("clicks", "job")
AT = {"task_id": "t", "topic": "clicks"}
NEEDS_MORE = {
    "MemqPlanRangesOperator": {"ranges": RANGES},
    "MemqCommitOperator": {"ranges": RANGES, "done": DONE, "group": "g"},
    "MemqRetentionOperator": {"ranges": RANGES, "group": "g"},
    "MemqBackfillOperator": {"ranges": RANGES, "output_dir": "/out"},
    "MemqQualityGateOperator": {"manifest": "/out/m.json"},
    "MemqSparkConnectOperator": {"output_dir": "/out", "application": "a.py"},
    "MemqSparkSubmitOperator": {"output_dir": "/out", "application": "a.py"},
}


@pytest.fixture
def old(monkeypatch):
    """The oldest Airflow, as far as its version tells."""
    monkeypatch.setattr(versions, "airflow_version", "3.1.0")


@pytest.mark.parametrize(
    ("there", "needed", "enough"),
    [
        ("3.3.2", "3.3.2", True),
        ("3.10.0", "3.3.2", True),
        ("3.3.1", "3.3.2", False),
        ("3.3.2rc1", "3.3.2", True),
        ("3.3.2.dev0", "3.3.2", True),
        ("3.3.2+local", "3.3.2", True),
    ],
)
def test_versions_are_compared(monkeypatch, there, needed, enough):
    """By their numbers; a candidate has what its release will have."""
    monkeypatch.setattr(versions, "airflow_version", there)

    assert has_airflow(needed) is enough


@pytest.mark.parametrize("name", NEEDS_MORE)
def test_what_plans_says_what_it_needs(old, name):
    """An operator of planned ranges is refused where a DAG makes it, with both versions."""
    with pytest.raises(
        AirflowOptionalProviderFeatureException,
        match=r"needs Airflow 3\.3\.2 or later, and this is Airflow 3\.1\.0",
    ):
        getattr(operators, name)(**AT, **NEEDS_MORE[name])


def test_a_pipeline_says_what_it_needs(old, monkeypatch):
    """The module is refused before it imports names that an older Airflow does not have."""
    monkeypatch.delitem(sys.modules, "airflow_provider_memq.pipeline", raising=False)
    monkeypatch.setitem(sys.modules, "airflow_provider_memq.topic_dags", None)

    with pytest.raises(AirflowOptionalProviderFeatureException, match="MemqPipeline needs Airflow"):
        import_module("airflow_provider_memq.pipeline")


async def test_a_watcher_does_without_state(old, monkeypatch):
    """Where Airflow keeps no state of assets that a trigger can await, it fires all the same."""
    trigger = MemqWatchTrigger(topic="clicks", memq_conn_id="nowhere", poll_interval=0.01)
    trigger.asset_state_store = object()  # that of 3.3.0, which cannot be awaited
    looks = []

    async def look():
        looks.append(1)
        raise GeneratorExit

    monkeypatch.setattr(trigger, "_look", look)
    with pytest.raises(GeneratorExit):
        await anext(trigger.run())

    assert trigger.asset_state_store is None
    assert looks == [1]


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
