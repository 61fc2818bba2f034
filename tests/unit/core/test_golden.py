"""The JSON that is stored, byte for byte; `test_spec` has the bytes of objects and of frames."""

import msgspec
import pytest

from memq.core.audit.reports import encode_report, encode_reports
from memq.core.audit.result import AuditResult, ProducerAudit, encode_result
from memq.core.format.batch import ProducerRun
from memq.core.governor.nodes import ASSIGNMENTS, BROKERS, LOADS, BrokerNode, LoadsNode
from memq.core.governor.nodes import TopicAssignment as Assignment
from memq.core.manifest import Manifest, encode_manifest
from memq.core.notification import Notification, encode_notification
from tests.unit.core.audit.test_reports import CONSUMED, REPORT

PRODUCED = (
    b'{"version":2,"topic":"t","write_partition":0,"producer_id":"p","epoch":0,"first":0,"last":9,'
    b'"records":50,"size_bytes":500,"crc_sum":9223372036854775808,"failed":[[1,1],[3,4],[5,5]],'
    b'"window_start_ms":0,"window_end_ms":10'
)
SECOND = msgspec.structs.replace(REPORT, write_partition=1)
NAMES = {"topic": "t", "topic_id": "i"}


@pytest.mark.parametrize(
    ("encoded", "golden"),
    [
        (
            encode_notification(
                Notification(
                    **NAMES, version=2, write_partition=2, batch_id="b", uri="s3://b/k",
                    size_bytes=9, index_offset=5, messages=2, records=4, min_timestamp_us=1,
                    max_timestamp_us=3, producers=[ProducerRun("p", 0, 1, 2, 4, 7)], schema_id="s",
                    broker_id="b1", sealed_ms=8, stored_through_ms=8,
                )
            ),
            (b'{"version":2,"topic":"t","topic_id":"i","write_partition":2,"batch_id":"b",'
            b'"uri":"s3://b/k","size_bytes":9,"index_offset":5,"messages":2,"records":4,'
            b'"min_timestamp_us":1,"max_timestamp_us":3,"producers":[["p",0,1,2,4,7]],'
            b'"schema_id":"s","broker_id":"b1","sealed_ms":8,"stored_through_ms":8}'),
        ),
        (encode_report(REPORT), PRODUCED + b"}"),
        (
            dict(encode_reports([REPORT, SECOND]))[b"t"],
            PRODUCED + b',"also":[[1,0,9,50,500,9223372036854775808,[[1,1],[3,4],[5,5]],0]]}',
        ),
        (
            encode_report(CONSUMED),
            (b'{"kind":"consumed","version":2,"topic":"t","consumer":"g","partition":3,"start":5,'
            b'"end":9,"batches":4,"messages":40,"records":400,"crc_sum":18446744073709551615,'
            b'"window_start_ms":1,"window_end_ms":2,"skipped":0,"began":false,"moved":false,'
            b'"final":true,"topic_id":"","client":""}'),
        ),
        (
            msgspec.json.format(
                encode_manifest(
                    Manifest(
                        **NAMES, job="j", partition=0, start=5, end=9, batches=4, messages=40,
                        records=99, bytes=7, crc_sum=3, output="out", files=["a"], started_ms=1,
                        finished_ms=2,
                    )
                ),
                indent=-1,
            ),
            (b'{"version":2,"job":"j","topic":"t","topic_id":"i","partition":0,"start":5,"end":9,'
            b'"batches":4,"messages":40,"records":99,"bytes":7,"skipped_messages":0,'
            b'"skipped_records":0,"left_out":[],"unnamed_messages":0,"crc_sum":3,'
            b'"left_out_crc_sum":0,"output":"out","files":["a"],"started_ms":1,"finished_ms":2}'),
        ),
        (
            encode_result(AuditResult("t", [ProducerAudit((0, "p", 1))])),
            (b'{"topic":"t","producers":[{"name":[0,"p",1],"produced_messages":0,'
            b'"produced_records":0,"stored_messages":0,"stored_records":0,"lost":[],'
            b'"lost_records":0,"damaged":[],"damaged_records":0,"recovered":[],"doubled":[],'
            b'"changed":[],"expired":[],"expired_records":0,"unreported_messages":0,'
            b'"unreported_records":0}],"damage":[],"open_reports":0,"expired_reports":0,'
            b'"consumers":[],"beyond":[]}'),
        ),
        (
            ASSIGNMENTS.encode(Assignment(topic_id="i1", epoch=3, owners=("a", ""))),
            b'{"topic_id":"i1","epoch":3,"owners":["a",""]}',
        ),
        (LOADS.encode(LoadsNode(loads={"t": {2: 0.5}})), b'{"loads":{"t":{"2":0.5}}}'),
        (
            BROKERS.encode(BrokerNode(id="b", address="h:1")),
            (b'{"id":"b","address":"h:1","zone":"","rack":"","capacity":1.0,"role":"all",'
            b'"accepting":true,"lost_ms":0}'),
        ),
    ],
)  # fmt: skip
def test_what_is_stored_has_the_same_bytes_for_ever(encoded, golden):
    """Other versions, other programs and people read it."""
    assert encoded == golden
