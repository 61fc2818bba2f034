"""Any DataFrame, any topic: what is read back is what was given, or nothing of it was stored."""

from __future__ import annotations

from tests.system.spark.any_rows import write_and_compare


def test_any_rows_are_stored_as_they_are_or_refused(spark, broker):
    """Each value of Spark is read back as it was; or the error names column, row and value."""
    for seed in range(6):
        outcome = write_and_compare(spark, broker.address, f"any-rows-{seed}", seed)
        assert outcome in {"stored", "refused"}
