"""The planner: each offset in one range, each range in one run, whatever dies, waits or is paused.

Its neighbours are refused: another planner, another DAG that processes, an Airflow that forgot.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, PartitionedAssetTimetable
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRuntimeError,
    ErrorType,
    TaskDeferralError,
    TaskDeferred,
)
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch.range_job import manifest_path
from airflow_provider_memq.operators import plan as planning
from airflow_provider_memq.operators.memq import MemqSparkSubmitOperator
from airflow_provider_memq.operators.plan import PLANNER
from airflow_provider_memq.planning import ledger, missed
from airflow_provider_memq.planning.ranges import parse_key, range_key
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError
from tests.integration.airflow.event_store import Consumer
from tests.integration.airflow.here import DONE, PLAN, RANGES, RETENTION_S, TOPIC, commit
from tests.integration.airflow.here import plan as plan_task

PROCESS = "process"
LINGERING = {"linger": "2s", "deferrable": True, "process_dag_id": None, "max_offsets": None}
HELD = {"deferrable": True, "max_pending": 2, "max_offsets": None}
TIMED_OUT = {"next_method": "__fail__", "next_kwargs": {"error": "Trigger timeout"}}
FAILED = {"next_method": "__fail__", "next_kwargs": {"error": "Trigger failure"}}
FIRED = {"next_method": "execute", "next_kwargs": {"event": {"status": "success"}}}


@pytest.fixture
async def here(here, tmp_path, monkeypatch):
    here.output = str(tmp_path / "out")
    here.store.consumer = Consumer(PROCESS, RANGES)
    here.store.clock = datetime.now(UTC) - timedelta(hours=1)  # long enough ago
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", here.store.consumer, raising=False)
    return here


def plan(dag_id="plan", **options):
    given = {"max_offsets": 1, "process_dag_id": PROCESS, "missed_after": "1ms"}
    with DAG(dag_id, schedule=None):
        return plan_task(**given | options)


def planner(dag_id, **options):
    """One that does not look for runs."""
    return plan(dag_id, **{"max_offsets": 2, "process_dag_id": None} | options)


def offsets(keys):
    return sorted(parse_key(key).start for key in keys)


def spans(here):
    """Where each range that was emitted begins and ends, sorted."""
    return sorted(parse_key(key)[1:3] for key in here.store.keys(RANGES))


async def deferred(here, operator):
    with pytest.raises(TaskDeferred) as raised:
        await here.run(operator)
    return raised.value


@pytest.mark.parametrize("seed", range(4))
async def test_each_offset_is_in_one_range_that_has_one_run_and_is_committed(
    here, seed, monkeypatch
):
    """Plans and commits die, processing is paused or behind, ranges wait, all at any time: nothing
    is lost or doubled. Pages of three events make few events many.
    """
    for name in ("LEDGER_EVENTS", "PAGE_EVENTS", "PLAN_EVENTS"):
        monkeypatch.setattr(ledger, name, 3)
    randomness, consumer, done = Random(seed), here.store.consumer, set()

    async def process(share):
        for key in randomness.sample(consumer.keys(), round(len(consumer.keys()) * share)):
            if key not in done:
                here.store.add(DONE, key)
                done.add(key)

    await here.run(plan())
    for _ in range(15):
        await here.publish(randomness.randrange(4))
        consumer.paused, consumer.unfinished = randomness.random() < 0.3, randomness.randrange(3)
        limits = {"max_offsets": randomness.randrange(1, 4), "max_ranges": 2, "max_pending": 2}
        limits |= {
            "linger": randomness.choice(["0s", "1h"]),
            "min_bytes": randomness.choice([0, 1]),
        }
        await here.run(plan(**limits), crash=randomness.random() < 0.3)
        await process(randomness.random())
        await here.run(commit(), crash=randomness.random() < 0.3)
    consumer.paused = False
    for _ in range(20):
        await here.run(plan())
    await process(1)
    await here.run(commit())

    planned = sorted({*here.store.keys(RANGES)})
    assert consumer.keys() == planned
    async with await MemqHook().atopic(TOPIC) as topic:
        (partition,), committed = await topic.offsets(), await topic.committed("g")
    spans = [parse_key(key)[1:3] for key in planned]
    assert [n for span in spans for n in range(*span)] == [*range(partition.end)]
    assert committed == {0: partition.end}


# -- ranges that wait to grow ---------------------------------------------------------------


async def test_what_waits_is_planned_once_by_the_task_that_waited(here):
    """Nothing is stored while it waits; what came meanwhile is in the same range."""
    await here.publish(2)
    await deferred(here, plan(**LINGERING | {"linger": "1h", "min_bytes": "1GiB"}))
    assert here.store.events.get(PLAN.name, []) == []
    await here.publish(3)

    await here.run(plan(**LINGERING | {"linger": "0s"}), resumed=FIRED)
    await here.run(plan(**LINGERING | {"linger": "0s"}))

    assert spans(here) == [(0, 5)]


@pytest.mark.parametrize("woken_by", ["time", "bytes"])
async def test_the_trigger_wakes_it_when_it_is_due(here, woken_by):
    """When the oldest has waited long enough, or a read partition has the bytes."""
    await here.publish(1)
    (shown,) = (await here.run(plan(**LINGERING, preview=True)))["waiting"]
    enough = {"linger": "1h", "min_bytes": 3 * shown["bytes"]}
    operator = plan(**LINGERING | ({} if woken_by == "time" else enough))
    trigger = (await deferred(here, operator)).trigger
    assert trigger.until_ms >= planning.now_ms() + planning.LEAST_WAIT_MS - 5_000
    if woken_by == "time":
        trigger.until_ms = planning.now_ms() + 1_000
    trigger.poll_interval = 0.1

    firing = asyncio.create_task(anext(trigger.run()))
    if woken_by == "bytes":
        await here.publish(3)
    assert (await asyncio.wait_for(firing, 60)).payload["status"] == "success"
    if woken_by == "time":
        operator.linger = "1ms"
    await here.run(operator, resumed=FIRED)

    assert spans(here) == [(0, 1 if woken_by == "time" else 4)]


async def test_without_a_triggerer_a_worker_goes_on(here):
    """A wait whose trigger never ends is over at its timeout; one whose trigger broke fails."""
    await here.publish(1)
    waiting = await deferred(here, plan(**LINGERING | {"linger": "1s"}))
    assert 0 < waiting.timeout.total_seconds() < 3600

    await here.run(plan(**LINGERING | {"linger": "0s"}), resumed=TIMED_OUT)
    assert spans(here) == [(0, 1)]
    with pytest.raises(TaskDeferralError):
        await here.run(plan(**LINGERING), resumed=FAILED)


async def test_while_processing_is_paused_or_behind_ranges_grow(here):
    """A pause becomes one range, and not many that have to be emitted again; so do pending runs."""
    consumer = here.store.consumer
    for consumer.paused, consumer.unfinished in ((True, 0), (False, 2), (False, 2)):
        await here.publish(1)
        await deferred(here, plan(**HELD))
    consumer.unfinished = 1
    await here.run(plan(**HELD))
    consumer.unfinished = 2
    await here.publish(3)
    await here.run(plan(**HELD | {"max_offsets": 2}))  # what is full does not wait

    assert spans(here) == [(0, 3), (3, 5)]
    assert consumer.keys() == here.store.keys(RANGES)


@pytest.mark.parametrize("options", [HELD, {**LINGERING, "linger": "30d", "min_bytes": "1TiB"}])
async def test_retention_ends_every_wait(here, monkeypatch, options):
    """What waits is planned while three quarters of its time are left, and is not lost."""
    here.store.consumer.paused = True
    operator = plan(**options)
    await here.publish(1)
    wait = await deferred(here, operator)
    later_ms = round(here.at(RETENTION_S / planning.LONGEST_WAIT).timestamp() * 1000)
    monkeypatch.setattr(planning, "now_ms", lambda: later_ms)
    await here.run(operator)

    assert wait.trigger.until_ms <= later_ms + planning.LEAST_WAIT_MS
    assert spans(here) == [(0, 1)]


async def test_runs_cannot_be_counted_without_their_dag(here):
    """`max_pending` alone would hold nothing back; with the DAG it does."""
    await here.publish(1)
    with pytest.raises(ConfigError, match="max_pending = 2: give process_dag_id"):
        await here.run(plan(max_pending=2, process_dag_id=None))

    await here.run(plan(max_pending=2))
    assert spans(here) == [(0, 1)]


# -- ranges without a run -------------------------------------------------------------------


async def test_nothing_is_emitted_again_while_it_is_paused(here, monkeypatch):
    """It would be lost once more; then so many at a time, and a preview counts as no look."""
    monkeypatch.setattr(missed, "MAX_AGAIN", 1)
    here.store.consumer.paused = True
    await here.publish(2)
    for _ in range(3):
        await here.run(plan())
    assert len(here.store.keys(RANGES)) == 2

    here.store.consumer.paused = False
    await here.run(plan(preview=True))
    for missed_after in ("1ms", "10m"):
        await here.run(plan(missed_after=missed_after))
    assert offsets(here.store.consumer.keys()) == [0, 1]


async def test_a_run_that_is_not_made_yet_is_not_missing(here):
    """A range is judged only when it was emitted long enough ago, each time it was."""
    here.store.consumer.paused = True
    here.store.clock = datetime.now(UTC) - timedelta(seconds=30)
    await here.publish(1)
    await here.run(plan())
    here.store.consumer.paused = False

    assert (await here.run(plan(missed_after="10m")))["again"] == []
    here.store.state(PLAN).clear()
    assert len((await here.run(plan(missed_after="10s")))["again"]) == 1


async def test_runs_that_airflow_has_forgotten_are_not_missing(here):
    """Where the mark is lost and old runs were cleaned away, what is older is taken for done."""
    for _ in range(3):
        await here.publish(1)
        await here.run(plan())
    here.store.state(PLAN).clear()
    runs = here.store.consumer.runs
    del runs[min(runs)]

    assert (await here.run(plan()))["again"] == []
    assert len(here.store.keys(RANGES)) == 3


async def test_another_dag_is_refused_until_it_takes_over(here):
    """It names the first; then what that had a run of has no other one, and the rest has one."""
    consumer = here.store.consumer
    for consumer.paused in (False, True):
        await here.publish(1)
        await here.run(plan(missed_after="2h"))
    assert offsets(consumer.keys()) == [0]
    consumer.renamed("other")
    consumer.paused = False
    await here.publish(1)

    for _ in range(2):
        with pytest.raises(ConfigError, match=r"'other': process ran for each range before") as no:
            await here.run(plan(process_dag_id="other"))
    assert isinstance(no.value, AirflowFailException)
    await here.run(plan(process_dag_id="other", take_over=True), crash=True)
    assert consumer.keys() == []
    for take_over in (True, False, False):
        await here.run(plan(process_dag_id="other", take_over=take_over))

    assert offsets(consumer.keys()) == [1, 2]


async def test_a_plan_whose_events_are_gone_is_not_made_anew(here):
    """Nothing is planned twice because Airflow has forgotten it; a dry run says so as well."""
    for _ in range(2):
        await here.publish(2)
        await here.run(plan())
    here.store.events[PLAN.name].clear()

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


# -- another planner ------------------------------------------------------------------------


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
    for each in (late, planner("late")):
        with pytest.raises(ConfigError, match=r"is planned by other\.plan, and two") as refused:
            await here.run(each)
    assert isinstance(refused.value, AirflowFailException)
    assert spans(here) == []
    await here.run(planner("other"))
    assert spans(here) == [(0, 2)]


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
    assert spans(here) == [(0, 2), (2, 4), (4, 6)]


# -- forgotten plans ------------------------------------------------------------------------


async def move_group(here, end):
    async with await MemqHook().atopic(TOPIC) as client:
        await client.commit("g", "", {0: end})


def write_manifest(here, start, end):
    """A manifest as a job leaves it, as far as its name tells."""
    path = Path(manifest_path(None, here.output, TOPIC, OffsetRange(0, start, end, here.life)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


def restored(here, plans):
    """Have Airflow forget all plans but the first ones, as with its database of that time."""
    here.life = parse_key(here.store.keys(RANGES)[0]).topic_id
    del here.store.events[PLAN.name][plans:]
    here.store.events[RANGES.name].clear()


async def test_a_planner_whose_airflow_was_restored_is_refused(here):
    """With both figures; who takes over goes on after what is processed, and none of it twice."""
    watching = {"group": "g", "output_dir": here.output}
    for _ in range(3):
        await here.publish(2)
        await here.run(planner("plan", **watching))
    await move_group(here, 6)
    restored(here, 1)
    await here.publish(3)

    with pytest.raises(ConfigError, match="planned up to 2, and offset 6 is committed") as refused:
        await here.run(planner("plan", **watching))
    assert isinstance(refused.value, AirflowFailException)
    assert spans(here) == []

    await here.run(planner("plan", **watching, take_over=True))
    await here.publish(1)
    await here.run(planner("plan", **watching))
    assert spans(here) == [(6, 8), (8, 9), (9, 10)]


async def test_what_is_written_beyond_the_group_is_planned_as_it_was_cut(here):
    """What lies between manifests is planned anew; of two that overlap a person has to choose."""
    watching = {"output_dir": here.output, "group": "g"}
    await here.publish(2)
    await here.run(planner("plan", **watching))
    await here.publish(14)
    restored(here, 1)
    await move_group(here, 4)
    for start, end in ((2, 4), (4, 5), (6, 8), (8, 9), (12, 13)):
        write_manifest(here, start, end)
    doubled = write_manifest(here, 12, 14)

    with pytest.raises(
        ConfigError, match=r"up to 2, and a manifest is there for .*12-00000000001[34]@"
    ):
        await here.run(planner("plan", **watching))
    with pytest.raises(ConfigError, match=r"@\w+ of 't' and a range before it"):
        await here.run(planner("plan", **watching, take_over=True))
    doubled.unlink()
    await here.run(planner("plan", **watching, take_over=True))

    assert spans(here) == [
        (4, 5), (5, 6), (6, 8), (8, 9), (9, 11), (11, 12), (12, 13), (13, 15), (15, 16),
    ]  # fmt: skip


# -- runs by hand ---------------------------------------------------------------------------


async def test_a_run_with_a_key_that_was_not_planned_is_refused(here, monkeypatch):
    """Cut otherwise, not planned yet, of another topic id; one that was forgotten may go on."""
    monkeypatch.setattr(
        "airflow.sdk.execution_time.context.InletEventsAccessors", lambda _: here.store
    )
    for _ in range(2):
        await here.publish(2)
        await here.run(planner("plan"))
    first, second = sorted(here.store.keys(RANGES))
    of = parse_key(first)
    with DAG("process", schedule=PartitionedAssetTimetable(assets=RANGES)) as dag:
        task = MemqSparkSubmitOperator(
            task_id="process", topic=TOPIC, application="a.py", output_dir=here.output
        )

    def begin(key, run_type="manual", *, of_run=None):
        task.range_key = key
        run = SimpleNamespace(partition_key=of_run or key, run_type=run_type)
        task.pre_execute({"dag": dag, "dag_run": run})

    for key in (first, second, first.partition("@")[0]):
        begin(key)
    for wrong in (
        of._replace(end=1),
        of._replace(start=1, end=3),
        of._replace(start=4, end=6),
        of._replace(partition=1),
        of._replace(topic_id="b" * 16),
    ):
        with pytest.raises(ConfigError, match="was not planned") as refused:
            begin(range_key(wrong))
        assert isinstance(refused.value, AirflowFailException)
    begin(range_key(wrong), of_run=first)  # its range is from another task

    await here.run(planner("plan"))
    del here.store.events[PLAN.name][0]
    begin(first, "asset_triggered")  # a person who clears it is not told that it never was
    with pytest.raises(ConfigError, match="was not planned"):
        begin(first)
