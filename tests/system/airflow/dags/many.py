"""Ranges of many topics, each in a run of its own: one by one, and most of them without a task.

Airflow ends an `EmptyOperator` without a process, so that thousands of ranges go through its
planning, its assets and its scheduler within an hour. The ranges of the first topic have a task.
"""

from __future__ import annotations

import os

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, PartitionedAssetTimetable, task

from airflow_provider_memq.operators.memq import MemqPlanRangesOperator
from airflow_provider_memq.range_assets import ranges_asset


@task
def process(dag_run=None):
    """What there is to do for a range, here nothing: a process that can be killed."""
    return dag_run.partition_key


for topic in os.environ["MANY_TOPICS"].split(","):
    ranges = ranges_asset(topic)

    with DAG(f"{topic}_plan", schedule=None, max_active_runs=2):
        MemqPlanRangesOperator(
            task_id="plan",
            topic=topic,
            ranges=ranges,
            max_offsets=2,
            linger="15s",
            deferrable=True,
            process_dag_id=f"{topic}_ranges",
            missed_after="30s",
        )

    with DAG(
        f"{topic}_ranges", schedule=PartitionedAssetTimetable(assets=ranges), max_active_runs=1
    ):
        if topic.endswith("_0"):
            process()
        else:
            EmptyOperator(task_id="process")
