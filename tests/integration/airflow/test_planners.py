"""A planner beside another one, and one whose Airflow has forgotten plans: both are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, PartitionedAssetTimetable
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.operators.memq import MemqPlanRangesOperator, MemqSparkSubmitOperator
from airflow_provider_memq.operators.plan import PLANNER
from airflow_provider_memq.operators.range_job import manifest_path
from airflow_provider_memq.range_assets import plan_asset, ranges_asset
from airflow_provider_memq.ranges import parse_key, range_key
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError
from tests.advice import follows
from tests.integration.airflow.event_store import Consumer
from tests.integration.airflow.here import TOPIC, world

RANGES = ranges_asset(TOPIC)
PLAN = plan_asset(RANGES)


@pytest.fixture
async def here(tmp_path, monkeypatch):
    async with world(tmp_path, monkeypatch) as running:
        running.output = str(tmp_path / "out")
        yield running


def planner(dag_id, **options):
    given = {"task_id": "plan", "topic": TOPIC, "ranges": RANGES, "max_offsets": 2} | options
    with DAG(dag_id, schedule=None):
        return MemqPlanRangesOperator(**given)


def offsets(here):
    """Where each range that was emitted begins and ends, sorted."""
    return sorted(parse_key(key)[1:3] for key in here.store.keys(RANGES))


async def commit(here, end, group="g"):
    async with await MemqHook().atopic(TOPIC) as client:
        await client.commit(group, "", {0: end})


def write_manifest(here, start, end):
    """A manifest as a job leaves it, as far as its name tells."""
    planned = OffsetRange(0, start, end, here.incarnation)
    path = Path(manifest_path(None, here.output, TOPIC, planned))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


# -- another planner ------------------------------------------------------------------------


async def test_a_second_planner_is_refused_by_name(here):
    """The ledger says who plans; another DAG fails at once, and emits nothing."""
    await here.publish(2)
    await here.run(planner("first"))
    await here.publish(2)

    with pytest.raises(ConfigError, match=r"is planned by first\.plan, and two") as refused:
        await here.run(planner("second"))

    assert isinstance(refused.value, AirflowFailException)
    assert offsets(here) == [(0, 2)]
    await here.run(planner("first"))
    assert offsets(here) == [(0, 2), (2, 4)]


async def test_of_two_first_plans_at_a_time_one_is_refused(here):
    """Whoever claims last plans; the other one sees it before it emits."""
    await here.publish(2)
    late = planner("late")
    state = here.store.state(PLAN)
    begin = late._begin

    def overtaken(*given):
        state.set(PLANNER, "other.plan")
        return begin(*given)

    late._begin = overtaken
    with pytest.raises(ConfigError, match=r"is planned by other\.plan"):
        await here.run(late)
    assert offsets(here) == []
    with pytest.raises(ConfigError, match=r"is planned by other\.plan"):
        await here.run(planner("late"))
    await here.run(planner("other"))
    assert offsets(here) == [(0, 2)]


@follows("pause or delete that DAG, and run it with take_over=true")
@pytest.mark.parametrize("gone", [True, False])
async def test_a_planner_takes_over_from_one_that_is_paused(here, gone):
    """Not from one that may still plan; from then on the old one is refused."""
    await here.publish(2)
    await here.run(planner("old"))
    old = here.store.consumer = Consumer("old", RANGES)
    old.states = {"run": {"plan": "running"}}
    await here.publish(2)
    for old.paused in (False, True):
        with pytest.raises(ConfigError, match=r"is planned by old\.plan"):
            await here.run(planner("new", take_over=True))
    old.states, old.gone = {}, gone

    await here.run(planner("new", take_over=True))
    with pytest.raises(ConfigError, match=r"is planned by new\.plan"):
        await here.run(planner("old"))
    await here.publish(2)
    await here.run(planner("new"))
    assert offsets(here) == [(0, 2), (2, 4), (4, 6)]


async def test_a_planner_that_was_renamed_in_its_dag_takes_over(here):
    """Its own DAG need not be paused, which would keep it from running."""
    await here.publish(2)
    await here.run(planner("plan"))
    here.store.consumer = Consumer("other", RANGES)
    await here.publish(2)
    renamed = planner("plan", task_id="renamed")

    with pytest.raises(ConfigError, match=r"is planned by plan\.plan"):
        await here.run(renamed)
    renamed.take_over = True
    await here.run(renamed)
    assert offsets(here) == [(0, 2), (2, 4)]


async def test_who_takes_over_with_nothing_new_has_the_plan(here):
    """It is on record at once."""
    await here.publish(2)
    await here.run(planner("old"))
    here.store.consumer = Consumer("old", RANGES, paused=True)

    await here.run(planner("new", take_over=True))

    with pytest.raises(ConfigError, match=r"is planned by new\.plan"):
        await here.run(planner("old"))


# -- forgotten plans ------------------------------------------------------------------------


def restored(here, plans):
    """Have Airflow forget all plans but the first ones, as with its database of that time."""
    del here.store.events[PLAN.name][plans:]
    here.store.events[RANGES.name].clear()


@follows("then run this planner once with take_over=true: it goes on after what group")
async def test_a_planner_whose_airflow_was_restored_is_refused(here):
    """With both figures; who takes over goes on after what is processed, and none of it twice."""
    watching = {"group": "g", "output_dir": here.output}
    for _ in range(3):
        await here.publish(2)
        await here.run(planner("plan", **watching))
    await commit(here, 6)
    restored(here, 1)
    await here.publish(3)

    with pytest.raises(ConfigError, match="planned up to 2, and offset 6 is committed") as refused:
        await here.run(planner("plan", **watching))
    assert isinstance(refused.value, AirflowFailException)
    assert offsets(here) == []

    await here.run(planner("plan", **watching, take_over=True))
    await here.publish(1)
    await here.run(planner("plan", **watching))
    assert offsets(here) == [(6, 8), (8, 9), (9, 10)]


async def test_what_is_written_beyond_the_group_is_planned_as_it_was_cut(here):
    """Manifests tell of ranges that no commit came past; what lies between them is planned anew."""
    watching = {"output_dir": here.output, "group": "g"}
    await here.publish(2)
    await here.run(planner("plan", **watching))
    here.incarnation = parse_key(here.store.keys(RANGES)[0]).incarnation
    await here.publish(14)
    restored(here, 1)
    await commit(here, 4)
    for start, end in ((2, 4), (4, 5), (6, 8), (8, 9), (12, 13)):
        write_manifest(here, start, end)

    with pytest.raises(
        ConfigError, match=r"up to 2, and a manifest is there for .*12-000000000013@"
    ):
        await here.run(planner("plan", **watching))
    await here.run(planner("plan", **watching, take_over=True))

    assert offsets(here) == [
        (4, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 12), (12, 13), (13, 15), (15, 16),
    ]  # fmt: skip


@follows("Delete files and manifest of one")
async def test_ranges_that_are_written_twice_are_not_taken_over(here):
    """Their rows are there twice already: a person has to choose."""
    await here.publish(9)
    await here.run(planner("plan", max_ranges=1))
    here.incarnation = parse_key(here.store.keys(RANGES)[0]).incarnation
    write_manifest(here, 3, 6)
    doubled = write_manifest(here, 5, 8)

    taking = {"output_dir": here.output, "take_over": True}
    with pytest.raises(ConfigError, match=r"-000000000008@\w+ of 't' and a range before it"):
        await here.run(planner("plan", **taking))
    doubled.unlink()
    await here.run(planner("plan", **taking))
    assert offsets(here)[1:3] == [(2, 3), (3, 6)]


async def test_a_database_that_is_empty_is_no_reason_to_begin_anew(here):
    """The first plan of a new Airflow looks at the group as well."""
    await here.publish(4)
    await commit(here, 3)

    with pytest.raises(ConfigError, match="planned up to 0, and offset 3 is committed"):
        await here.run(planner("plan", group="g"))
    await here.run(planner("plan", group="g", take_over=True))
    assert offsets(here) == [(3, 4)]


async def test_a_group_that_follows_is_no_reason_to_refuse(here):
    """Whatever it has committed of what is planned."""
    for end in (0, 2, 3):
        await here.publish(2)
        if end:
            await commit(here, end)
        await here.run(planner("plan", group="g", output_dir=here.output))

    assert offsets(here) == [(0, 2), (2, 4), (4, 6)]


# -- runs by hand ---------------------------------------------------------------------------


def begin(here, key, run_type="manual", *, of_run=None):
    """Have Airflow come to a range task of a run with that key."""
    with DAG("process", schedule=PartitionedAssetTimetable(assets=RANGES)) as dag:
        task = MemqSparkSubmitOperator(
            task_id="process", topic=TOPIC, application="a.py", output_dir=here.output
        )
    task.range_key = key
    run = SimpleNamespace(partition_key=of_run or key, run_type=run_type)
    task.pre_execute({"dag": dag, "dag_run": run})


@pytest.fixture
def events(here, monkeypatch):
    monkeypatch.setattr(
        "airflow.sdk.execution_time.context.InletEventsAccessors", lambda _: here.store
    )


@follows("Run a backfill of these offsets, with `again` where they are done")
async def test_a_run_with_a_key_that_was_not_planned_is_refused(here, events):
    """Cut otherwise, not planned yet, of another incarnation: nothing is run; planned keys are."""
    await here.publish(4)
    await here.run(planner("plan"))
    first, second = sorted(here.store.keys(RANGES))
    of = parse_key(first)

    for key in (first, second, first.partition("@")[0]):
        begin(here, key)
    for wrong in (
        of._replace(end=1),
        of._replace(start=1, end=3),
        of._replace(start=4, end=6),
        of._replace(partition=1),
    ):
        for run_type in ("manual", "asset_triggered"):
            with pytest.raises(ConfigError, match="was not planned") as refused:
                begin(here, range_key(wrong), run_type)
        assert isinstance(refused.value, AirflowFailException)
    with pytest.raises(ConfigError, match="was not planned"):
        begin(here, range_key(of._replace(incarnation="b" * 16)))
    begin(here, range_key(wrong), of_run=first)  # its range is from another task


async def test_a_run_whose_plan_airflow_has_forgotten_goes_on(here, events):
    """One that an event has made: a person who clears it must not be told that it never was."""
    for _ in range(3):
        await here.publish(2)
        await here.run(planner("plan"))
    first = here.store.keys(RANGES)[0]
    del here.store.events[PLAN.name][0]

    begin(here, first, "asset_triggered")
    with pytest.raises(ConfigError, match="was not planned"):
        begin(here, first)
