"""The quality gate: what passes, what does not, and that nothing goes on where it does not."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.operators.memq import MemqQualityGateOperator
from airflow_provider_memq.planning.ranges import range_key
from memq.core.manifest import Manifest, encode_manifest
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, DataLossError, StorageError
from tests.integration.airflow.here import DONE, TOPIC


@pytest.fixture
async def here(here):
    await here.publish(2)
    return here


class Range:
    """The manifest and the file of a range that some job has processed."""

    def __init__(self, here, folder, **fields):
        of = OffsetRange(0, 0, 2, here.broker.topics.get(TOPIC).topic.topic_id)
        rows = fields.get("records", 2)
        pq.write_table(pa.table({"value": [b"v"] * rows, "n": [1] * rows}), folder / "0.parquet")
        counts = {"batches": 2, "messages": 2, "records": rows, "bytes": 9, "crc_sum": 5}
        times = {"started_ms": 1, "finished_ms": 2}
        given = of._asdict() | counts | times | {"files": ["0.parquet"]} | fields
        manifest = Manifest(job="job", topic=TOPIC, output=str(folder), **given)
        self.key, self.path = range_key(of), folder / "m.json"
        self.path.write_bytes(encode_manifest(manifest))

    def gate(self, **limits):
        return MemqQualityGateOperator(
            task_id="gate",
            topic=TOPIC,
            manifest=str(self.path),
            outlets=[DONE],
            **{"range_key": self.key} | limits,
        )


EVER = "36500d"  # the records of these tests are from 1970
GOOD = {
    "max_skipped": "0",
    "min_records": 2,
    "max_age": EVER,
    "columns": {"value": "binary", "n": "int64"},
}


@pytest.mark.parametrize("columns", [GOOD["columns"], json.dumps(GOOD["columns"])])
async def test_what_is_good_counts_as_processed(here, tmp_path, columns):
    """All limits hold, just: the outlets emit, and say which topic id the range is of."""
    found = Range(here, tmp_path)
    result = await here.run(found.gate(**GOOD | {"columns": columns}), partition_key=found.key)

    assert (result["range"], result["records"], result["skipped"]) == (found.key, 2, 0)
    (event,) = here.store[DONE]
    assert event.extra["memq_topic_id"] in found.key


@pytest.mark.parametrize(
    ("fields", "limits", "reasons"),
    [
        (
            {"records": 1, "skipped_records": 3, "skipped_messages": 1, "unnamed_messages": 1},
            {"max_skipped": 2, "min_records": "2"},
            ["3 records skipped, max_skipped = 2", "1 record, min_records = 2"],
        ),
        ({}, {"columns": {"n": "string"}}, ["column 'n' is int64, columns wants string"]),
        ({}, {"columns": {"m": "string"}}, ["column 'm' is missing, columns wants string"]),
    ],
)
async def test_what_is_not_good_stops_there(here, tmp_path, fields, limits, reasons):
    """The error names every value beside its limit; no event is emitted, and no try follows.

    A manifest that is written anew is judged anew.
    """
    found = Range(here, tmp_path, **fields)

    with pytest.raises(AirflowFailException) as raised:
        await here.run(found.gate(**limits))

    assert all(reason in str(raised.value) for reason in reasons)
    assert f"range {found.key} of" in str(raised.value)
    assert here.store.keys(DONE) == []
    mended = Range(here, tmp_path)
    await here.run(mended.gate(**GOOD), partition_key=mended.key)
    assert here.store.keys(DONE) == [found.key]


async def test_old_records_do_not_pass_whenever_they_are_processed(here, tmp_path):
    """The age counts up to when the range was published: an outage of processing is not in it."""
    found = Range(here, tmp_path)
    first = await here.run(found.gate(max_age=EVER))
    here.later(5)  # by the clock of the broker

    assert await here.run(found.gate(max_age=EVER)) == first
    with pytest.raises(AirflowFailException, match=rf"was {first['age_s']:.3f} s old .* = 1h"):
        await here.run(found.gate(max_age="1h"))


async def test_columns_of_what_was_in_a_table_before_are_not_taken_for_good(here, tmp_path):
    """A job that found its range in the table names no files: what they are like is not known."""
    found = Range(here, tmp_path, files=[])
    with pytest.raises(ConfigError, match="names no file for 2 records, which were in the table"):
        await here.run(found.gate(columns={"value": "binary"}, min_records=2))

    assert (await here.run(found.gate(min_records=2)))["records"] == 2


async def test_what_cannot_be_judged_is_an_error(here, tmp_path):
    """A missing manifest, one of another range, a lost file and another format do not pass."""
    found = Range(here, tmp_path)
    with pytest.raises(ConfigError, match="nothing is to be checked; give max_skipped"):
        await here.run(found.gate())
    with pytest.raises(DataLossError, match="not of the range planned"):
        await here.run(found.gate(range_key="00000:000000000000-000000000001", max_skipped=0))
    (tmp_path / "0.parquet").write_bytes(b"text")
    with pytest.raises(ConfigError, match="columns cannot be looked up"):
        await here.run(found.gate(columns={"value": "binary"}))
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(StorageError):
        await here.run(found.gate(columns={"value": "binary"}))
    found.path.unlink()
    with pytest.raises(DataLossError, match="no manifest"):
        await here.run(found.gate(max_skipped=0))
