"""Ranges that were planned while their DAG was paused get their run, each once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_memq import missed
from airflow_provider_memq.ledger import CLOCKS_APART
from airflow_provider_memq.missed import MARK
from airflow_provider_memq.operators.memq import MemqPlanRangesOperator
from airflow_provider_memq.range_assets import plan_asset, ranges_asset
from airflow_provider_memq.ranges import parse_key
from memq.errors import ConfigError
from tests.advice import follows
from tests.integration.airflow.event_store import Consumer
from tests.integration.airflow.here import TOPIC, world

RANGES, PROCESS = ranges_asset(TOPIC), "process"


@pytest.fixture
async def here(tmp_path, monkeypatch):
    async with world(tmp_path, monkeypatch) as running:
        running.store.consumer = Consumer(PROCESS, RANGES)
        running.store.clock = datetime.now(UTC) - timedelta(hours=1)  # long enough ago
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", running.store.consumer, raising=False)
        yield running


def plan(**options):
    given = {"process_dag_id": PROCESS, "missed_after": "1ms", "max_offsets": 1} | options
    return MemqPlanRangesOperator(task_id="plan", topic=TOPIC, ranges=RANGES, **given)


def offsets(keys):
    return sorted(parse_key(key).start for key in keys)


@pytest.mark.parametrize("paused_first", [True, False])
async def test_what_was_planned_while_paused_is_run_once(here, paused_first):
    """Whatever was planned before, meanwhile and after: each range has one run in the end."""
    consumer = here.store.consumer
    for paused in (paused_first, True, False):
        consumer.paused = paused
        await here.publish(2)
        await here.run(plan())

    for _ in range(3):
        await here.run(plan())

    assert offsets(consumer.keys()) == list(range(6))


async def test_what_has_no_run_does_not_wait_with_what_is_too_little(here):
    """A plan that would wait for more emits such a range again at once, and waits the next time."""
    lingers = {"max_offsets": None, "linger": "1h", "deferrable": True}
    here.store.consumer.paused = True
    await here.publish(1)
    await here.run(plan())
    here.store.consumer.paused = False
    await here.publish(1)

    await here.run(plan(**lingers))
    with pytest.raises(TaskDeferred):
        await here.run(plan(**lingers))

    assert offsets(here.store.consumer.keys()) == [0]


async def test_nothing_is_emitted_again_while_it_is_paused(here):
    """It would be lost once more."""
    here.store.consumer.paused = True
    await here.publish(2)
    for _ in range(3):
        await here.run(plan())

    assert len(here.store.keys(RANGES)) == 2


async def test_the_next_plan_goes_on_where_there_was_too_much_for_one(here, monkeypatch):
    """Ranges beyond those that one plan emits again do not wait for `missed_after`."""
    monkeypatch.setattr(missed, "MAX_AGAIN", 1)
    here.store.consumer.paused = True
    await here.publish(2)
    await here.run(plan())
    here.store.consumer.paused = False
    for _ in range(2):
        await here.run(plan(missed_after="10m"))

    assert offsets(here.store.consumer.keys()) == [0, 1]


async def test_a_run_that_a_clock_behind_has_made_is_found(here, monkeypatch):
    """Where Airflow's clocks differ by less than they may, no range is emitted again."""
    made = here.store.consumer.stored
    monkeypatch.setattr(
        here.store.consumer,
        "stored",
        lambda asset, key, at: made(asset, key, at - CLOCKS_APART / 2),
    )
    for _ in range(3):
        await here.publish(1)
        assert (await here.run(plan()))["again"] == []


async def test_a_preview_is_no_look(here):
    """What has no run is emitted again by the next plan, however short a time after a preview."""
    here.store.consumer.paused = True
    await here.publish(1)
    await here.run(plan())
    here.store.consumer.paused = False

    await here.run(plan(preview=True))
    assert offsets((await here.run(plan(missed_after="10m")))["again"]) == [0]


async def test_ranges_of_the_topic_before_are_not_emitted_again(here):
    """What was planned of a topic that is deleted can have no run any more."""
    here.store.consumer.paused = True
    await here.publish(1)
    await here.run(plan())
    here.store.consumer.paused = False
    await here.create_again()
    await here.publish(2)
    for _ in range(3):
        await here.run(plan(on_recreated="begin"))

    assert offsets(here.store.consumer.keys()) == [0, 1]


async def test_a_run_that_is_not_made_yet_is_not_missing(here):
    """A range is judged only when it was emitted long enough ago, each time it was."""
    here.store.consumer.paused = True
    here.store.clock = datetime.now(UTC) - timedelta(seconds=30)
    await here.publish(1)
    await here.run(plan())
    here.store.consumer.paused = False

    assert (await here.run(plan(missed_after="10m")))["again"] == []
    here.store.state(plan_asset(RANGES)).clear()
    assert len((await here.run(plan(missed_after="10s")))["again"]) == 1


async def test_a_try_that_dies_has_emitted_nothing_again(here):
    """The next one emits it, and the one after that nothing."""
    here.store.consumer.paused = True
    await here.publish(1)
    await here.run(plan())
    here.store.consumer.paused = False

    await here.run(plan(), crash=True)
    assert here.store.consumer.keys() == []
    await here.run(plan())
    await here.run(plan())
    assert offsets(here.store.consumer.keys()) == [0]


async def test_runs_that_airflow_has_forgotten_are_not_missing(here):
    """Where the mark is lost and old runs were cleaned away, what is older is taken for done."""
    for _ in range(3):
        await here.publish(1)
        await here.run(plan())
    here.store.state(plan_asset(RANGES)).clear()
    runs = here.store.consumer.runs
    del runs[min(runs)]

    assert (await here.run(plan()))["again"] == []
    assert len(here.store.keys(RANGES)) == 3


async def test_another_dag_goes_on_where_the_one_before_was(here):
    """What that had a run of has no other one, once it has run all that was planned."""
    consumer = here.store.consumer
    for _ in range(2):
        await here.publish(1)
        await here.run(plan())
    old = offsets(consumer.keys())
    consumer.renamed("other")

    for _ in range(3):
        await here.publish(1)
        await here.run(plan(process_dag_id="other"))

    assert (old, offsets(consumer.keys())) == ([0, 1], [2, 3, 4])
    assert here.store.state(plan_asset(RANGES))[MARK]["dag_id"] == "other"


@follows("run the planner once with take_over=true, which gives runs to what has none")
async def test_ranges_that_the_dag_before_has_not_run_are_not_left(here):
    """Another DAG is refused, naming the first; when it takes over, each has one run."""
    consumer = here.store.consumer
    for paused in (False, True):
        consumer.paused = paused
        await here.publish(1)
        await here.run(plan(missed_after="2h"))
    consumer.renamed("other")
    consumer.paused = False
    await here.publish(1)

    for _ in range(2):
        with pytest.raises(ConfigError, match=r"without one: 00000:000000000001-\S+ of 1 range\."):
            await here.run(plan(process_dag_id="other"))
    await here.run(plan(process_dag_id="other", take_over=True), crash=True)
    assert consumer.keys() == []
    for take_over in (True, False, False):
        await here.run(plan(process_dag_id="other", take_over=take_over))

    assert offsets(consumer.keys()) == [1, 2]


@follows("until all have run")
async def test_runs_that_the_dag_before_has_not_ended_are_not_lost_sight_of(here):
    """Another DAG is refused until they have: Airflow starts none if the file is gone."""
    consumer = here.store.consumer
    await here.publish(2)
    for _ in range(2):
        await here.run(plan())
    consumer.renamed("other")
    consumer.unfinished_of[PROCESS] = 1

    for missed_after in ("1ms", "10m"):  # the last look is a shorter time ago than that
        with pytest.raises(
            ConfigError, match="Of its runs 1 have not ended; without one: none of 0 ranges"
        ):
            await here.run(plan(process_dag_id="other", missed_after=missed_after))
    del consumer.unfinished_of[PROCESS]
    assert (await here.run(plan(process_dag_id="other")))["again"] == []


@follows('Run the planner once with the offsets to go on from as its start, such as {"0": 5}')
async def test_a_plan_whose_events_are_gone_is_not_made_anew(here):
    """Nothing is planned twice because Airflow has forgotten it; a dry run says so as well."""
    for _ in range(2):
        await here.publish(2)
        await here.run(plan())
    here.store.events[plan_asset(RANGES).name].clear()

    for options in ({}, {"preview": True}, {"start": "latest"}):
        with pytest.raises(ConfigError, match="nothing is left of what was planned"):
            await here.run(plan(**options))
    assert offsets(here.store.keys(RANGES)) == [0, 1, 2, 3]

    await here.publish(1)
    await here.run(plan(start={"0": 4}), crash=True)
    with pytest.raises(ConfigError, match="nothing is left of what was planned"):
        await here.run(plan())  # the one that the schedule starts meanwhile
    await here.run(plan(start='{"0": 4}'))
    await here.publish(1)
    await here.run(plan())
    assert offsets(here.store.keys(RANGES)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("status", "error"), [(404, ConfigError), (503, AirflowRuntimeError)])
async def test_an_outage_of_airflow_is_not_a_missing_dag(here, status, error):
    """Who named a DAG that there is not is told so; an outage is tried again."""
    here.store.consumer.paused = True
    await here.publish(1)
    await here.run(plan())

    def answer(_):
        detail = {"status_code": status}
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))

    here.store.consumer.get_dag = answer
    with pytest.raises(error):
        await here.run(plan())
