"""Range jobs on EMR Serverless, EMR and Glue: exact, started once, found again, and cancelled."""

import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from memq.errors import DataLossError
from tests.harness.airflow.rest import BACKSTOP_S, until
from tests.harness.fork_server import fork_server
from tests.integration.airflow.aws import (
    CANCELLED,
    ROWS,
    RUNNING,
    STATES,
    WAIT_S,
    light,
    operator,
    services,
    values,
)
from tests.integration.airflow.event_store import EventStore

pytestmark = pytest.mark.timeout(2 * BACKSTOP_S)  # its waits end by what happens


@pytest.fixture(scope="module")
def workers(module_patch, all_services):
    """Makes processes that have loaded Airflow already, and know the services."""
    return fork_server([__name__])


@pytest.fixture(scope="module")
def module_patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def all_services(module_patch, broker):
    with services(module_patch) as running:
        yield running


@pytest.fixture
def aws(all_services):
    """The services, which have not been told anything in this test."""
    all_services.jobs.clear()
    return all_services


@pytest.fixture(params=STATES)
def launcher(request):
    """A service that runs jobs."""
    return request.param


class FileState:
    """A task's state store that outlives the process, and may kill it.

    Args:
        path: where it is kept.
        kill_before: the process dies instead of this call to `set`, counted from 0.
    """

    def __init__(self, path, kill_before=None):
        self.path, self.kill_before, self.calls = path, kill_before, 0

    def get(self, key):
        return json.loads(self.path.read_text()).get(key) if self.path.exists() else None

    def set(self, key, value):
        if self.calls == self.kill_before:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1
        self.path.write_text(json.dumps({key: value}))

    def delete(self, key):
        self.path.unlink()


def attempt(task, state):
    """One try of a task, which Airflow gives the state of the tries before."""
    ti = SimpleNamespace(xcom_push=lambda **_: None, try_number=2, stats_tags={})
    return EventStore().run(task, ti=ti, task_state_store=state)


def try_in_a_process(places, launcher, out, state):
    """What a worker does, until it is killed."""
    attempt(operator(launcher, *places, out), state)


def places(aws):
    return aws.application, aws.cluster


def task(aws, launcher, out, **options):
    return operator(launcher, *places(aws), out, **options)


def deferred(aws, launcher, out, state):
    """A try that goes on in the triggerer; its task and its trigger."""
    each = task(aws, launcher, out, deferrable=True)
    with pytest.raises(TaskDeferred) as raised:
        attempt(each, state)
    assert raised.value.method_name == "execute_complete"
    return each, raised.value.trigger


def run_to_the_end(aws, each, state, run):
    """A try, while every job that the services have is run."""

    def ended():
        for job in aws.jobs:
            if job.state == RUNNING:
                job.run(run)
        return result.done()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(attempt, each, state)
        until(ended, "the end of the try")
        return result.result()


@pytest.mark.parametrize("kill_before", [0, 1, None], ids=["noted", "started", "waiting"])
def test_a_job_of_a_killed_worker_is_found_again(tmp_path, aws, workers, *, launcher, kill_before):
    """A worker that dies before, while or after it starts a job leaves one result, and one job
    where the service takes tokens or its id was noted.
    """
    state = FileState(tmp_path / "state", kill_before)
    worker = workers.Process(
        target=try_in_a_process, args=(places(aws), launcher, tmp_path / "out", state)
    )
    worker.start()
    if kill_before is None:
        job = aws.next_job().id
        until(lambda: job in state.path.read_text(), "a note of the job")
        worker.kill()
    worker.join(WAIT_S)
    assert worker.exitcode == -signal.SIGKILL
    assert len(aws.jobs) == (kill_before != 0)

    after = FileState(state.path)
    result = run_to_the_end(aws, task(aws, launcher, tmp_path / "out"), after, light)

    twice = kill_before == 1 and launcher != "EmrServerless"  # the others take no tokens
    assert len(aws.jobs) == 1 + twice
    assert (result["start"], result["end"], result["records"]) == (1, 3, 2)
    assert values(tmp_path / "out") == ROWS
    assert not state.path.exists()


def test_a_deferred_task_ends_as_another_does(tmp_path, aws, launcher):
    """After the triggerer has waited, the manifest is checked against what was noted before.

    A job that the service has forgotten is started anew.
    """
    state = FileState(tmp_path / "state")
    deferred(aws, launcher, tmp_path / "out", state)
    job = aws.jobs.pop().id
    state.path.write_text(state.path.read_text().replace(job, job[::-1]))

    ended, trigger = deferred(aws, launcher, tmp_path / "out", state)
    assert aws.jobs[0].id in state.path.read_text()
    aws.next_job().run(light)
    event = {"status": "success", trigger.return_key: trigger.return_value}

    context = {"task_state_store": state, "outlet_events": {}}
    assert ended.execute_complete(context, event)["records"] == 2
    with pytest.raises(DataLossError, match="had noted of it is gone"):
        ended.execute_complete(context, event)
    assert len(aws.jobs) == 1


def test_a_job_that_fails_after_it_wrote_is_run_again(tmp_path, aws, launcher):
    """Its manifest counts for nothing: the next job must write its own; its rows are there once."""
    state = FileState(tmp_path / "state")

    def write_and_fail(arguments):
        light(arguments)
        return 1

    with pytest.raises(AirflowException):
        run_to_the_end(aws, task(aws, launcher, tmp_path / "out"), state, write_and_fail)
    assert values(tmp_path / "out") == ROWS

    aws.jobs.clear()
    with pytest.raises(DataLossError, match="was there before"):
        run_to_the_end(aws, task(aws, launcher, tmp_path / "out"), state, lambda _: 0)
    aws.jobs.clear()
    run_to_the_end(aws, task(aws, launcher, tmp_path / "out"), state, light)

    assert len(aws.jobs) == 1
    assert values(tmp_path / "out") == ROWS


def test_killing_the_task_cancels_the_job(tmp_path, aws, launcher):
    """What Airflow calls when a task is killed ends its job; the next try starts another one."""
    each, state = task(aws, launcher, tmp_path / "out"), FileState(tmp_path / "state")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(attempt, each, state)
        until(lambda: each.running, "a job")
        each.on_kill()
        cancelled, aws.jobs[0].state = aws.jobs[0].state, CANCELLED[launcher]  # lest it wait on
        with pytest.raises(AirflowException):
            running.result()
    assert cancelled == CANCELLED[launcher]

    aws.jobs.clear()
    run_to_the_end(aws, task(aws, launcher, tmp_path / "out"), state, light)
    assert values(tmp_path / "out") == ROWS


def test_killing_the_task_as_it_starts_cancels_the_job(tmp_path, aws, launcher):
    """A job that is noted is cancelled, though Airflow's own operator does not know of it yet."""
    each, states = task(aws, launcher, tmp_path / "out"), []

    class Killing(FileState):
        def set(self, key, value):
            super().set(key, value)
            if aws.jobs and not states:
                each.on_kill()
                states.append(aws.jobs[0].state)
                aws.jobs[0].state = CANCELLED[launcher]  # lest it wait on

    with pytest.raises(AirflowException):
        attempt(each, Killing(tmp_path / "state"))
    assert states == [CANCELLED[launcher]]


def test_killing_a_deferred_task_cancels_the_job(tmp_path, aws, launcher):
    """Its trigger does, as it is after it was stored and loaded."""
    _, given = deferred(aws, launcher, tmp_path / "out", FileState(tmp_path / "state"))
    trigger = type(given)(**json.loads(json.dumps(given.serialize()[1])))
    asyncio.run(trigger.on_kill())

    assert aws.jobs[0].state == CANCELLED[launcher]
