"""What a job tells the audit about a range that it has written."""

from __future__ import annotations

from memq.spark.parquet import consumed
from tests.unit.test_manifest import MANIFEST


def test_a_report_says_what_the_manifest_says():
    """It names the incarnation that was read, so that nothing of a later topic counts as read."""
    report = consumed(MANIFEST)
    same = ("topic", "incarnation", "partition", "start", "end", "batches", "messages", "records")
    assert [getattr(report, name) for name in same] == [getattr(MANIFEST, name) for name in same]
    assert (report.consumer, report.crc_sum) == (MANIFEST.job, MANIFEST.crc_sum)
