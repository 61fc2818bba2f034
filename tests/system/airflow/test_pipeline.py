"""The DAGs of `dags/`, unchanged, in a real Airflow against a real broker.

One Airflow serves all tests, which go on where the one before ended. `make soak` kills it part by
part.
"""

import json
import shutil
import urllib.parse
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_memq.planning.ranges import parse_key
from airflow_provider_memq.range_assets import processed_asset
from demo.airflow import remove_object
from tests.harness.airflow.rest import RestError, until
from tests.system.airflow import orders
from tests.system.airflow.pipeline import JOB, PLAN, PROCESS, TOPIC, running_pipeline

AUDIT, BACKFILL, RETENTION = "memq_audit", "memq_backfill", "memq_retention"
BURST = 200


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """One pipeline for all tests here; they go on where the one before ended."""
    folder = tmp_path_factory.mktemp("pipeline")
    settings = {
        "max_pending_ranges": "0",
        "max_range_offsets": str(BURST),
        "audit_output": str(folder / "audit"),
        "audit_grace": "1s",
        "audit_wait": "30s",
        "missed_after": "5s",
        "range_linger": "2s",  # so planners wait in the triggerer
        "gate_max_skipped": "0",
    }
    dags = ("memq_ranges.py", "memq_audit.py", "memq_backfill.py", "memq_retention.py")
    env = orders.prepare(folder)
    shutil.copy(Path(__file__).parent / "dags" / "sensors.py", folder / "dags")
    topic = {"batch_messages": 1}
    with running_pipeline(folder, dags=dags, settings=settings, topic=topic, env=env) as running:
        for dag_id in (PLAN, PROCESS, AUDIT, BACKFILL, RETENTION, "moment", "woken"):
            running.rest.wait_for_dag(dag_id)
        yield running


def run_to_end(pipeline, dag_id: str, **conf) -> tuple[str, str]:
    """Trigger a DAG and wait; its run and how that ended."""
    run_id = pipeline.rest.trigger(dag_id, conf=conf)
    return run_id, pipeline.rest.wait_for_run(dag_id, run_id)["state"]


def check(pipeline) -> dict[str, int]:
    """Everything that must hold, and that each range has one run."""
    ranges = Counter({*pipeline.planned()})
    assert Counter(run["partition_key"] for run in pipeline.rest.runs(PROCESS)) == ranges
    assert pipeline.committed() == pipeline.ends()
    return pipeline.check()


def test_a_burst_is_processed_in_few_runs_each_range_once(pipeline):
    """200 notifications at once wake few plans and make few ranges: no gap, no overlap, no loss."""
    pipeline.burst(BURST)
    assert sum(pipeline.ends().values()) == BURST
    pipeline.wait_until_processed()

    counted = check(pipeline)
    assert counted["acked"] == BURST
    assert len(pipeline.rest.runs(PLAN)) <= 4
    assert 2 <= counted["ranges"] <= 6


def test_ranges_that_were_planned_while_processing_was_paused_are_processed_once(pipeline):
    """Pausing only the DAG that processes loses no range: each has its one run in the end."""
    before = len(pipeline.planned())
    pipeline.rest.pause(PROCESS)
    pipeline.burst(2)
    until(lambda: len(pipeline.planned()) > before, "ranges planned while it is paused")
    until(lambda: not pipeline.open_runs(), "the plan's end")
    pipeline.rest.pause(PROCESS, paused=False)

    pipeline.wait_until_processed(wake=True)
    check(pipeline)


def test_a_watched_topic_has_woken_its_dag(pipeline):
    """A few runs were together told of every notification."""

    def look() -> int:
        runs = pipeline.rest.runs("woken", state="success")
        return sum(sum(pipeline.rest.xcom("woken", r["dag_run_id"], "events")) for r in runs)

    until(lambda: look() >= sum(pipeline.ends().values()), "all announced")
    assert len(pipeline.rest.runs("woken")) <= 10


def test_a_moment_is_awaited_without_a_worker(pipeline):
    """The watermark passes the time of the run, and no process was ever started for the task."""
    at = datetime.now(UTC)
    run_id, state = run_to_end(pipeline, "moment", at=at.isoformat())

    assert state == "success"
    assert pipeline.rest.task("moment", run_id, "wait")["pid"] is None
    found = pipeline.rest.xcom("moment", run_id, "wait")
    assert found["watermark_ms"] >= at.timestamp() * 1000


def test_a_backfill_replaces_its_own_output(pipeline):
    """What is written is left out; `again` runs a range, with the same rows."""
    key = pipeline.planned()[0]
    written, done = pipeline.check(), len(pipeline.keys(processed_asset(TOPIC, JOB)))
    run_id, state = run_to_end(pipeline, BACKFILL, range_keys=key, dry_run=False)
    assert pipeline.rest.xcom(BACKFILL, run_id, "backfill", "backfill")["done"] == 1

    run_id, state = run_to_end(pipeline, BACKFILL, range_keys=key, again=True, dry_run=False)
    assert state == "success"
    assert pipeline.check() == written
    task = pipeline.rest.task(BACKFILL, run_id, "process", map_index=0)
    assert task["rendered_map_index"] == key
    assert pipeline.keys(processed_asset(TOPIC, JOB))[done:] == [key]


def test_a_removed_object_fails_the_audit_by_name(pipeline):
    """Nothing alarms before; then the audit names the sequences and the count of what is gone."""
    assert run_to_end(pipeline, RETENTION)[1] == "success"
    run_id, state = run_to_end(pipeline, AUDIT, last="1h")
    found = pipeline.rest.xcom(AUDIT, run_id, "audit")
    assert (state, found["findings"], found["damage"]) == ("success", [], [])
    assert found["stored_records"] > 0
    shown = pipeline.page()["audit"]["last_clean"]
    assert shown["run"]["run_id"] == run_id

    objects = (pipeline.folder / "broker/objects").glob(f"*/*/topics/{TOPIC}/*/*/*.arrows")
    removed = remove_object(next(objects))
    run_id, state = run_to_end(pipeline, AUDIT, last="1h")
    found = pipeline.rest.xcom(AUDIT, run_id, "audit")
    assert state == "failed"
    assert removed.named_by(found)
    assert Path(found["table"]).exists()
    pipeline.rest.wait_for_log(AUDIT, run_id, "audit", "FAILED: memq_audit.audit")


def test_the_page_of_a_topic_shows_every_range_with_its_run_manifest_and_snapshot(pipeline):
    """What the page says of each range is what Airflow, the file and the table say themselves."""
    orders.publish(pipeline, 5)
    orders.plan(pipeline)

    page = pipeline.page(orders.PAGE)
    assert [(each["start"], each["end"]) for each in page["ranges"]] == [(4, 5), (2, 4), (0, 2)]
    committed = {each.range.offsets: each for each in orders.table(pipeline).ranges()}
    for each in page["ranges"]:
        offsets = parse_key(each["key"])
        (run,), (snapshot,) = each["runs"], each["snapshots"]
        assert pipeline.rest.run(orders.TABLE, run["run_id"])["partition_key"] == each["key"]
        assert snapshot["snapshot_id"] == str(committed[offsets].snapshot_id)
        found = pipeline.page(f"{orders.PAGE}ranges/{each['key']}/")
        (result,) = found["results"]
        manifest = json.loads(Path(result["fields"]["manifest"]).read_text())
        assert (manifest["start"], manifest["end"]) == (each["start"], each["end"])
        assert result["fields"]["records"] == str(manifest["records"])
    (partition,) = page["partitions"]
    assert (partition["published"], partition["planned"], partition["processed"]) == (5, 5, 5)
    assert (partition["in_table"], partition["lag_batches"]) == ("0 to 4", 0)
    assert (page["missing"], page["notes"]) == ([], [])


def test_a_run_with_a_key_that_nobody_planned_is_refused_and_cannot_be_marked_processed(pipeline):
    """It fails in its first try, though it has retries, and its mark makes no range of the page."""
    life = pipeline.page(orders.PAGE)["topic_id"]
    key = f"00000:000000000001-000000000003@{life}"
    run_id = pipeline.rest.trigger(orders.TABLE, partition_key=key)
    assert pipeline.rest.wait_for_run(orders.TABLE, run_id)["state"] == "failed"
    pipeline.rest.wait_for_log(orders.TABLE, run_id, "table", f"{key} of 'orders' was not planned")
    assert pipeline.rest.task(orders.TABLE, run_id, "table")["try_number"] == 1

    path = f"/dags/{orders.TABLE}/dagRuns/{urllib.parse.quote(run_id, safe='')}"
    pipeline.rest.call("PATCH", path, {"state": "success"})
    assert key not in {each["key"] for each in pipeline.page(orders.PAGE)["ranges"]}
    with pytest.raises(RestError, match="404"):
        pipeline.page(f"{orders.PAGE}ranges/{key}/")
