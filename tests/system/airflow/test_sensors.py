"""Sensors and the watcher in a real Airflow, against a real broker."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memq import AdminClient, Producer
from memq.testing.broker import BrokerProcess
from tests.harness.airflow.rest import until

DAGS = Path(__file__).parent / "dags" / "sensors.py"
BURST = 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("broker"), log_level="warning") as process:
        with AdminClient(process.address) as admin:
            for topic in ("trickle", "watched", "clicks"):
                admin.create_topic(topic, batch_age="100ms", read_partitions=1)
        yield process


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker that asks for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    with BrokerProcess(folder, token="the-right-one") as process:
        yield process


@pytest.fixture(scope="module")
def airflow(start_airflow, broker, guarded):
    env = {
        "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{broker.address}",
        "AIRFLOW_CONN_MEMQ_MALFORMED": f"memq://{broker.address}?colour=red",
        "AIRFLOW_CONN_MEMQ_TOKEN": f"memq://:the-wrong-one@{guarded.address}",
        "AIRFLOW_CONN_MEMQ_NOBODY": "memq://127.0.0.1:1?request_timeout_s=1",
    }
    running = start_airflow({"sensors.py": DAGS.read_text()}, env)
    running.rest.wait_for_dag("woken")
    return running


def publish(broker, topic, count=1):
    """Publish so many Batches, one after the other."""
    with Producer(broker.address, topic=topic, acks="all") as producer:
        for number in range(count):
            producer.write(b"%d" % number)
            producer.flush(timeout=60)


def succeeds(rest, dag, run):
    """The run of a sensor succeeds; else its log says why not."""
    state = rest.wait_for_run(dag, run)["state"]
    assert state == "success", f"{dag} {state}:\n{rest.log(dag, run, 'wait')}"


def ends(broker, topic):
    with AdminClient(broker.address) as admin:
        return {str(each.partition): each.end for each in admin.offsets(topic)}


@pytest.fixture
def trickle(broker):
    """Data that comes in all the time."""
    stop = threading.Event()

    def run():
        with Producer(broker.address, topic="trickle", acks="all") as producer:
            while not stop.wait(0.02):
                producer.write(b"drop")

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join(60)


def defer_until(rest, seconds):
    """Runs whose sensors wait for a time some seconds ahead, if they wait before it has come."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    conf = {"at": at.isoformat(), "topic": "trickle"}
    runs = {dag: rest.trigger(dag, conf=conf) for dag in ("hour", "hour_without_worker")}
    for dag, run in runs.items():
        rest.wait_for_task(dag, run, "wait", states=["deferred", "success"])
    occupied = rest.get("/pools/default_pool")["occupied_slots"]
    if datetime.now(UTC) < at:
        return at, runs, occupied
    for dag, run in runs.items():  # they hold slots again until they end
        rest.wait_for_run(dag, run)
    return None


def test_an_hour_is_awaited_without_a_worker_slot(airflow, broker, trickle):
    """The watermark passes while data comes in; nothing but the triggerer waits for it."""
    rest = airflow.rest
    # A busy machine may take long to start a task; then the wait is begun again, further ahead.
    at, runs, occupied = next(filter(None, (defer_until(rest, each) for each in (8, 16, 32, 64))))
    assert occupied == 0

    for dag, run in runs.items():
        succeeds(rest, dag, run)
        value = rest.xcom(dag, run, "wait")
        assert value["topic"] == "trickle"
        assert value["watermark_ms"] >= at.timestamp() * 1000
        assert 0 < value["offsets"]["0"] <= ends(broker, "trickle")["0"]
    task = rest.task("hour_without_worker", runs["hour_without_worker"], "wait")
    assert task["pid"] is None  # no process was ever started for it


def test_a_timeout_fires_when_deferred(airflow):
    """A deferred sensor ends at its timeout: failed, or skipped where that was asked for."""
    rest = airflow.rest
    run = rest.trigger("timeout")

    assert rest.wait_for_run("timeout", run)["state"] == "failed"

    assert rest.tasks("timeout", run) == {
        "wait": "failed",
        "wait_softly": "skipped",
        "wait_without_worker": "failed",
    }, rest.log("timeout", run, "wait_softly")
    rest.wait_for_log("timeout", run, "wait", "AirflowSensorTimeout")


def test_a_wrong_connection_fails_at_once(airflow, guarded):
    """What waiting cannot mend fails the first try, and the log says what is wrong with what."""
    rest = airflow.rest
    run = rest.trigger("wrong", conf={"at": "2020-01-01T00:00:00Z"})

    rest.wait_for_run("wrong", run)

    said = {
        "memq_none": "`memq_none` isn't defined",
        "memq_malformed": "unknown extra field 'colour'",
        "memq_token": "put the brokers' token into its password",
        "memq_nobody": "check its host and port",
        "topic": "no-such-topic",
        "at": "at = 'yesterday': must be a time",
    }
    for task_id, text in said.items():
        task = rest.task("wrong", run, task_id)
        assert task["state"] == "failed", task_id
        assert task["try_number"] == 1, task_id
        rest.wait_for_log("wrong", run, task_id, text)
        assert task["duration"] < 100, task_id  # a busy machine; one retry comes after 5 minutes


def test_an_outage_of_the_broker_is_ridden_out(airflow, broker):
    """Sensors of all modes wait on while the broker is away, and see what comes after it."""
    rest = airflow.rest
    publish(broker, "clicks", 2)
    before = ends(broker, "clicks")
    wanted = {"0": before["0"] + 1}
    runs = {dag: rest.trigger(dag, conf={"offsets": wanted}) for dag in ("offsets", "poke")}
    runs["reschedule"] = rest.trigger("reschedule", conf={"offsets": before})
    for dag, state in {"poke": "running", "reschedule": "up_for_reschedule"}.items():
        rest.wait_for_task(dag, runs[dag], "wait", states=[state])
    airflow.wait_until_deferred("offsets", runs["offsets"], "wait")
    rest.wait_for_log("poke", runs["poke"], "wait", "read partition of clicks reached")

    broker.kill()
    rest.wait_for_log("poke", runs["poke"], "wait", "looking again later")
    broker.restart()
    publish(broker, "clicks")

    for dag, run in runs.items():
        succeeds(rest, dag, run)
        assert rest.xcom(dag, run, "wait")["offsets"] == wanted
    assert rest.xcom("reschedule", runs["reschedule"], "wait")["new"]["records"] == 1


def test_lag_of_a_group(airflow, broker):
    """A group that committed nothing lags behind by all that is held."""
    publish(broker, "clicks")
    run = airflow.rest.trigger("lag")

    succeeds(airflow.rest, "lag", run)

    assert airflow.rest.xcom("lag", run, "wait")["lag"] == ends(broker, "clicks")


def test_a_burst_wakes_a_dag_a_few_times(airflow, broker):
    """200 notifications in a row make some runs, which together were told of all of them."""
    rest = airflow.rest
    until(lambda: "head" in rest.asset_state("watched"), "the watcher looks")

    publish_burst(broker)

    announced = until(
        lambda: (events := rest.asset_events("watched")) and told(events) >= BURST and events,
        "all announced",
    )
    assert told(announced) == BURST
    assert len(announced) <= 10
    until(lambda: rest.runs("woken"), "a run")
    for run in rest.runs("woken"):
        assert rest.wait_for_run("woken", run["dag_run_id"])["state"] == "success"
    assert 1 <= len(rest.runs("woken")) <= len(announced)


def told(events):
    return sum(event["extra"]["payload"]["new"] for event in events)


def publish_burst(broker):
    """200 Batches, as fast as they go."""
    with Producer(broker.address, topic="watched", acks="all") as producer:
        for number in range(BURST):
            producer.write(b"%d" % number)
            producer.flush(timeout=60)


def test_a_watcher_shows_its_state(airflow, broker):
    """What it announced, what it saw and its last error stand in the asset's state store."""
    rest = airflow.rest
    publish(broker, "watched")
    head = ends(broker, "watched")
    until(lambda: rest.asset_state("watched").get("head") == head, "the head")
    until(lambda: rest.asset_state("watched").get("position") == head, "the position")
    assert rest.asset_state("watched")["last_error"] == ""

    broker.kill()
    until(lambda: "check its host" in rest.asset_state("watched")["last_error"], "an error")
    broker.restart()

    until(lambda: rest.asset_state("watched")["last_error"] == "", "the error cleared")
    state = rest.asset_state("watched")
    assert state["position"] == state["head"] == ends(broker, "watched")
    assert time.time() - datetime.fromisoformat(state["last_poll"]).timestamp() < 60


def test_a_killed_triggerer_loses_no_wait(airflow, broker):
    """What was deferred is taken up by the triggerer that comes after."""
    rest = airflow.rest
    wanted = {"0": ends(broker, "clicks")["0"] + 1}
    run = rest.trigger("offsets", conf={"offsets": wanted})
    airflow.wait_until_deferred("offsets", run, "wait")

    airflow.restart("triggerer")
    publish(broker, "clicks")

    succeeds(rest, "offsets", run)


def test_the_connection_can_be_tested(airflow, broker):
    """*Test connection* asks the broker and says what it found, or what is wrong."""

    def test(**fields):
        body = {"connection_id": "memq_new", "conn_type": "memq", "host": "127.0.0.1"} | fields
        return airflow.rest.call("POST", "/connections/test", body)

    port = int(broker.address.rpartition(":")[2])
    good = test(port=port)
    bad = test(port=1, extra='{"request_timeout_s": 1}')

    assert good["status"] is True
    assert "Connected to cluster" in good["message"]
    assert bad["status"] is False
    assert "check its host and port" in bad["message"]
