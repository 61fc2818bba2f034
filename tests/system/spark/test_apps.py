"""The programs in `spark_apps/`: ranges to Parquet, compaction, and the audit on a cluster."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from memq import AdminClient, Producer, read_range
from memq.client.audit.audit import audit_topic
from memq.client.topic import SyncTopicClient
from memq.core.audit.reports import CRC_MODULUS
from memq.core.format.schema import RANGE_COLUMNS
from memq.core.manifest import check_manifest, decode_manifest, encode_manifest
from memq.core.ranges import OffsetRange
from memq.errors import (
    ConfigError,
    CorruptDataError,
    DataLossError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    TopicRecreatedError,
)
from memq.spark.app import one_line, run
from memq.spark.apps import audit_reconcile
from memq.spark.apps import compact as compact_app
from memq.spark.apps import range_to_parquet as app
from memq.spark.audit import FINDINGS, TopicAddress, deep_on, findings
from memq.spark.compaction import Compaction, compact
from memq.spark.folders import Folders
from memq.spark.parquet import RangeJob, range_to_parquet
from tests.system.spark.conftest import SPARK_CONFIG
from tests.system.spark.reading import NAME, ends_of
from tests.topics.reading import world

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
START_S = 240  # Spark starts in a few seconds, on a busy machine in many more


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


def job(address, topic, folder, start, end, **options):
    options = {"name": "test", "report": False} | options
    return RangeJob(
        bootstrap=address,
        topic=topic,
        range=OffsetRange(0, start, end),
        output=str(folder / "out"),
        manifest=str(folder / f"{start}-{end}.json"),
        **options,
    )


def of_incarnation(task, incarnation):
    return replace(task, range=task.range._replace(incarnation=incarnation))


def values_of(frame):
    return Counter(bytes(row["value"]) for row in frame.select("value").collect())


def values_in(address, topic, start, end):
    table = read_range(address, topic=topic, partition=0, start=start, end=end)
    return Counter(table["value"].to_pylist())


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


def incarnation_of(address, topic):
    with AdminClient(address) as admin:
        return admin.describe_topic(topic).incarnation


# -- range_to_parquet -----------------------------------------------------------------------


def test_a_range_becomes_its_folder_and_a_manifest(spark, broker, clicks, tmp_path):
    """The files hold exactly the rows of the range, and the manifest says what went in."""
    manifest = range_to_parquet(spark, job(broker.address, clicks, tmp_path, 1, 4))

    life = incarnation_of(broker.address, clicks)
    place = f"memq_topic={clicks}/memq_incarnation={life}/memq_partition=0"
    folder = tmp_path / "out" / place / f"memq_range={1:012d}-{4:012d}"
    assert manifest == decode_manifest((tmp_path / "1-4.json").read_bytes())
    check_manifest(manifest, clicks, OffsetRange(0, 1, 4, life))
    assert (manifest.batches, manifest.messages, manifest.records) == (3, 3, 150)
    assert manifest.skipped_messages == 0
    assert manifest.output == str(folder)
    assert manifest.files == sorted(path.name for path in folder.glob("part-*.parquet"))
    view = spark.read.format("memq").options(
        bootstrap=broker.address,
        topic=clicks,
        view="messages",
        startingOffsets='{"0": 1}',
        endingOffsets='{"0": 4}',
    )
    assert manifest.crc_sum == view.load().agg({"crc32c": "sum"}).collect()[0][0]
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert values_of(frame) == values_in(broker.address, clicks, 1, 4)
    assert frame.select("topic", "partition").distinct().collect() == [(clicks, 0)]


def test_a_second_run_replaces_its_own_folder_and_nothing_else(spark, broker, clicks, tmp_path):
    """A second run, after one that died as well, leaves one set of files a range."""
    run_range = partial(job, broker.address, clicks, tmp_path)
    range_to_parquet(spark, run_range(0, 2))
    first = range_to_parquet(spark, run_range(2, 6))
    parent = Path(first.output).parent
    neighbour = files_in(parent / f"memq_range={0:012d}-{2:012d}")
    died = parent / f".memq_range={2:012d}-{6:012d}-died" / "_temporary"
    died.mkdir(parents=True)

    second = range_to_parquet(spark, run_range(2, 6))

    assert neighbour == files_in(parent / f"memq_range={0:012d}-{2:012d}")
    assert sorted(path.name for path in parent.iterdir()) == [
        f"memq_range={0:012d}-{2:012d}",
        f"memq_range={2:012d}-{6:012d}",
    ]
    assert (second.records, second.crc_sum) == (first.records, first.crc_sum)
    assert set(second.files).isdisjoint(first.files)
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert values_of(frame) == values_in(broker.address, clicks, 0, 6)


def test_columns_by_the_names_of_folders_are_the_topics_own(spark, broker, make_topic, tmp_path):
    """Typed columns `range`, `partition`, `topic` and `Offset` come back from Parquet as they went
    in, from a range and from a compaction: no folder is taken for a column.
    """
    names = {"range": pa.utf8(), "partition": pa.int64(), "topic": pa.utf8(), "Offset": pa.int64()}
    name = make_topic(schema=pa.schema(list(names.items())), read_partitions=1)
    with Producer(broker.address, topic=name) as producer:
        rows = {"range": ["mine"], "partition": [77], "topic": ["other"], "Offset": [-1]}
        producer.write_table(pa.table(rows, schema=pa.schema(list(names.items()))))

    range_to_parquet(spark, job(broker.address, name, tmp_path, 0, 1))
    compact(spark, compaction(broker.address, name, tmp_path))

    for folder in ("out", "lake"):
        found = spark.read.parquet(str(tmp_path / folder))
        assert found.select(*names).collect() == [("mine", 77, "other", -1)]
        assert found.columns == [*names, "batch", *NAME, *RANGE_COLUMNS]


def test_a_column_by_the_name_of_a_folder_is_refused(spark, broker, make_topic, tmp_path):
    """What a folder would overwrite is refused before anything is written."""
    schema = pa.schema([("MEMQ_range", pa.utf8())])
    name = make_topic(schema=schema, read_partitions=1)
    with Producer(broker.address, topic=name) as producer:
        producer.write_table(pa.table({"MEMQ_range": ["mine"]}))

    with pytest.raises(SchemaMismatchError, match="column 'MEMQ_range', which is also the name"):
        range_to_parquet(spark, job(broker.address, name, tmp_path, 0, 1))
    assert not (tmp_path / "out").exists()


def test_a_recreated_topic_is_not_taken_for_the_one_before(spark, broker, clicks, tmp_path):
    """A range and a compaction of a topic that was deleted fail, and its files stay; the recreated
    topic has folders of its own.
    """
    task = job(broker.address, clicks, tmp_path, 0, 6)
    old = range_to_parquet(spark, task)
    lake = compaction(broker.address, clicks, tmp_path)
    compact(spark, lake)
    compacted = files_in(tmp_path / "lake")
    with AdminClient(broker.address) as admin:
        admin.delete_topic(clicks)
        admin.create_topic(clicks, batch_age="1ms", read_partitions=1)
    produce(broker.address, clicks, 9)

    with pytest.raises(TopicRecreatedError, match="plan the range anew"):
        range_to_parquet(spark, of_incarnation(task, old.incarnation))
    with pytest.raises(TopicRecreatedError, match="Use another --output"):
        compact(spark, lake)
    new = range_to_parquet(spark, task)

    assert files_in(tmp_path / "lake") == compacted
    assert len(files_in(Path(old.output))) == len(old.files)
    assert (new.incarnation != old.incarnation, new.records) == (True, 300)


async def test_what_is_damaged_fails_the_job_or_is_left_out_and_counted(spark, tmp_path):
    """A damaged Message leaves output and manifest as they were; permissive counts it."""
    async with world(tmp_path, read_partitions=1) as stored:
        for value in (b"first value", b"other value"):
            await stored.write(value)
        whole = job(stored.address, "t", tmp_path, 0, 2)
        before = await asyncio.to_thread(range_to_parquet, spark, whole)
        path = await stored.path(0, 1)
        data = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(data.replace(b"other value", b"other walue"))
        with pytest.raises(PySparkException) as caught:
            await asyncio.to_thread(range_to_parquet, spark, whole)
        kept = decode_manifest((tmp_path / "0-2.json").read_bytes())
        skipping = job(stored.address, "t", tmp_path, 0, 2, mode="permissive")
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


def test_other_rows_than_expected_are_not_taken_for_done(spark, broker, clicks, tmp_path):
    """A job whose files do not have the rows of the range fails before anything is replaced."""
    task = job(broker.address, clicks, tmp_path, 0, 6)

    class Losing:
        """A session that reads fewer rows than there are."""

        sparkContext = spark.sparkContext  # noqa: N815 - Spark's name
        conf = spark.conf

        @property
        def read(self):
            reader = spark.read
            whole = reader.load
            reader.load = lambda: whole().limit(299)
            return reader

    with pytest.raises(DataLossError, match=r"must give 300 records, but .* has 299 and"):
        range_to_parquet(Losing(), task)
    assert not Path(task.manifest).exists()
    assert not list((tmp_path / "out").rglob(task.folder_name))


def test_the_audit_learns_what_was_consumed(spark, broker, clicks, tmp_path):
    """Every range that was written is consumed for the audit, down to the LogMessage."""
    for start, end in ((0, 2), (2, 6)):
        task = job(broker.address, clicks, tmp_path, start, end, report=True, name="lake")
        range_to_parquet(spark, task)
    result = asyncio.run(audit_topic(broker.address, clicks, consumers=["lake"]))

    assert [consumer.consumer for consumer in result.consumers] == ["lake"]
    assert result.consumers[0].total("consumed").records == 300
    assert result.consumers[0].clean


# -- compact --------------------------------------------------------------------------------


def compaction(address, topic, folder, **options):
    options = {"name": "test", "range_bytes": 1, "report": False} | options
    return Compaction(topic=topic, output=str(folder / "lake"), bootstrap=address, **options)


def test_compaction_goes_on_where_it_ended(spark, broker, clicks, tmp_path):
    """Runs follow each other without gap or overlap; one without new data does nothing."""
    task = compaction(broker.address, clicks, tmp_path, range_bytes=1 << 30)
    first = compact(spark, task)
    assert compact(spark, task) == []
    produce(broker.address, clicks, 3)
    second = compact(spark, task)

    assert [(each.start, each.end) for each in first + second] == [(0, 6), (6, 9)]
    lake = spark.read.parquet(str(tmp_path / "lake"))
    assert values_of(lake) == values_in(broker.address, clicks, 0, 9)
    assert len(files_in(tmp_path / "lake")) == 2


def test_a_compaction_that_was_killed_is_completed(spark, broker, clicks, tmp_path):
    """A range that has its files, but no manifest yet, is done again just as it was intended."""
    task = compaction(broker.address, clicks, tmp_path, range_bytes=1 << 30)
    compact(spark, task)
    record = Path(task.record(0))
    (record / "000000000000-000000000006.json").unlink()
    life = incarnation_of(broker.address, clicks)
    (record / "000000000000-000000000006.intended").write_text(life)
    produce(broker.address, clicks, 3)  # so that it would plan another range now

    done = compact(spark, task)

    assert [(each.start, each.end) for each in done] == [(0, 6), (6, 9)]
    lake = spark.read.parquet(str(tmp_path / "lake"))
    assert values_of(lake) == values_in(broker.address, clicks, 0, 9)
    assert sorted(path.name for path in record.iterdir()) == [
        "000000000000-000000000006.json",
        "000000000006-000000000009.json",
    ]


def test_a_record_that_cannot_be_is_refused(spark, broker, clicks, tmp_path):
    """A gap in the record, or one beyond the end of the topic, ends the run before it writes."""
    task = compaction(broker.address, clicks, tmp_path)
    folders = Folders(spark)
    record = task.record(0)
    known = compact(spark, task)[-1]
    ahead = msgspec.structs.replace(known, end=99)
    folders.write(f"{record}/000000000006-000000000099.json", encode_manifest(ahead))
    with pytest.raises(CorruptDataError, match="its queue lost notifications"):
        compact(spark, task)
    folders.write(f"{record}/000000000100-000000000101.json", b"{}")
    with pytest.raises(CorruptDataError, match="from offset 99 to 100"):
        compact(spark, task)
    with pytest.raises(OffsetOutOfRangeError, match="no partition 7"):
        compact(spark, compaction(broker.address, clicks, tmp_path, partitions=(7,)))


class Unwilling:
    """A Hadoop file system that refuses to rename onto a file, as HDFS or S3A do."""

    def __init__(self, files, refuse):
        self._files = files
        self._refuse = refuse

    def __getattr__(self, name):
        return getattr(self._files, name)

    def rename(self, source, target):
        if self._files.exists(target):
            return self._refuse()
        return self._files.rename(source, target)


@pytest.mark.parametrize("kind", ["hdfs", "s3a"])
def test_a_manifest_is_replaced_on_every_file_system(spark, tmp_path, monkeypatch, kind):
    """A small file is written again also where nothing can be renamed onto a file."""

    def refuse():
        if kind == "hdfs":
            return False
        exists = spark._jvm.org.apache.hadoop.fs.FileAlreadyExistsException("is there")
        raise Py4JJavaError("rename", exists)

    folders = Folders(spark)
    opened = folders._open
    monkeypatch.setattr(
        folders, "_open", lambda path: (Unwilling((found := opened(path))[0], refuse), found[1])
    )

    for data in (b"one", b"two"):
        folders.write(f"{tmp_path}/manifest.json", data)
        assert folders.read(f"{tmp_path}/manifest.json") == data
    assert folders.names(str(tmp_path)) == ["manifest.json"]


# -- audit_reconcile ------------------------------------------------------------------------


def objects_of(spark, address, topic):
    """Files of a topic's Batches, by offset."""
    with SyncTopicClient(address, topic) as client:
        found = client.batches([OffsetRange(0, 0, ends_of(address, topic)[0])])
        return [Path(urlsplit(batch.notification.uri).path) for batch in found]


def test_the_deep_audit_on_a_cluster_finds_what_the_other_finds(spark, broker, clicks):
    """With an object gone and one damaged, tasks of Spark find the same as `memq audit --deep`."""
    paths = objects_of(spark, broker.address, clicks)
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
    rows = findings(cluster, audited_ms=1, start_ms=None, end_ms=None, deep=True)
    table = spark.createDataFrame(rows, FINDINGS).toPandas()
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


def command(program, *arguments, submit=False):
    script = str(ROOT / "spark_apps" / program)
    runner = [str(BIN / "spark-submit"), "--master", "local[2]"] if submit else [sys.executable]
    return [*runner, script, *map(str, arguments)]


def test_a_run_that_is_killed_is_made_good_by_the_next(spark, broker, clicks, tmp_path):
    """SIGKILL in the middle of the writing leaves nothing that a reader sees; the next run does."""
    life = incarnation_of(broker.address, clicks)
    task = job(broker.address, clicks, tmp_path, 0, 6)
    task = of_incarnation(task, life)
    arguments = ["--bootstrap", broker.address, "--topic", clicks, "--partition", 0]
    arguments += ["--start", 0, "--end", 6, "--output", task.output, "--manifest", task.manifest]
    process = subprocess.Popen(
        command("range_to_parquet.py", *arguments),
        env=environment(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + START_S
        while not list(Path(task.parent).glob(f".{task.folder_name}-*")):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not Path(task.manifest).exists()

    manifest = range_to_parquet(spark, task)

    assert [path.name for path in Path(task.parent).iterdir()] == [task.folder_name]
    assert values_of(spark.read.parquet(task.output)) == values_in(broker.address, clicks, 0, 6)
    assert manifest.records == 300


def test_spark_submit_runs_them_and_they_end_as_they_should(spark, broker, clicks, tmp_path):
    """By `spark-submit` an audit with findings prints and keeps them, and ends with 1."""
    objects_of(spark, broker.address, clicks)[2].unlink()
    arguments = ["--bootstrap", broker.address, "--topic", clicks, "--deep"]
    done = subprocess.run(
        command("audit_reconcile.py", *arguments, "--output", tmp_path / "audit", submit=True),
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


def test_a_failure_is_one_line(broker, clicks, tmp_path):
    """By `python`: a range that is not there is one line on stderr and exit code 1."""
    arguments = ["--bootstrap", broker.address, "--topic", clicks, "--partition", 0, "--start", 0]
    arguments += ["--end", 99, "--output", tmp_path / "out", "--manifest", tmp_path / "m.json"]
    done = subprocess.run(
        command("range_to_parquet.py", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 1
    line = r"range_to_parquet: error: .*/0 .* up to offset 99, which is not published yet.*\n"
    assert re.fullmatch(line, done.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", [app, compact_app, audit_reconcile])
def test_help_teaches(program):
    """`--help` shows what the program does, its options and examples that can be copied."""
    shown = CliRunner().invoke(program.main, ["--help"]).output
    assert "Examples:" in shown
    assert "spark-submit spark_apps/" in shown
    assert "--token-env" in shown


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (app, ["--topic", "t"], "Missing option '--partition'"),
        (compact_app, ["--topic", "t", "--output", "x", "--range-bytes", "much"], "much"),
        (
            audit_reconcile,
            ["--topic", "t", "--output", "x", "--from", "soon"],
            "'soon' is not a time",
        ),
    ],
)
def test_wrong_usage_is_exit_code_2(capsys, program, arguments, message):
    """Wrong usage is told before Spark starts."""
    assert run(program.main, arguments) == 2
    assert message in capsys.readouterr().err


def test_a_credential_that_is_not_there_is_named(capsys, monkeypatch):
    """An environment variable that is not set fails with its name."""
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    arguments = ["--topic", "t", "--output", "x", "--token-env", "NO_SUCH_TOKEN"]
    assert run(compact_app.main, arguments) == 1
    assert "NO_SUCH_TOKEN" in capsys.readouterr().err


def test_one_line_finds_the_cause_of_an_error():
    """Of Spark's traces the line that MemQ said is shown; of others the first one."""
    trace = "An exception was thrown\n  File x\nmemq.errors.DataLossError: Batch 7 is gone\n at y"
    assert one_line(PySparkException(trace)) == "Batch 7 is gone"
    assert one_line(ConfigError("a\n b")) == "a b"
    assert one_line(OSError("disk\nfull")) == "disk"
