"""Counting what became of Messages, and not losing the failures."""

from __future__ import annotations

import pytest

from memq.client.producer.delivery import MAX_FAILED, Delivery, Outcomes, StoredAt
from memq.errors import DeliveryTimeoutError


def settle(outcomes, error=None):
    """Settle a Message of 3 records and 5 bytes; returns its delivery."""
    delivery = Delivery()
    if error is None:
        outcomes.acked(3, 5)
    else:
        outcomes.failed(3, delivery)
    delivery.settle(error or StoredAt("t", 0, 0, "b", 0, 0, duplicate=False))
    return delivery


def test_stats_count_acked_and_failed():
    """Messages, records and bytes are counted by outcome."""
    outcomes = Outcomes()
    settle(outcomes)
    settle(outcomes)
    settle(outcomes, DeliveryTimeoutError("late"))
    assert outcomes.counts == (2, 6, 10, 1, 3, 0, 0, 0)
    assert repr(outcomes) == "<Outcomes [2 acked | 1 failed]>"


def test_unseen_failure_is_raised_once():
    """The first failure that nobody saw is raised with a note, and then counts as seen."""
    outcomes = Outcomes()
    settle(outcomes, DeliveryTimeoutError("seen")).exception()
    settle(outcomes, DeliveryTimeoutError("first"))
    settle(outcomes, DeliveryTimeoutError("second"))
    with pytest.raises(DeliveryTimeoutError, match="first") as caught:
        outcomes.raise_unseen()
    assert caught.value.__notes__ == ["2 Messages failed and nobody had looked"]
    outcomes.raise_unseen()


def test_failures_kept_are_bounded():
    """A long outage does not gather failures for ever."""
    outcomes = Outcomes()
    for _ in range(MAX_FAILED + 1):
        settle(outcomes, DeliveryTimeoutError("late"))
    with pytest.raises(DeliveryTimeoutError) as caught:
        outcomes.raise_unseen()
    assert caught.value.__notes__[0].startswith(f"{MAX_FAILED} Messages")
