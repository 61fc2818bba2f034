"""What the planner asks of Airflow's scheduler."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_memq.operators.memq import MemqPlanRangesOperator
from airflow_provider_memq.range_assets import ranges_asset
from memq.errors import ConfigError


def planner(**options):
    return MemqPlanRangesOperator(
        task_id="plan", topic="clicks", ranges=ranges_asset("clicks"), **options
    )


@pytest.mark.parametrize("options", [{}, {"max_active_tis_per_dag": 1}])
@pytest.mark.parametrize("defaults", [{}, {"max_active_tis_per_dag": 16}])
def test_one_plan_at_a_time(defaults, options):
    """The scheduler runs one plan of a DAG at a time, in all of its runs and backfills."""
    with DAG("d", schedule=None, default_args=defaults) as dag:
        planner(**options)

    scheduled = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict["plan"]

    assert scheduled.max_active_tis_per_dag == 1


@pytest.mark.parametrize("plans", [2, None])
def test_more_plans_at_a_time_are_refused(plans):
    """They would read the same last event, and plan the same offsets."""
    with pytest.raises(ConfigError, match=f"max_active_tis_per_dag = {plans}: must be 1"):
        planner(max_active_tis_per_dag=plans)
