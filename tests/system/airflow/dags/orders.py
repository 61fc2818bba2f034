"""Ranges of the topic `orders` into a table, when somebody triggers their plan."""

import os

from airflow.sdk import DAG, PartitionedAssetTimetable

from airflow_provider_memq.operators.memq import (
    MemqCommitOperator,
    MemqPlanRangesOperator,
    MemqSparkSubmitOperator,
)
from airflow_provider_memq.range_assets import processed_asset, ranges_asset

FOLDER = os.environ["ORDERS_FOLDER"]
RANGES, DONE = ranges_asset("orders"), processed_asset("orders", "to_table")

with DAG("orders_plan", schedule=None):
    MemqPlanRangesOperator(
        task_id="plan", topic="orders", ranges=RANGES, max_offsets=2, process_dag_id="orders_table"
    )

with DAG("orders_table", schedule=PartitionedAssetTimetable(assets=RANGES), max_active_runs=2):
    table = MemqSparkSubmitOperator(
        task_id="table",
        topic="orders",
        job="to_table",
        application=f"{FOLDER}/light/range_to_iceberg.py",
        output_dir="lake.orders",
        manifest_dir=FOLDER + "/manifests",
        default_master="local[1]",
        outlets=[DONE],
        retries=1,
    )
    commit = MemqCommitOperator(
        task_id="commit", topic="orders", ranges=RANGES, done=DONE, group="to_table"
    )
    table >> commit
