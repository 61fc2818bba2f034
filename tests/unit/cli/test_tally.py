"""What was written is counted, and what was not acked is an error."""

from __future__ import annotations

import pytest

from memq.cli.tally import Tally
from memq.client.producer.delivery import Delivery, StoredAt
from memq.errors import DeliveryTimeoutError, MemqError

STORED = StoredAt("topic", 0, 1, "batch", 0, 0, duplicate=False)


def delivery(outcome=None):
    """A delivery that ended so, or has not ended."""
    made = Delivery()
    if outcome is not None:
        made.settle(outcome)
    return made


def test_all_acked():
    """Records count as acked when their Message is."""
    tally = Tally()
    late = delivery()

    tally.add(delivery(STORED), 3)
    tally.add(late, 2)

    assert repr(tally) == "<Tally [3 of 5 records acked | 1 open]>"
    late.settle(STORED)
    tally.finish()
    tally.check()
    assert (tally.records, tally.acked) == (5, 5)


def test_what_has_ended_is_not_kept():
    """Deliveries are let go of in order as they end, so that memory stays bounded."""
    tally = Tally()

    for _ in range(1_000):
        tally.add(delivery(STORED), 1)

    assert repr(tally) == "<Tally [1000 of 1000 records acked | 0 open]>"


def test_failure():
    """The first failure is told, with how many records were not acked."""
    tally = Tally()
    tally.add(delivery(DeliveryTimeoutError("too late")), 2)
    tally.add(delivery(STORED), 5)
    tally.add(delivery(MemqError("another")), 1)
    tally.finish()

    with pytest.raises(MemqError, match="3 of 8 records were not acked: too late"):
        tally.check()


def test_what_never_ended():
    """A record whose outcome is open is not taken for acked."""
    tally = Tally()

    tally.add(delivery(), 4)
    tally.collect()

    assert (tally.records, tally.acked) == (4, 0)
