"""The DAGs of one topic and of many, from settings."""

import re
from datetime import timedelta

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_memq.notifications.memq import MemqNotifier
from airflow_provider_memq.pipeline import MemqPipeline
from airflow_provider_memq.pipeline.settings import KINDS
from memq.errors import ConfigError

APPS = "/opt/spark_apps"


def tasks_of(dags):
    """All tasks of some DAGs."""
    return [task for dag in dags for task in dag.tasks]


def by_id(dags):
    return {dag.dag_id: dag for dag in dags}


def test_ids_are_plain_for_one_topic_and_named_for_many():
    """A topic that is alone keeps the ids that everybody knows; others do not share them."""
    alone = MemqPipeline("clicks", spark_apps=APPS, dags=KINDS).dags()
    many = MemqPipeline({"clicks": {"dags": "ranges"}, "views": {}}, spark_apps=APPS).dags()

    kinds = ("plan_ranges", "process_ranges", "audit", "backfill", "retention")
    assert by_id(alone).keys() == {"memq_hourly", *(f"memq_{kind}" for kind in kinds)}
    of_clicks = {f"memq_{kind}.clicks" for kind in kinds[:2]}
    assert by_id(many).keys() == of_clicks | {f"memq_{kind}.views" for kind in kinds}


def test_a_topics_own_settings_go_before_those_of_all():
    """Owner, pool, tries, tags, folders: of all topics, unless the topic says otherwise."""
    told = []
    pipeline = MemqPipeline(
        {"clicks": {}, "views": {"owner": "web", "retries": 1, "output": "s3a://views"}},
        spark_apps=APPS,
        owner="data",
        pool="memq",
        retries=2,
        retry_delay="3s",
        tags=["lake"],
        dags="ranges",
        output="{{ var.value.lake }}",
        notifiers=[told.append],
    )
    dags = by_id(pipeline.dags())
    clicks, views = (
        dags[f"memq_process_ranges.{topic}"].get_task("process") for topic in ("clicks", "views")
    )

    assert (clicks.owner, clicks.retries, clicks.output_dir) == ("data", 2, "{{ var.value.lake }}")
    assert (views.owner, views.retries, views.output_dir) == ("web", 1, "s3a://views")
    for dag in dags.values():
        assert dag.tags == {"memq", "lake"}
    for task in tasks_of(dags.values()):
        assert task.pool == "memq"
        assert task.retry_delay == timedelta(seconds=3)
        (notifier,) = task.on_failure_callback
        assert isinstance(notifier, MemqNotifier)
        assert notifier.notifiers == (told.append,)


def test_a_gate_stands_before_what_counts_as_processed():
    """With any limit given, only the gate's success says that a range is processed."""
    plain, gated = (
        by_id(MemqPipeline("clicks", spark_apps=APPS, **limits).ranges())["memq_process_ranges"]
        for limits in ({}, {"gate_max_skipped": "0"})
    )

    assert [len(task.outlets) for task in plain.topological_sort()] == [1, 0]
    assert [task.task_id for task in gated.topological_sort()] == ["process", "gate", "commit"]
    assert [len(task.outlets) for task in gated.topological_sort()] == [0, 1, 0]
    assert gated.get_task("gate").max_skipped == "0"


def test_ranges_go_into_a_table_and_their_manifests_beside_it():
    """Runs and backfills do the same, so that a backfill finds what runs have done."""
    options = {"table": "prod:lake.clicks", "output": "s3a://lake/clicks", "hourly_output": "/h"}
    pipeline = MemqPipeline("clicks", spark_apps=APPS, **options)
    dags = by_id([*pipeline.ranges(), *pipeline.backfill(), *pipeline.hourly()])

    process = dags["memq_process_ranges"].get_task("process")
    backfill = dags["memq_backfill"].get_task("backfill")
    mapped = dags["memq_backfill"].get_task("process").partial_kwargs
    for given in (vars(process), vars(backfill), mapped):
        assert (given["output_dir"], given["manifest_dir"]) == (
            "prod:lake.clicks",
            options["output"],
        )
    for given in (vars(process), mapped):
        assert given["job"] == "range_to_iceberg"
        assert [each.name for each in given["outlets"]] == [
            "memq_processed.clicks.range_to_iceberg"
        ]
    assert process.application == mapped["application"] == f"{APPS}/range_to_iceberg.py"
    done = dags["memq_process_ranges"].get_task("commit").done
    assert done == process.outlets[0]
    hour = dags["memq_hourly"].get_task("process").partial_kwargs
    assert (hour["application"], hour["output_dir"]) == (f"{APPS}/range_to_parquet.py", "/h")


def test_airflow_can_store_every_dag():
    """Each is serialized as the DAG processor does it."""
    for dag in MemqPipeline(["clicks", "views"], spark_apps=APPS, dags=KINDS).dags():
        stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert stored.task_ids == dag.task_ids


WRONG = {
    "max_range_bytes: 1 giga": "max_range_bytes = '1 giga': '1 giga' is not a size; write it like",
    "max_range_offsets: many": "max_range_offsets = 'many': must be a whole number",
    "max_range_offsets: 1.5": "max_range_offsets = 1.5: must be a text or a number",
    "missed_after: true": "missed_after = True: must be a text or a number",
    "retry_delay: 10": 'retry_delay = 10: expected a duration, such as "10s"',
    "retries: -1": "retries = -1: must be at least 0",
    "owner: [a]": "owner = ['a']: expected a text, such as",
    "pool:": "pool = None: expected a text, such as",
    "dags: [range]": "dags = ['range']: 'range': must be of ranges, hourly, audit, backfill, ret",
    "tags: [1]": "tags = [1]: must be a list of texts, such as [one, two]",
    "hourly_cron: hourly": "hourly_cron = 'hourly': must be a cron expression such as",
    "hourly_since: soon": "hourly_since = 'soon': must be a time such as 2026-01-02T",
    'hourly_since: "2026-02-03"': "hourly_since = '2026-02-03' has no time zone; add one, such as",
    "hourly_on_removed: guess": "hourly_on_removed = 'guess': must be one of fail, skip",
    "spark_conf: {a: 1}": "spark_conf = {'a': 1}: must be texts by name, such as",
    "max_bytes: 1GiB": "unknown setting 'max_bytes' = '1GiB'; there are|did you mean",
    "max_range_byte: 1": "unknown setting 'max_range_byte' = 1; did you mean 'max_range_bytes'?",
}


@pytest.mark.parametrize("line", WRONG)
@pytest.mark.parametrize("own", [True, False])
def test_what_is_wrong_is_named(tmp_path, line, own):
    """The error has file, topic, setting, value and the way out; of a topic or of all."""
    path = tmp_path / "t.yaml"
    path.write_text(f"topics: {{clicks: {{{line}}}}}" if own else f"{line}\ntopics: [clicks]")

    with pytest.raises(ConfigError) as error:
        MemqPipeline.from_yaml(path)

    where = f"{path}: " + ("topic 'clicks': " if own else "")
    assert str(error.value).startswith(where)
    assert any(text in str(error.value) for text in WRONG[line].split("|"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "message", "mended"),
    [
        (
            {"table": "s3://lake/clicks"},
            "topic 'clicks': table = 's3://lake/clicks': must be a table, such as prod:lake.clicks",
            {"table": "", "output": "s3://lake/clicks"},
        ),
        (
            {"table": "clicks"},
            "topic 'clicks': table = 'clicks': must be a table, such as prod:lake.clicks",
            {"table": "lake.clicks"},
        ),
        (
            {"table": "lake.clicks", "gate_columns": {"value": "binary"}},
            "topic 'clicks': gate_columns = {'value': 'binary'}: a table has columns of its own",
            {"gate_columns": ""},
        ),
    ],
)
def test_a_table_is_a_name_and_has_columns_of_its_own(wrong, message, mended):
    """A folder is no table, and the gate does not look at a table's files."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        MemqPipeline("clicks", spark_apps=APPS, **wrong)

    assert MemqPipeline("clicks", spark_apps=APPS, **wrong | mended).ranges()
    assert MemqPipeline("clicks", spark_apps=APPS, table="{{ var.value.a/b }}").ranges()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have either `topic: clicks`, or `topics:`"),
        ("- clicks", "must have either `topic: clicks`, or `topics:`"),
        ("topic: a\ntopics: [b]", "must have either `topic: clicks`, or `topics:`"),
        ("topics: [", "cannot be read as YAML: "),
        ("topics: []", "topics = []: must name a topic"),
        ("topics: {a: {}, a: {}}", "cannot be read as YAML: 'a' stands twice, again in line 1"),
        ("topics: [a, a]", "topic 'a': stands there twice"),
        ("topics: [404]", "topic 404: must be a text; write it in quotes"),
        ("topic: 'a b'", "topic 'a b': topic name 'a b' is not valid"),
        ("topics: {a: 3}", "topic 'a' = 3: must be settings"),
    ],
)
def test_topics_that_are_none_are_refused(tmp_path, text, message):
    """So is a file without any, and a topic that would win over another in silence."""
    path = tmp_path / "t.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}: {re.escape(message)}"):
        MemqPipeline.from_yaml(path)
