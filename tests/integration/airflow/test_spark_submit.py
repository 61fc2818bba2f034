"""`MemqSparkSubmitOperator` with real `spark-submit`, and what it refuses."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch.range_job import check, read_manifest
from airflow_provider_memq.operators.memq import MemqSparkSubmitOperator
from airflow_provider_memq.pipeline.dags import LOCAL_CONF
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.planning.topics import contents_of
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, DataLossError, StorageError
from tests.fakes import light_app
from tests.harness.airflow.rest import BACKSTOP_S, until
from tests.harness.airflow.standalone import ROOT
from tests.integration.airflow.event_store import EventStore

pytestmark = [
    pytest.mark.timeout(2 * BACKSTOP_S),  # its waits end by what happens
    pytest.mark.usefixtures("broker"),
]

TOPIC = "clicks"
KEY = range_key(OffsetRange(0, 1, 3))


@pytest.fixture
def light(tmp_path, monkeypatch):
    """A stand-in for `spark-submit` on the PATH; its folder."""
    folder = tmp_path / "light"
    light_app.install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


def operator(tmp_path, application, **options):
    given = {"range_key": KEY, "default_master": "local[1]", "conn_id": "memq_spark", **options}
    return MemqSparkSubmitOperator(
        task_id="process",
        topic=TOPIC,
        application=str(application),
        output_dir=str(tmp_path / "out"),
        conf=LOCAL_CONF,
        **given,
    )


def values(tmp_path) -> list[bytes]:
    """What stands in the output."""
    files = sorted((tmp_path / "out").glob("memq_topic=*/*/*/memq_range=*/*.parquet"))
    return sorted(v for f in files for v in pq.ParquetFile(f).read()["value"].to_pylist())


def test_spark_processes_exactly_the_range(tmp_path):
    """Real Spark: the output is the range's rows, also after a second run; lineage names it."""
    task = operator(tmp_path, ROOT / "spark_apps" / "range_to_parquet.py")
    first = EventStore().run(task)
    assert values(tmp_path) == [b"value 1", b"value 2"]

    assert (first["partition"], first["start"], first["end"]) == (0, 1, 3)
    assert first["records"] == first["batches"] == 2
    assert Path(task.manifest_url).exists()
    lineage = task.get_openlineage_facets_on_complete(None)
    assert isinstance(lineage, OperatorLineage)
    assert "memq_ranges" in lineage.inputs[0].inputFacets


def test_a_range_into_a_table_needs_a_place_for_its_manifest(tmp_path):
    """A table is no folder: nothing is launched before it is said where the manifest goes."""
    task = operator(tmp_path, "range_to_iceberg.py")
    task.output_dir = "lake.clicks"
    with pytest.raises(ConfigError, match=r"'lake\.clicks' names a table: say where manifests go"):
        task.begin()

    task.manifest_dir = str(tmp_path / "manifests")

    assert task.begin().manifest.startswith(
        f"{task.manifest_dir}/output=lake.clicks/topic={TOPIC}/topic_id="
    )


def test_killing_the_task_ends_the_program(tmp_path, light):
    """What Airflow calls when a task is killed ends the submitted program; it writes nothing."""
    light_app.install(light, delay_s=300)
    task = operator(tmp_path, light / light_app.APP)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(EventStore().run, task)
        program = until(lambda: task._hook and getattr(task._hook, "_submit_sp", None), "a program")
        task.on_kill()
        with pytest.raises(AirflowException, match="spark-submit"):
            running.result()
    assert program.poll() == -signal.SIGKILL
    assert not list((tmp_path / "out").rglob("*.*"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"range_key": "None"}, r"'None' is no range"),
        ({"mode": "lenient"}, "mode = 'lenient'"),
        ({"default_master": None}, "no Spark connection 'memq_spark'"),
        ({"manifest_dir": "gs://lake/m"}, "gs://lake/m/"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, light, options, error):
    """A run that was not started for a range, and a missing Spark connection, say so."""
    with pytest.raises(ConfigError, match=error):
        EventStore().run(operator(tmp_path, light / light_app.APP, **options))


def writer(light, doing):
    """A program that does something at the `place` of its manifest, and nothing else."""
    program = light / "range_to_nothing.py"
    program.write_text(
        "import pathlib, sys\n"
        "place = pathlib.Path(sys.argv[sys.argv.index('--manifest') + 1])\n"
        f"place.parent.mkdir(parents=True, exist_ok=True)\n{doing}"
    )
    return program


@pytest.mark.parametrize("durable", [False, True])
def test_what_cannot_be_read_is_not_submitted(tmp_path, light, durable):
    """A place that may not be read is found before the submit, and named."""
    task = operator(tmp_path, writer(light, "(place / 'submitted').touch()"), durable=durable)
    place = Path(task.begin().manifest)
    place.mkdir(parents=True)

    with pytest.raises(StorageError, match=rf"{place}: IsADirectory"):
        EventStore().run(task)
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("doing", "kind", "error"),
    [
        ("place.mkdir()", AirflowFailException, "cannot be read: .*IsADirectory"),
        ("place.write_text('me')", AirflowFailException, "not a manifest"),
        ("", DataLossError, "there is none at"),
    ],
)
def test_only_a_missing_manifest_is_made_by_another_try(tmp_path, light, doing, kind, error):
    """One that was written and cannot be read, or makes no sense, is not missing."""
    with pytest.raises(kind, match=error) as raised:
        EventStore().run(operator(tmp_path, writer(light, doing)))
    assert isinstance(raised.value, AirflowFailException) is (kind is AirflowFailException)


def test_a_manifest_that_differs_from_the_plan_fails(tmp_path, light):
    """Another range, or other counts or checksums than were published, are data loss."""
    task = operator(tmp_path, light / light_app.APP)
    EventStore().run(task)
    manifest = read_manifest(task.manifest_url)
    with MemqHook().topic(TOPIC) as client:
        expected = contents_of(client, OffsetRange(0, 1, 3))
    check(manifest, TOPIC, expected)
    task.application = str(writer(light, ""))
    with pytest.raises(DataLossError, match="was there before"):
        EventStore().run(task)

    for field in ("start", "end", "batches", "messages", "records", "crc_sum", "bytes"):
        other = msgspec.structs.replace(manifest, **{field: getattr(manifest, field) - 1})
        with pytest.raises(DataLossError, match=field):
            check(other, TOPIC, expected)
