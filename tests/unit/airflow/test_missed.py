"""Which ranges have no run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_memq.planning.ledger import PlanLedger, StoredPlan
from airflow_provider_memq.planning.missed import MAX_AGAIN, ranges_without_run
from airflow_provider_memq.planning.ranges import range_key

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = PlanLedger(topic="t", incarnation="a" * 16, origins={0: 0}, ends={0: 0})


def stored(minute, cuts=(), again=()):
    ledger = PlanLedger(
        topic="t",
        incarnation="a" * 16,
        origins={0: 0},
        ends={0: 9},
        cuts={0: [*cuts]},
        again=[*again],
    )
    return StoredPlan(BEGIN + timedelta(minutes=minute), ledger)


def keys(plans):
    return [range_key(each) for plan in plans for each in plan.ledger.ranges]


def test_what_has_no_run_is_emitted_again_when_it_is_settled():
    """A range without a run is missing, unless it was emitted a short time ago, first or again."""
    plans = [stored(0, [0, 1, 2, 3]), stored(5, [3, 4])]
    first, second, third, young = keys(plans)
    plans.append(stored(6, again=[second]))

    found = ranges_without_run(plans, {first}, BEGIN + timedelta(minutes=4))

    assert found.again == [third]
    assert found.waiting == [second, young]
    assert found.until < BEGIN


def test_one_plan_emits_so_many_again():
    """A pause of weeks is caught up with in several steps, the oldest ranges first."""
    plans = [stored(0, range(3 * MAX_AGAIN))]

    found = ranges_without_run(plans, [], BEGIN)

    assert found.again == keys(plans)[:MAX_AGAIN]
