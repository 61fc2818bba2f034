"""The assets that carry ranges, each under one name, so that all DAGs of a topic share them."""

from __future__ import annotations

from airflow.sdk import Asset


def ranges_asset(topic: str) -> Asset:
    """Make the asset of a topic's planned ranges: its partition keys name them."""
    return Asset(name=f"memq_ranges.{topic}", uri=f"memq-ranges://{topic}")


def processed_asset(topic: str, job: str) -> Asset:
    """Make the asset of a topic's ranges that a job has processed."""
    return Asset(name=f"memq_processed.{topic}.{job}", uri=f"memq-processed://{topic}/{job}")


def plan_asset(ranges: Asset) -> Asset:
    """Make the asset where a planner keeps how far it has planned: one event for each plan.

    It is an asset of its own, on which no DAG is to be scheduled. Airflow 3.3.2 cannot give a task
    the events of an asset while a DAG run that one of them created is queued
    (`created_dagruns.start_date`: "Input should be a valid datetime"); and of ranges there are
    always some queued when it matters.
    """
    return Asset(name=f"{ranges.name}.plan", uri=f"{ranges.uri}/plan")


def audited_asset(topic: str) -> Asset:
    """Make the asset in whose state store an audit keeps which windows it has audited."""
    return Asset(name=f"memq_audited.{topic}", uri=f"memq-audited://{topic}")
