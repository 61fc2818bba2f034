"""The programs in `spark_apps/`: ranges to Parquet, compaction, and the audit on a cluster."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from pyspark.errors import PySparkException

from memq import AdminClient, Producer, read_range
from memq.client.audit.audit import audit_topic
from memq.client.topic import SyncTopicClient
from memq.core.audit.reports import CRC_MODULUS
from memq.core.manifest import check_manifest, decode_manifest
from memq.core.ranges import OffsetRange
from memq.spark.app import one_line
from memq.spark.audit import TopicAddress, add_findings, deep_on, findings
from memq.spark.outputs import range_to_parquet
from tests.system.spark.conftest import ROOT, SPARK_CONFIG
from tests.system.spark.jobs import parquet_job
from tests.topics.reading import world

BIN = Path(sys.executable).parent
START_S = 900  # Spark starts in a few seconds, on a busy machine in minutes


def produce(address, topic, batches, records=50):
    """Write Batches of one Message each."""
    with Producer(address, topic=topic, producer_id=f"{topic}-{batches}") as producer:
        for number in range(batches):
            for record in range(records):
                delivery = producer.write(b"%d of %d" % (record, number), timestamp=number)
            delivery.result(30)


@pytest.fixture
def clicks(make_topic, broker):
    """A topic with six Batches in one read partition."""
    name = make_topic(batch_age="1ms", audited=True, write_partitions=1, read_partitions=1)
    produce(broker.address, name, 6)
    return name


def values_of(frame):
    return Counter(bytes(row["value"]) for row in frame.select("value").collect())


def place_of(address, topic):
    """Folder of the ranges of a topic, in that of the output."""
    with AdminClient(address) as admin:
        life = admin.describe_topic(topic).topic_id
    return f"memq_topic={topic}/memq_topic_id={life}/memq_partition=0", life


# -- range_to_parquet -----------------------------------------------------------------------


def test_a_range_becomes_its_folder_and_a_manifest(spark, broker, clicks, tmp_path):
    """The files hold exactly the rows of the range, and the manifest says what went in, as the
    audit is told. A second run replaces the folder of its range and nothing else.
    """
    neighbour = parquet_job(broker, clicks, tmp_path, 0, 1, report=True)
    job = parquet_job(broker, clicks, tmp_path, 1, 6, report=True)
    first = [range_to_parquet(spark, neighbour), range_to_parquet(spark, job)]
    manifest = range_to_parquet(spark, job)

    place, life = place_of(broker.address, clicks)
    folder = tmp_path / "out" / place / f"memq_range={1:012d}-{6:012d}"
    assert manifest == decode_manifest((tmp_path / "1-6.json").read_bytes())
    check_manifest(manifest, clicks, OffsetRange(0, 1, 6, life))
    assert (manifest.batches, manifest.messages, manifest.records) == (5, 5, 250)
    assert (manifest.skipped_messages, manifest.output) == (0, str(folder))
    assert manifest.files == sorted(path.name for path in folder.glob("part-*.parquet"))
    assert set(manifest.files).isdisjoint(first[1].files)
    assert {path.name for path in folder.parent.iterdir()} == {
        Path(each.output).name for each in first
    }
    view = spark.read.format("memq").options(
        bootstrap=broker.address, topic=clicks, view="messages", startingOffsets='{"0": 1}'
    )
    assert manifest.crc_sum == view.load().agg({"crc32c": "sum"}).collect()[0][0]
    frame = spark.read.parquet(str(tmp_path / "out"))
    stored = read_range(broker.address, topic=clicks)["value"].to_pylist()
    assert values_of(frame) == Counter(stored)
    assert frame.select("topic", "partition").distinct().collect() == [(clicks, 0)]
    audit = asyncio.run(audit_topic(broker.address, clicks, consumers=["test"]))
    assert audit.consumers[0].total("consumed").records == 300
    assert audit.consumers[0].clean


async def test_what_is_damaged_fails_the_job_or_is_left_out_and_counted(spark, tmp_path):
    """A damaged Message leaves output and manifest as they were; permissive counts it."""
    async with world(tmp_path, read_partitions=1) as stored:
        for value in (b"first value", b"other value"):
            await stored.write(value)
        whole = parquet_job(stored, "t", tmp_path, 0, 2)
        before = await asyncio.to_thread(range_to_parquet, spark, whole)
        path = await stored.path(0, 1)
        data = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(data.replace(b"other value", b"other walue"))
        with pytest.raises(PySparkException) as caught:
            await asyncio.to_thread(range_to_parquet, spark, whole)
        kept = decode_manifest((tmp_path / "0-2.json").read_bytes())
        skipping = parquet_job(stored, "t", tmp_path, 0, 2, mode="permissive")
        rest = values_of(spark.read.parquet(before.output))
        after = await asyncio.to_thread(range_to_parquet, spark, skipping)
        path.unlink()
        gone = await asyncio.to_thread(range_to_parquet, spark, skipping)

    assert "offset 1" in one_line(caught.value)
    assert "\n" not in one_line(caught.value)
    assert kept == before
    assert rest == Counter([b"first value", b"other value"])
    assert (after.messages, after.records, after.skipped_messages) == (1, 1, 1)
    assert (after.skipped_records, after.unnamed_messages) == (1, 0)
    (left_out,) = after.left_out
    assert (left_out.reason, left_out.offset, left_out.messages) == ("damaged", 1, 1)
    assert (after.crc_sum + after.left_out_crc_sum) % CRC_MODULUS == before.crc_sum
    (missing,) = gone.left_out
    assert missing == msgspec.structs.replace(left_out, reason="missing")
    assert gone.left_out_crc_sum == after.left_out_crc_sum
    assert decode_manifest((tmp_path / "0-2.json").read_bytes()) == gone
    assert values_of(spark.read.parquet(after.output)) == Counter([b"first value"])


# -- audit_reconcile ------------------------------------------------------------------------


def objects_of(address, topic):
    """Files of a topic's Batches, by offset."""
    with SyncTopicClient(address, topic) as client:
        found = client.batches(client.ranges_between(None, None))
        return [Path(urlsplit(batch.notification.uri).path) for batch in found]


def test_the_deep_audit_on_a_cluster_finds_what_the_other_finds(spark, broker, clicks, tmp_path):
    """With an object gone and one damaged, tasks of Spark find the same as `memq audit --deep`."""
    paths = objects_of(broker.address, clicks)
    paths[1].unlink()
    data = bytearray(paths[3].read_bytes())
    data[data.index(b"7 of 3")] ^= 1
    paths[3].chmod(0o600)
    paths[3].write_bytes(data)
    place = TopicAddress(broker.address, clicks, "")

    alone = asyncio.run(audit_topic(broker.address, clicks, deep=True))
    cluster = asyncio.run(
        audit_topic(broker.address, clicks, deep=True, inspect_batches=deep_on(spark, place))
    )

    assert cluster == alone
    assert [(each.lost_records, each.damaged_records) for each in cluster.producers] == [(50, 50)]
    rows = findings(cluster, {"audited_ms": 1, "deep": True})
    add_findings(spark, rows, str(tmp_path))
    table = spark.read.parquet(str(tmp_path)).toPandas()
    assert table["lost_records"].sum() == 50
    assert len(table) == 1 + len(cluster.damage)
    assert not table["clean"].any()


# -- as programs ----------------------------------------------------------------------------


def environment():
    conf = " ".join(f"--conf {name}={value}" for name, value in SPARK_CONFIG.items())
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell",
    }


def test_spark_submit_runs_them_and_they_end_as_they_should(spark, broker, clicks, tmp_path):
    """By `spark-submit` an audit with findings prints and keeps them, and ends with 1."""
    objects_of(broker.address, clicks)[2].unlink()
    arguments = ["--bootstrap", broker.address, "--topic", clicks, "--deep"]
    done = subprocess.run(
        [
            *(BIN / "spark-submit", "--master", "local[2]", ROOT / "spark_apps/audit_reconcile.py"),
            *(*arguments, "--output", tmp_path / "audit"),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "NOT CLEAN" in done.stdout
    assert "50 LogMessages lost in 1 Message" in done.stdout
    assert "Traceback" not in done.stderr
    assert spark.read.parquet(str(tmp_path / "audit")).agg({"lost_records": "sum"}).first()[0] == 50
