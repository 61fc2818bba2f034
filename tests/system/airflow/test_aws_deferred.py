"""Jobs at AWS that a triggerer waits for, in a whole Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.airflow.rest import until
from tests.system.airflow.aws import CANCELLED, ROWS, RUNNING, STATES, light, services, values

DAGS = Path(__file__).parent / "dags" / "aws.py"


@pytest.fixture(scope="module")
def aws(clicks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://{clicks}")
        with services(patch) as running:
            yield running


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="module")
def airflow(start_airflow, aws, clicks, output):
    env = {
        "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{clicks}",
        "AWS_APPLICATION": aws.application,
        "AWS_CLUSTER": aws.cluster,
        "AWS_OUTPUT": str(output),
    }
    running = start_airflow({"aws.py": DAGS.read_text()}, env)
    running.rest.wait_for_dag("aws")
    return running


def deferred(airflow, aws):
    """A run whose tasks have started their jobs and left the workers."""
    aws.jobs.clear()
    run = airflow.rest.trigger("aws")
    for launcher in STATES:
        airflow.wait_until_deferred("aws", run, launcher)
    assert sorted(each.service for each in aws.jobs) == sorted(STATES)
    assert airflow.rest.get("/pools/default_pool")["occupied_slots"] == 0
    return run


def test_a_triggerer_waits_for_each_job_also_when_it_is_killed(airflow, aws, output):
    """No worker is held, no job is started twice, and each writes the rows of the range."""
    run = deferred(airflow, aws)
    airflow.restart("triggerer")
    airflow.wait_until_healthy()

    for job in list(aws.jobs):
        assert job.state == RUNNING
        job.run(light)
    ended = airflow.rest.wait_for_run("aws", run)

    assert ended["state"] == "success", airflow.rest.tasks("aws", run)
    assert len(aws.jobs) == len(STATES)
    for launcher in STATES:
        assert airflow.rest.xcom("aws", run, launcher)["records"] == len(ROWS)
        assert values(output / launcher) == ROWS


def test_a_deferred_task_that_is_ended_by_hand_ends_its_job(airflow, aws):
    """Nobody pays for a job whose task was marked as failed."""
    run = deferred(airflow, aws)
    for launcher in STATES:  # a trigger that has not begun is not told
        airflow.rest.wait_for_log("aws", run, launcher, f"/{launcher}/-1/1 (ID")
    path = f"/dags/aws/dagRuns/{run}/taskInstances"
    for launcher in STATES:
        airflow.rest.call("PATCH", f"{path}/{launcher}", {"new_state": "failed"})

    for job in aws.jobs:
        until(lambda job=job: job.state == CANCELLED[job.service], f"the end of {job.service}")
