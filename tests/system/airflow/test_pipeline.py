"""The DAGs of `dags/`, unchanged, in a real Airflow against a real broker, through kills.

`python -m tests.system.airflow.soak` is the long form.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.parse
from pathlib import Path

import pytest

from airflow_provider_memq.range_assets import processed_asset, ranges_asset
from airflow_provider_memq.ranges import parse_key
from tests.harness.airflow.guarded import fetch, guarded_server
from tests.harness.airflow.rest import until
from tests.harness.airflow.standalone import ROOT, find_chromium, screenshot
from tests.system.airflow import orders
from tests.system.airflow.pipeline import (
    JOB,
    PLAN,
    PROCESS,
    TOPIC,
    Pipeline,
    contents_of,
    named_by,
)

AUDIT, BACKFILL, RETENTION = "memq_audit", "memq_backfill", "memq_retention"
DAG_FILES = sorted(path.name for path in (ROOT / "dags").glob("*.py"))
PARSE_LIMIT_S = 1.0


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """One pipeline for all tests here; they go on where the one before ended."""
    folder = tmp_path_factory.mktemp("pipeline")
    settings = {
        "max_range_offsets": "200",
        "audit_output": str(folder / "audit"),
        "audit_grace": "1s",
        "audit_wait": "30s",
        "missed_after": "5s",
        "range_linger": "2s",  # so planners wait in the triggerer, through kills as well
        "gate_max_skipped": "0",
    }
    dags = ("memq_ranges.py", "memq_audit.py", "memq_backfill.py", "memq_retention.py")
    env = orders.prepare(folder)
    with Pipeline(folder, dags=dags, settings=settings, env=env) as running:
        for dag_id in (PLAN, PROCESS, AUDIT, BACKFILL, RETENTION):
            running.rest.wait_for_dag(dag_id)
        yield running


def test_every_range_is_processed_once_through_kills(pipeline):
    """Triggerer, scheduler, a task and the broker are killed: no gap, no overlap, nothing lost."""
    pipeline.start_writers(2, pause_s=0.1)
    until(pipeline.planned, "a first range")
    pipeline.kill_running_task()
    pipeline.airflow.restart("triggerer")
    pipeline.broker.restart()
    pipeline.airflow.restart("scheduler")
    pipeline.airflow.wait_until_healthy()
    pipeline.stop_writers()
    pipeline.wait_until_processed()

    counted = pipeline.check()
    assert counted["ranges"] >= 2
    assert counted["acked"] > 20


def test_a_burst_is_processed_in_few_runs(pipeline):
    """200 notifications at once wake few plans and make few ranges, and all are processed."""
    plans, ranges = len(pipeline.rest.runs(PLAN)), len(pipeline.processed())
    took_s = pipeline.burst(200)
    pipeline.wait_until_processed()

    pipeline.check()
    assert took_s < 5, "no burst"
    assert len(pipeline.rest.runs(PLAN)) - plans <= 3
    assert len(pipeline.processed()) - ranges <= 6


def test_ranges_that_were_planned_while_processing_was_paused_are_processed_once(pipeline):
    """Pausing only the DAG that processes loses no range: each has its one run in the end."""
    before = len(pipeline.planned())
    pipeline.rest.pause(PROCESS)
    pipeline.burst(2)
    until(lambda: len(pipeline.planned()) > before, "ranges planned while it is paused")
    until(lambda: not pipeline.open_runs(), "the plan's end")
    pipeline.rest.pause(PROCESS, paused=False)

    def look() -> bool:
        # A plan each time, for nothing new is published that would wake one.
        pipeline.rest.wait_for_run(PLAN, pipeline.rest.trigger(PLAN))
        return set(pipeline.planned()) == pipeline.processed() and not pipeline.open_runs()

    until(look, "what was planned meanwhile is processed")
    pipeline.check()


def run_to_end(pipeline, dag_id: str, **conf) -> tuple[str, str]:
    """Trigger a DAG and wait; its run and how that ended."""
    run_id = pipeline.rest.trigger(dag_id, conf=conf)
    return run_id, pipeline.rest.wait_for_run(dag_id, run_id)["state"]


def test_a_backfill_replaces_its_own_output(pipeline):
    """A dry run lists; what is written is left out; `again` runs a range, with the same rows."""
    key = pipeline.planned()[0]
    before, done = pipeline.stored_values(), len(pipeline.keys(processed_asset(TOPIC, JOB)))
    run_id, state = run_to_end(pipeline, BACKFILL, range_keys=key, again=True)
    assert state == "success"
    shown = pipeline.rest.xcom(BACKFILL, run_id, "backfill", "backfill")
    assert [row["key"] for row in shown["ranges"]] == [key]
    run_id, state = run_to_end(pipeline, BACKFILL, range_keys=key, dry_run=False)
    assert pipeline.rest.xcom(BACKFILL, run_id, "backfill", "backfill")["done"] == 1

    run_id, state = run_to_end(pipeline, BACKFILL, range_keys=key, again=True, dry_run=False)
    assert state == "success"
    assert pipeline.stored_values() == before
    task = pipeline.rest.task(BACKFILL, run_id, "process", map_index=0)
    assert task["rendered_map_index"] == key
    pipeline.rest.wait_for_log(BACKFILL, run_id, "process", "100 %: 1 of 1 range", map_index=0)
    assert pipeline.keys(processed_asset(TOPIC, JOB))[done:] == [key]


def test_retention_and_audit_are_content(pipeline):
    """With everything processed and nothing removed there is no alarm."""
    assert run_to_end(pipeline, RETENTION)[1] == "success"
    run_id, state = run_to_end(pipeline, AUDIT, last="1h")

    found = pipeline.rest.xcom(AUDIT, run_id, "audit")
    assert (state, found["findings"], found["damage"]) == ("success", [], [])
    assert found["stored_records"] > 0


def test_a_wait_that_times_out_pages(pipeline):
    """When the watermark does not come in time somebody is told, though no audit has run."""
    run_id = pipeline.rest.trigger(AUDIT, conf={"end": "2199-01-01T00:00:00Z", "start": None})

    assert pipeline.rest.wait_for_run(AUDIT, run_id)["state"] == "failed"

    tasks = pipeline.rest.tasks(AUDIT, run_id)
    assert tasks["complete"] == "failed"
    assert tasks["audit"] == "upstream_failed"
    pipeline.rest.wait_for_log(AUDIT, run_id, "complete", "FAILED: memq_audit.complete")


def test_a_removed_object_fails_the_audit_by_name(pipeline):
    """The audit names the sequences and the count of exactly what is gone."""
    victim = pipeline.objects()[-1]
    expected = contents_of([victim])
    victim.unlink()

    run_id, state = run_to_end(pipeline, AUDIT, last="1h")
    found = pipeline.rest.xcom(AUDIT, run_id, "audit")
    assert state == "failed"
    assert named_by(found) == expected
    assert Path(found["table"]).exists()
    pipeline.rest.wait_for_log(AUDIT, run_id, "audit", "FAILED: memq_audit.audit")


def test_the_page_of_a_topic_shows_every_range_with_its_run_manifest_and_snapshot(pipeline):
    """What the page says of each range is what Airflow, the file and the table say themselves."""
    orders.publish(pipeline, 5)
    orders.plan(pipeline)

    page = orders.json_of(pipeline)
    assert [(each["start"], each["end"]) for each in page["ranges"]] == [(4, 5), (2, 4), (0, 2)]
    committed = {each.range.offsets: each for each in orders.table(pipeline).ranges()}
    for each in page["ranges"]:
        offsets = parse_key(each["key"])
        (run,), (snapshot,) = each["runs"], each["snapshots"]
        assert pipeline.rest.run(orders.TABLE, run["run_id"])["partition_key"] == each["key"]
        assert snapshot["snapshot_id"] == str(committed[offsets].snapshot_id)
        found = orders.json_of(pipeline, orders.range_path(each["key"]))
        (result,) = found["results"]
        manifest = json.loads(Path(result["fields"]["manifest"]).read_text())
        assert (manifest["start"], manifest["end"]) == (each["start"], each["end"])
        assert result["fields"]["records"] == str(manifest["records"])
    (partition,) = page["partitions"]
    assert (partition["published"], partition["planned"], partition["processed"]) == (5, 5, 5)
    assert (partition["in_table"], partition["lag_batches"]) == ("0 to 4", 0)
    assert (page["missing"], page["notes"]) == ([], [])


def test_the_page_names_what_is_not_planned_yet(pipeline):
    """Offsets that are published and not planned are missing, and lag."""
    orders.publish(pipeline, 2)

    def look():
        return orders.json_of(pipeline)["missing"]

    (missing,) = until(look, "what is published meanwhile")
    assert (missing["start"], missing["end"]) == (5, 7)
    assert missing["why"] == "published, and not planned yet"
    assert orders.json_of(pipeline)["partitions"][0]["lag_batches"] == 2


def test_an_offset_leads_to_the_run_that_processed_it(pipeline):
    """The form for an offset leads to the page of its range, and that to its run."""
    reply = orders.get(pipeline, f"topics/{orders.TOPIC}/find?partition=0&offset=3")

    assert reply.status == 200
    (run,) = [each for each in orders.links(reply.text) if f"/{orders.TABLE}/runs/" in each][:1]
    run_id = urllib.parse.unquote(run.partition("/runs/")[2].partition("/")[0])
    assert parse_key(pipeline.rest.run(orders.TABLE, run_id)["partition_key"])[:3] == (0, 2, 4)
    assert orders.get(pipeline, f"topics/{orders.TOPIC}/find?partition=0&offset=99").status == 404


def test_a_run_with_a_key_that_nobody_planned_is_refused_and_cannot_be_marked_processed(pipeline):
    """It fails in its first try, though it has retries, and its mark makes no range of the page."""
    life = orders.json_of(pipeline)["incarnation"]
    key = f"00000:000000000001-000000000003@{life}"
    run_id = pipeline.rest.trigger(orders.TABLE, partition_key=key)
    assert pipeline.rest.wait_for_run(orders.TABLE, run_id)["state"] == "failed"
    pipeline.rest.wait_for_log(orders.TABLE, run_id, "table", f"{key} of 'orders' was not planned")
    assert pipeline.rest.task(orders.TABLE, run_id, "table")["try_number"] == 1

    path = f"/dags/{orders.TABLE}/dagRuns/{urllib.parse.quote(run_id, safe='')}"
    pipeline.rest.call("PATCH", path, {"state": "success"})
    assert key not in {each["key"] for each in orders.json_of(pipeline)["ranges"]}
    odd = ("topics/%00/", "topics/orders/?ranges=%00", "topics/orders/ranges/%00/")
    for path in (orders.range_path(key), *odd):
        assert orders.get(pipeline, path).status == 404


def test_pages_link_to_what_is_there_and_run_no_script(pipeline):
    """Every link of every kind of page leads somewhere, and a browser may load nothing else."""
    seen: set[str] = set()
    paths = ["/memq/", "/memq/topics/orders/", "/memq/topics/clicks/"]
    key = orders.json_of(pipeline)["ranges"][0]["key"]
    paths.append(f"/memq/{orders.range_path(key)}")
    for path in paths:
        reply = fetch(pipeline.airflow.url + path)
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "<script" not in reply.text
        seen |= {urllib.parse.urljoin(reply.url, each) for each in orders.links(reply.text)}
    assert all(each.startswith(pipeline.airflow.url) for each in seen)
    assert [each for each in seen if fetch(each).status != 200] == []


def test_the_page_shows_what_the_audit_found(pipeline):
    """The last clean window of the page is the one that the audit has found clean."""
    run_id, state = run_to_end(pipeline, AUDIT, last="5s")
    assert state == "success"
    found = pipeline.rest.xcom(AUDIT, run_id, "audit")

    audit = orders.json_of(pipeline, "topics/clicks/")["audit"]

    assert audit["last_clean"]["words"].startswith(found["start"][:19])
    assert audit["last_clean"]["run"]["run_id"] == run_id


def test_who_is_not_logged_in_sees_nothing(pipeline):
    """Every page asks who one is; a viewer sees what Airflow shows him."""
    paths = ["", "index.json", "topics/orders/", "topics/orders/index.json"]
    paths += ["topics/orders/find?partition=0&offset=3", "topics/none/"]
    paths.append(orders.range_path(orders.json_of(pipeline)["ranges"][0]["key"]))
    with guarded_server(pipeline.airflow) as server:
        for path in paths:
            reply = fetch(f"{server.url}/memq/{path}")
            assert (reply.status, "orders_plan" in reply.text) == (401, False)
            assert fetch(f"{server.url}/memq/{path}", token="x.y.z").status == 403
        token = server.token("viewer")
        assert "orders_plan" in fetch(f"{server.url}/memq/", token=token).text
        assert fetch(f"{server.url}/memq/topics/none/", token=token).status == 404


def test_brokers_that_hang_and_a_table_that_is_away_are_a_line_each(pipeline):
    """The page comes soon, with all that is known without them; and then with them again."""
    before = orders.json_of(pipeline)
    lake = pipeline.folder / "lake" / "warehouse"
    moved = lake.rename(lake.with_name("away"))
    os.kill(pipeline.broker.pid, signal.SIGSTOP)
    try:
        troubles = ("the brokers: no answer within 3 s", "table lake.orders: ")

        def look():
            page = orders.json_of(pipeline)
            told = [any(note.startswith(each) for note in page["notes"]) for each in troubles]
            return page if all(told) else None

        page = until(look, "a line about each")
    finally:
        os.kill(pipeline.broker.pid, signal.SIGCONT)
        moved.rename(lake)
    assert {each["state"] for each in page["ranges"]} == {"processed"}
    assert [each["key"] for each in page["ranges"]] == [each["key"] for each in before["ranges"]]
    assert page["partitions"][0]["published"] is None
    until(lambda: not orders.json_of(pipeline)["notes"], "all of it again")


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium: apt-get install chromium")
@pytest.mark.parametrize("page", ["assets", "run", "topic"])
def test_the_ui_shows_it(pipeline, page, tmp_path):
    """A browser shows the graph of the assets, and a finished run; the pictures in the docs.

    `MEMQ_PICTURES=docs/images` in the environment makes them anew.
    """
    path = Path(os.environ.get("MEMQ_PICTURES", tmp_path)).absolute() / f"airflow-{page}.png"
    if page == "assets":
        asset_id = pipeline.rest.asset_id(ranges_asset(TOPIC).name)
        url = f"{pipeline.airflow.url}/assets/{asset_id}"
    elif page == "topic":
        url = f"{pipeline.airflow.url}/memq/topics/{orders.TOPIC}/"
    else:
        run = next(r for r in pipeline.rest.runs(PROCESS) if r["state"] == "success")
        url = f"{pipeline.airflow.url}/dags/{PROCESS}/runs/{run['dag_run_id']}"
    screenshot(url, path, height=650 if page == "topic" else 1000)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000  # an empty page compresses to less


@pytest.mark.parametrize("name", DAG_FILES)
def test_a_dag_file_parses_quickly(name, tmp_path):
    """A DAG file costs less than a second beyond Airflow, its assets, and its Spark operator."""
    script = textwrap.dedent(
        """
        import runpy, sys, time
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
        from airflow.sdk import DAG, Asset
        Asset("x://y")  # loads the handlers of all providers
        begin = time.process_time()
        runpy.run_path(sys.argv[1])
        print(time.process_time() - begin)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(ROOT / "dags" / name)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert float(done.stdout.splitlines()[-1]) < PARSE_LIMIT_S
