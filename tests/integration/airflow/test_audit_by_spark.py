"""The deep audit, submitted to real Spark: what it finds, and what is no finding."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.operators.memq import MemqAuditOperator
from memq.errors import ConfigError
from tests.harness.airflow.rest import BACKSTOP_S
from tests.harness.airflow.standalone import ROOT
from tests.integration.airflow.event_store import EventStore

pytestmark = pytest.mark.timeout(2 * BACKSTOP_S)  # its waits end by what happens

TOPIC = "clicks"


@pytest.fixture
def audit(broker, tmp_path):
    """Runs the operator over the last hour."""

    def run(**options):
        given = {
            "output_dir": str(tmp_path / "audit"),
            "application": str(ROOT / "spark_apps" / "audit_reconcile.py"),
            "default_master": "local[1]",
            "spark_conf": {
                "spark.ui.enabled": "false",
                "spark.driver.bindAddress": "127.0.0.1",
            },
            **options,
        }
        return EventStore().run(
            MemqAuditOperator(task_id="audit", topic=TOPIC, last="1h", deep="true", **given)
        )

    return run


def test_every_byte_is_read(audit, broker, tmp_path):
    """One changed byte in a Message is named, and both tables have it; all else is clean."""
    objects = (broker.data_dir / "objects").glob(f"*/*/topics/{TOPIC}/*/*/*.arrows")
    (victim,) = (path for path in objects if b"value 1" in path.read_bytes())
    sound = victim.read_bytes()
    victim.write_bytes(sound.replace(b"value 1", b"value 9"))  # no index tells of it
    try:
        with pytest.raises(AirflowFailException, match=r"damaged: producer .* \(1 LogMessage\)"):
            audit()
    finally:
        victim.write_bytes(sound)
    tables = [path.read_text() for path in (tmp_path / "audit").rglob("*.csv")]
    assert ["damaged 1" in text for text in tables] == [True]
    rows = pq.read_table(tmp_path / "audit" / "_findings").to_pylist()
    assert sum(row["damaged_records"] or 0 for row in rows) == 1
    assert sum(row["stored_records"] for row in rows if row["producer_id"]) == 3


def test_the_result_needs_a_place(audit):
    """Without a folder that Spark and the task both know there is no way to get it."""
    with pytest.raises(ConfigError, match="needs output_dir"):
        audit(output_dir="")
