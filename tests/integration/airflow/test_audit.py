"""Hours whose own run has not audited them: the next run does."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_memq.operators.memq import MemqAuditOperator
from airflow_provider_memq.planning.audited import left_out
from airflow_provider_memq.range_assets import audited_asset
from memq import Producer
from memq.core.audit.result import Verdict
from memq.core.ranges import Interval
from memq.errors import ConfigError, UnavailableError
from tests.integration.airflow.here import TOPIC

SCHEDULED = {"dag_run": SimpleNamespace(run_type="scheduled")}


def audit(**options):
    return MemqAuditOperator(task_id="audit", topic=TOPIC, audited=audited_asset(TOPIC), **options)


def interval(here, number):
    """The data interval of a run: a second, so long after the first one."""
    start = here.begin + timedelta(seconds=number)
    return {"data_interval_start": start, "data_interval_end": start + timedelta(seconds=1)}


def starts(result):
    """When the windows began that a run has made up for."""
    return [row["start"] for row in result["made_up"]]


@pytest.fixture
async def here(here):
    await here.publish(1)
    here.begin = here.at(-100).replace(microsecond=0)
    return here


async def test_hours_that_were_left_out_are_audited_by_the_next_run(here, tmp_path):
    """A run whose sensor timed out, or that never was, leaves no window that nobody judges."""
    output = {"output_dir": str(tmp_path / "out")}
    first = await here.run(audit(**output), **SCHEDULED, **interval(here, 0))
    later = await here.run(audit(**output), **SCHEDULED, **interval(here, 4))
    last = await here.run(audit(**output), **SCHEDULED, **interval(here, 5))

    assert (first["made_up"], last["made_up"]) == ([], [])
    assert len(starts(later)) == 3
    assert len(list((tmp_path / "out").glob("*/audit-*.csv"))) == 6


@pytest.mark.parametrize("options", [{"last": "5s", "allow_partly": True}, {}])
async def test_only_scheduled_runs_make_up_for_others(here, options):
    """A window that a person asks for, and a backfill, neither make up nor count."""
    await here.run(audit(), **SCHEDULED, **interval(here, 0))
    by_hand = {"dag_run": SimpleNamespace(run_type="manual" if options else "backfill")}

    asked = await here.run(audit(**options), **by_hand, **interval(here, 4))

    assert asked["made_up"] == []
    assert len(starts(await here.run(audit(), **SCHEDULED, **interval(here, 5)))) == 4


def produce(address):
    """Send one Message, and report it."""
    with Producer(address, topic=TOPIC, acks="all") as producer:
        producer.write(b"lost")


async def lose(here, tmp_path):
    """Send one Message, and remove what was stored of it; its hour is long over."""
    before = set(tmp_path.rglob("*.arrows"))
    await asyncio.to_thread(produce, here.broker.address)
    for path in set(tmp_path.rglob(f"*/{TOPIC}/**/*.arrows")) - before:
        path.unlink()
    here.later(300)


async def test_a_loss_in_an_hour_that_was_left_out_fails_the_run_once(here, tmp_path):
    """What is found in a window that is made up for is told by the run that finds it, and once."""
    await here.run(audit(), **SCHEDULED, **interval(here, 0))
    await lose(here, tmp_path)

    with pytest.raises(AirflowFailException, match=r"lost: producer .* \(1 LogMessage\)"):
        await here.run(audit(), **SCHEDULED, **interval(here, 160))
    assert (await here.run(audit(), **SCHEDULED, **interval(here, 161)))["made_up"] == []


async def test_a_loss_outlives_an_audit_that_broke_off(here, tmp_path):
    """What a try has found before brokers failed it is found again by the next one."""
    await here.run(audit(), **SCHEDULED, **interval(here, 0))
    await lose(here, tmp_path)

    class BreaksOff(MemqAuditOperator):
        """An audit whose brokers do not answer any more, in its very last window."""

        def _judge(self, window):
            if window == windows[-1]:
                raise UnavailableError("gone")
            return super()._judge(window)

    windows = left_out([audited_window(here, 0)], audited_window(here, 150))
    broken = BreaksOff(task_id="audit", topic=TOPIC, audited=audited_asset(TOPIC))
    with pytest.raises(UnavailableError):
        await here.run(broken, **SCHEDULED, **interval(here, 150))
    with pytest.raises(AirflowFailException, match=r"lost: producer .* \(1 LogMessage\)"):
        await here.run(audit(), **SCHEDULED, **interval(here, 150))


@pytest.mark.parametrize("earlier", Verdict)
async def test_another_try_is_made_only_when_it_can_tell_all(here, earlier):
    """It judges the run's own window again, but no finding of one that was made up for."""

    class Judges(MemqAuditOperator):
        """An audit that cannot judge all of its own window, and finds something in another."""

        def _judge(self, window):
            verdict = Verdict.PARTLY if window == audited_window(here, 2) else earlier
            return super()._judge(window)._replace(verdict=verdict)

    await here.run(audit(), **SCHEDULED, **interval(here, 0))
    judges = Judges(task_id="audit", topic=TOPIC, audited=audited_asset(TOPIC))
    with pytest.raises(AirflowException) as failed:
        await here.run(judges, **SCHEDULED, **interval(here, 2))

    assert (failed.type is AirflowFailException) is (earlier is not Verdict.CLEAN)


async def test_the_verdict_in_the_xcom_is_that_of_the_task(here):
    """A consumer that has not begun is no fault at first, and is one when it had its time."""
    here.later(30)
    await asyncio.to_thread(produce, here.broker.address)
    end = here.at(5)
    window = {"data_interval_start": end - timedelta(seconds=20), "data_interval_end": end}
    here.later(30)
    at_once = await here.run(audit(consumers="job"), **SCHEDULED, **window)
    assert (at_once["verdict"], at_once["clean"]) == ("clean", True)

    later = {name: at + timedelta(seconds=5) for name, at in window.items()}
    with pytest.raises(AirflowFailException, match="'job' has not come to 1 LogMessage:"):
        await here.run(audit(consumers="job", settled_for="5s"), **SCHEDULED, **later)
    told = here.store.xcoms["return_value"]
    assert (told["verdict"], told["clean"]) == ("not clean", False)


def audited_window(here, number):
    """The window of a run's interval."""
    return Interval(*(round(at.timestamp() * 1000) for at in interval(here, number).values()))


async def test_a_window_that_is_partly_judged_fails_unless_it_may_pass(here):
    """What was not judged is said, and tried again; whoever allows it gets a warning instead."""
    window = {"start": here.at(-3600), "end": here.at(3600)}  # is not over
    with pytest.raises(ConfigError, match="either last, or start and end"):
        await here.run(audit(last="2h", **window))
    with pytest.raises(AirflowException, match="Audit again when it is over") as failed:
        await here.run(MemqAuditOperator(task_id="audit", topic=TOPIC, **window))
    assert not isinstance(failed.value, AirflowFailException)
    assert here.store.xcoms["return_value"]["verdict"] == "partly judged"

    allowed = MemqAuditOperator(task_id="audit", topic=TOPIC, allow_partly="true", **window)
    found = await here.run(allowed)
    assert (found["clean"], found["unjudged"] != []) == (False, True)
