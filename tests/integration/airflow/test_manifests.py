"""Manifests that are missing, and manifests that cannot be read: only the first is run again."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.launch.range_job import manifest_path
from airflow_provider_memq.operators.memq import MemqSparkSubmitOperator
from airflow_provider_memq.planning.ranges import parse_key
from memq.errors import ConfigError, DataLossError, StorageError
from tests.fakes.s3 import s3_for
from tests.fakes.spark_submit import SparkSubmit
from tests.integration.airflow.here import TOPIC, world

KEY = "00000:000000000000-000000000001"
MANIFESTS = "s3a://lake/m"
DENIED = (403, "AccessDenied")


@pytest.fixture
def s3(monkeypatch):
    with s3_for(monkeypatch) as server:
        yield server


@pytest.fixture
def submissions(tmp_path, monkeypatch):
    """A stand-in for `spark-submit`, with the number of times that it was started."""
    submit = SparkSubmit(tmp_path, monkeypatch)
    return lambda: len(submit.calls)


def place(here):
    """Where the manifest goes, as the server has it: its bucket and key."""
    topic_id = here.broker.topics.get(TOPIC).topic.topic_id
    path = manifest_path(MANIFESTS, "/out", TOPIC, parse_key(KEY)._replace(topic_id=topic_id))
    return path.removeprefix("s3a:/")


def process(manifest_dir=MANIFESTS, **options):
    return MemqSparkSubmitOperator(
        task_id="process",
        topic=TOPIC,
        range_key=KEY,
        application="/apps/x.py",
        output_dir="/out",
        manifest_dir=manifest_dir,
        conn_id="memq_spark",
        default_master="local[1]",
        packages="org.apache.hadoop:hadoop-aws:3.5.0",
        **options,
    )


@pytest.mark.parametrize("durable", [False, True])
async def test_what_cannot_be_read_is_not_submitted(
    tmp_path, monkeypatch, s3, submissions, durable
):
    """A place that may not be read is found before the submit, and named."""
    async with world(tmp_path / "broker", monkeypatch) as here:
        s3.refused[place(here)] = DENIED
        await here.publish(1)

        with pytest.raises(StorageError, match=r"s3a://lake/m/\S+: .*AccessDenied"):
            await here.run(process(durable=durable))
        with pytest.raises(ConfigError, match=r"gs://lake/m/"):
            await here.run(process("gs://lake/m"))

    assert submissions() == 0


@pytest.mark.parametrize("wrong", ["cannot be read: .*AccessDenied", "not a manifest"])
async def test_what_cannot_be_read_any_more_is_not_submitted_again(
    tmp_path, monkeypatch, s3, submissions, wrong
):
    """A manifest that was written and cannot be read, or makes no sense, is not missing."""
    async with world(tmp_path / "broker", monkeypatch) as here:
        if "Access" in wrong:
            s3.closing[place(here)] = DENIED
        monkeypatch.setenv("PUT", s3.url + place(here))
        await here.publish(1)

        with pytest.raises(AirflowFailException, match=wrong):
            await here.run(process())

    assert submissions() == 1


async def test_what_is_missing_is_submitted_again(tmp_path, monkeypatch, s3, submissions):
    """Only where the storage says that there is no manifest, another try may make one."""
    async with world(tmp_path / "broker", monkeypatch) as here:
        await here.publish(1)

        with pytest.raises(DataLossError, match=r"there is none at s3a://lake/m/"):
            await here.run(process())
        s3.objects[place(here)] = b"of an earlier run"
        with pytest.raises(DataLossError, match=r"was there before"):
            await here.run(process())

    assert submissions() == 2
