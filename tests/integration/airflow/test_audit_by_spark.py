"""The deep audit, submitted to real Spark: what it finds, and what is no finding."""

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.operators.memq import MemqAuditOperator
from airflow_provider_memq.pipeline.dags import LOCAL_CONF
from memq.errors import ConfigError
from tests.harness.airflow.rest import BACKSTOP_S
from tests.harness.airflow.standalone import ROOT
from tests.integration.airflow.event_store import EventStore

pytestmark = pytest.mark.timeout(2 * BACKSTOP_S)  # its waits end by what happens

TOPIC = "clicks"


def test_every_byte_is_read(broker, tmp_path):
    """One changed byte in a Message is named, and both tables have it; all else is clean."""
    audit = MemqAuditOperator(
        task_id="audit",
        topic=TOPIC,
        last="1h",
        deep="true",
        application=str(ROOT / "spark_apps" / "audit_reconcile.py"),
        default_master="local[1]",
        spark_conf=LOCAL_CONF,
    )
    with pytest.raises(ConfigError, match="needs output_dir"):
        EventStore().run(audit)

    audit.output_dir = str(tmp_path / "audit")
    objects = (broker.data_dir / "objects").glob(f"*/*/topics/{TOPIC}/*/*/*.arrows")
    (victim,) = (path for path in objects if b"value 1" in path.read_bytes())
    victim.write_bytes(victim.read_bytes().replace(b"value 1", b"value 9"))  # no index tells
    with pytest.raises(AirflowFailException, match=r"damaged: producer .* \(1 LogMessage\)"):
        EventStore().run(audit)
    tables = [path.read_text() for path in (tmp_path / "audit").rglob("*.csv")]
    assert ["damaged 1" in text for text in tables] == [True]
    rows = pq.read_table(tmp_path / "audit" / "_findings").to_pylist()
    assert sum(row["damaged_records"] or 0 for row in rows) == 1
    assert sum(row["stored_records"] for row in rows if row["producer_id"]) == 3
