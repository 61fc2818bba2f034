"""Brokers are killed while producers write; `make chaos` does it for longer.

A storage and queues with a bug show that what is lost or doubled is found.
"""

import asyncio
from collections.abc import Sequence

import pytest

from tests.fakes import planted as faults
from tests.fakes.crashing import CrashPoint
from tests.fakes.failing_kafka import in_kafka, kafka
from tests.fakes.refusing_store import in_store, store
from tests.system import lives
from tests.system.chaos import round_of, run_round
from tests.system.lives import Life, Seams
from tests.system.plan import Plan, ProducerPlan, draw, draw_retention, secured
from tests.system.runs import Report, run
from tests.system.services import services

AT_A_TIME = 8  # runs mostly wait; so many share two cores well
RETENTION_SEED = "fixed/retention"
SEEDS = [RETENTION_SEED, *(f"fixed/{number}" for number in range(6))]
SECURED = ["secured/5", "secured/7"]
PLANTED = {
    "nothing": (Seams(), set()),
    "put dropped": (Seams(faults.DroppingStorage), {"unsound", "unseen"}),
    "published twice": (Seams(queue=faults.DoublingQueue), {"duplicate"}),
    "publish lost": (Seams(queue=faults.LosingQueue), {"unseen"}),
    "users lost": (Seams(queue=faults.ForgettingQueue), {"refused"}),
}
"""Seams with a bug, and the kinds of violation by which it must be found."""

SERVICES = {
    "store": (store, in_store, ["s3/0", "s3/1"]),
    "kafka": (kafka, in_kafka, ["in kafka/0"]),
}
"""A service that fails for a run, what places a run in it, and seeds."""

CHANCES = 5  # runs for a planted bug: where the machine is slow, a run may not come to its mistake


@pytest.fixture(scope="module", autouse=True)
def _own_lives():
    """Brokers are forked from a server that knows nothing of tests before."""
    lives.renew()


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Report]:
    """The reports of all runs, by seed or by planted bug; they take place side by side."""
    plans = {seed: draw(seed) for seed in SEEDS}
    plans[RETENTION_SEED] = draw_retention(RETENTION_SEED)
    plans |= {seed: secured(draw(seed)) for seed in SECURED}
    plans |= {bug: _plan(bug, seams) for bug, (seams, _) in PLANTED.items()}
    plans["users lost"] = secured(plans["users lost"])

    async def run_all() -> dict[str, Report]:
        slots = asyncio.Semaphore(AT_A_TIME)

        async def one(plan: Plan) -> Report:
            _, wanted = PLANTED.get(plan.seed, (None, set()))
            async with slots:
                for _ in range(CHANCES):
                    report = await run(plan, tmp_path_factory.mktemp("chaos"))
                    if wanted <= report.kinds.keys():
                        break
                return report

        return dict(zip(plans, await asyncio.gather(*map(one, plans.values())), strict=True))

    return asyncio.run(run_all())


@pytest.mark.parametrize("seed", [*SEEDS, *SECURED])
def test_nothing_acked_is_lost_doubled_or_damaged_by_kills(reports, seed) -> None:
    """Whatever step the broker is killed at, what was acked is there once, as it was sent."""
    report = reports[seed]
    assert report.violations == []
    assert report.ends.total() >= 3


@pytest.mark.parametrize("where", SERVICES)
def test_nothing_acked_is_lost_with_a_service_that_fails(
    where, tmp_path_factory, service_jars
) -> None:
    """Refusals, stalls, lost and cut answers, hangs and kills change nothing about acks."""
    service, placed, seeds = SERVICES[where]
    with service(tmp_path_factory.mktemp(where), service_jars) as found:
        plans = [placed(draw(seed), found) for seed in seeds]
        reports = asyncio.run(_run_all(plans, tmp_path_factory))
    for report in reports:
        assert report.violations == []
        assert report.ends.total() >= 3


def test_nothing_acked_is_lost_by_a_cluster_whose_services_fail(tmp_path, service_jars) -> None:
    """Brokers die and services fail, and in the end each write partition has one owner."""
    seed = "cluster/0"
    with services(tmp_path, service_jars) as found:
        [report] = asyncio.run(run_round(round_of(seed), [seed], 3, tmp_path, found))
    assert report.violations == []
    assert report.acked > 0


async def _run_all(plans: Sequence[Plan], tmp_path_factory) -> list[Report]:
    """The reports of runs that take place side by side."""
    folders = [tmp_path_factory.mktemp("chaos") for _ in plans]
    return await asyncio.gather(*map(run, plans, folders))


def test_runs_have_something_to_lose(reports) -> None:
    """On a busy machine a run may be killed before its first ack, but not all of them."""
    assert sum(reports[seed].acked > 0 for seed in SEEDS) > len(SEEDS) // 2


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(reports, bug) -> None:
    """A storage or queue that breaks its promise is reported as what it broke, a sound one not."""
    _, kinds = PLANTED[bug]
    assert kinds <= reports[bug].kinds.keys(), reports[bug]
    assert kinds or not reports[bug].violations


def _plan(bug: str, seams: Seams) -> Plan:
    """A run that gives each planted bug its chance: many Batches, kills, a job that is repeated."""
    producers = tuple(
        ProducerPlan(
            seed=f"planted/{number}",
            label=f"p{number}",
            topic="t",
            stable=number > 0,
            abandoned_after=(10,) if number > 0 else (),
            steps=20,
            sizes=(50,),
            options={"linger": "1ms", "max_in_flight": 16},
        )
        for number in range(3)
    )
    return Plan(
        seed=bug,
        topics={"t": {"batch_age": "5ms", "batch_messages": 1, "ordering": "producer"}},
        producers=producers,
        lives=(Life(None, 0.5), Life(CrashPoint("publish", "after", 20), 0.5)),
        options={"memory_bytes": "8MiB", "log_level": "warning"},
        seams=seams,
    )
