"""`spark_apps/range_to_parquet.py` without Spark, for tests of what surrounds it.

Same arguments, same layout, same manifest; a range takes a second instead of ten. It is started by
a stand-in for `spark-submit` (`install`), so that all of `SparkSubmitOperator` runs as it does.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from airflow_provider_memq.planning.ranges import RangeContents
from airflow_provider_memq.planning.topics import contents_of
from memq import read_range
from memq.client.audit.reporter import report_consumed
from memq.client.topic import SyncTopicClient
from memq.core.audit.reports import ConsumedReport
from memq.core.manifest import Manifest, encode_manifest
from memq.core.ranges import OffsetRange

APP, TABLE_APP = "range_to_parquet.py", "range_to_iceberg.py"
STAND_INS = {APP: "light_app", TABLE_APP: "light_table"}
"""The module of each program."""


def install(folder: Path, *, delay_s: float = 0.0) -> None:
    """Make `folder/spark-submit` and the programs of `STAND_INS`."""
    folder.mkdir(parents=True, exist_ok=True)
    submit = folder / "spark-submit"
    # Whatever spark-submit itself takes stands before the program.
    submit.write_text(
        f"#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in */range_to_*.py) break;; esac; shift; done\n"
        f'export LIGHT_DELAY_S={delay_s}\nexec {sys.executable} "$@"\n'
    )
    submit.chmod(0o755)
    for name, module in STAND_INS.items():
        text = f"from tests.fakes.{module} import main\n\nmain()\n"
        (folder / name).write_text(text)


def main(texts: Sequence[str] | None = None) -> None:
    """One range to one file; None stands for the arguments of the process."""
    given = arguments(texts)
    started_ms = int(time.time() * 1000)
    time.sleep(float(os.environ.get("LIGHT_DELAY_S", "0")))
    wanted = OffsetRange(given.partition, given.start, given.end)
    with SyncTopicClient(given.bootstrap, given.topic) as client:
        contents = contents_of(client, wanted)
    table = read_range(
        given.bootstrap,
        topic=given.topic,
        partition=given.partition,
        start=given.start,
        end=given.end,
    )
    name = (
        f"memq_topic={given.topic}/memq_topic_id={given.topic_id}/"
        f"memq_partition={given.partition}/memq_range={given.start:012d}-{given.end:012d}"
    )
    folder = Path(given.output) / name
    # A folder of its own until it is whole: a job that was thought dead may still be running.
    draft = folder.with_name(f"_{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    pq.write_table(table, draft / "part-0.parquet")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        draft.rename(folder)
    except OSError:  # the other one was faster, and has written the same
        shutil.rmtree(draft)
    _report(given, contents, started_ms)
    write_manifest(given, contents, str(folder), started_ms)


def arguments(texts: Sequence[str] | None = None) -> argparse.Namespace:
    """What a program is given; None stands for the arguments of the process."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "topic_id", "output", "manifest", "job", "mode"):
        parser.add_argument(f"--{name.replace('_', '-')}", required=True)
    for name in ("partition", "start", "end"):
        parser.add_argument(f"--{name.replace('_', '-')}", required=True, type=int)
    return parser.parse_args(texts)


def _report(given: argparse.Namespace, contents: RangeContents, started_ms: int) -> None:
    report = ConsumedReport(
        topic=given.topic,
        consumer=given.job,
        partition=given.partition,
        start=given.start,
        end=given.end,
        batches=contents.batches,
        messages=contents.messages,
        records=contents.records,
        crc_sum=contents.crc_sum,
        window_start_ms=started_ms,
        window_end_ms=int(time.time() * 1000),
    )
    report_consumed(given.bootstrap, [report])


def write_manifest(
    given: argparse.Namespace, contents: RangeContents, output: str, started_ms: int
) -> None:
    """Say what became of the range."""
    manifest = Manifest(
        job=given.job,
        topic=given.topic,
        topic_id=given.topic_id,
        partition=given.partition,
        start=given.start,
        end=given.end,
        batches=contents.batches,
        messages=contents.messages,
        records=contents.records,
        bytes=contents.size_bytes,
        crc_sum=contents.crc_sum,
        output=output,
        files=["part-0.parquet"],
        started_ms=started_ms,
        finished_ms=int(time.time() * 1000),
    )
    path = Path(given.manifest)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(encode_manifest(manifest))
    draft.replace(path)
