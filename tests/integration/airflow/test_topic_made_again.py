"""A topic that was deleted and made again: what was processed of the old one does not count."""

from __future__ import annotations

import gc
import os

import pytest

from airflow_provider_memq.operators.memq import (
    MemqCommitOperator,
    MemqPlanRangesOperator,
    MemqRetentionOperator,
    MemqSparkSubmitOperator,
)
from airflow_provider_memq.range_assets import processed_asset, ranges_asset
from airflow_provider_memq.testing.standalone import ROOT
from memq.errors import DataLossError
from tests.integration.airflow.here import TOPIC, world
from tests.system.airflow import light_app

# Airflow's own hook does not close the pipe of the program that it submitted.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)

RANGES, AGAIN, DONE = ranges_asset(TOPIC), ranges_asset("t-2"), processed_asset(TOPIC, "job")


def plan(ranges):
    return MemqPlanRangesOperator(task_id="plan", topic=TOPIC, ranges=ranges, max_offsets=1)


def commit(ranges, done=DONE):
    return MemqCommitOperator(task_id="commit", topic=TOPIC, ranges=ranges, done=done, group="g")


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Makes an operator that processes a range by a stand-in for `spark-submit`."""
    folder = tmp_path / "light"
    light_app.install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def make(key, output):
        return MemqSparkSubmitOperator(
            task_id="process",
            topic=TOPIC,
            range_key=key,
            application=str(folder / light_app.APP),
            output_dir=str(tmp_path / output),
            conn_id="memq_spark",
            default_master="local[1]",
            outlets=[DONE],
        )

    yield make
    gc.collect()  # that pipe, while its warning is expected


async def test_what_was_processed_of_the_old_topic_is_not_committed(tmp_path, monkeypatch, process):
    """Though the asset keeps its name, only ranges of the topic as it is now move the offsets."""
    async with world(tmp_path / "broker", monkeypatch) as here:
        await here.publish(2)
        await here.run(plan(RANGES))
        for key in here.store.keys(RANGES):
            await here.run(process(key, "old"), partition_key=key)
        assert (await here.run(commit(RANGES)))["committed"] == {"0": 2}
        await here.create_again()
        await here.publish(2)
        await here.run(plan(AGAIN))
        first, _ = sorted(here.store.keys(AGAIN))

        assert (await here.run(commit(AGAIN)))["committed"] == {}
        await here.run(process(first, "new"), partition_key=first)
        assert (await here.run(commit(AGAIN)))["committed"] == {"0": 1}


async def test_a_plan_of_the_old_topic_is_not_committed(tmp_path, monkeypatch):
    """A run that outlived its topic neither moves offsets of the new one nor vouches for it."""
    async with world(tmp_path, monkeypatch) as here:
        await here.publish(1)
        await here.run(plan(RANGES))
        here.store.add(DONE, here.store.keys(RANGES)[0])
        await here.create_again()
        await here.publish(1)

        with pytest.raises(DataLossError, match="its offsets name other data"):
            await here.run(commit(RANGES))
        with pytest.raises(DataLossError, match="its offsets name other data"):
            await here.run(MemqRetentionOperator(task_id="retention", topic=TOPIC, ranges=RANGES))


async def test_events_of_tasks_of_ones_own_count(tmp_path, monkeypatch):
    """An event that does not say which topic it is about is about the one that there is."""
    async with world(tmp_path, monkeypatch) as here:
        await here.publish(1)
        await here.run(plan(RANGES))
        here.store.add(DONE, here.store.keys(RANGES)[0], {"by": "hand"})

        assert (await here.run(commit(RANGES)))["committed"] == {"0": 1}
