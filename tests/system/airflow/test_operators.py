"""The operators against a real broker: what they ask, emit, commit and refuse."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.operators.memq import (
    MemqAuditOperator,
    MemqCommitOperator,
    MemqPlanRangesOperator,
    MemqRetentionOperator,
    MemqWindowRangesOperator,
)
from airflow_provider_memq.range_assets import plan_asset, processed_asset, ranges_asset
from airflow_provider_memq.ranges import parse_key, range_key
from airflow_provider_memq.topics import contents_of
from memq import AdminClient, Producer
from memq.client.audit.consumed import report_consumed
from memq.core.audit.reports import ConsumedReport
from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, DataLossError, OffsetOutOfRangeError, TopicRecreatedError
from tests.integration.airflow.event_store import EventStore


@pytest.fixture
def topic(broker, request, monkeypatch):
    """A topic of two read partitions where every flush makes a Batch."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", f"memq://{broker.address}")
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    with AdminClient(broker.address) as admin:
        admin.create_topic(name, batch_age="10ms", write_partitions=2, read_partitions=2)
    return name


def publish(broker, topic, batches: int, producer_id: str | None = None) -> None:
    """Publish Batches, one record each, and wait until they can be read."""
    with Producer(broker.address, topic=topic, acks="all") as producer:
        for number in range(batches):
            producer.write(b"%d" % number)
            producer.flush(timeout=30)


def ends_of(broker, topic) -> dict[int, int]:
    with AdminClient(broker.address) as admin:
        return {each.partition: each.end for each in admin.offsets(topic)}


def planner(topic, **options):
    return MemqPlanRangesOperator(
        task_id="plan", topic=topic, ranges=ranges_asset(topic), **options
    )


def covered(store, topic) -> dict[int, list[int]]:
    """The offsets of all emitted ranges, in their order, by read partition."""
    found: dict[int, list[int]] = {0: [], 1: []}
    for key in sorted(store.keys(ranges_asset(topic))):
        each = parse_key(key)
        found[each.partition] += range(each.start, each.end)
    return found


# -- planning -------------------------------------------------------------------------------


def test_plans_meet_through_crashes_and_retries(broker, topic):
    """Tries that crash after they emitted leave nothing behind; the next ones leave nothing out."""
    store, randomness = EventStore(), Random(7)
    for _ in range(12):
        publish(broker, topic, randomness.randrange(4))
        limits = {"max_offsets": randomness.randrange(1, 4), "max_ranges": 2}
        store.run(planner(topic, **limits), crash=randomness.random() < 0.4)
    store.run(planner(topic))

    ends = ends_of(broker, topic)
    assert covered(store, topic) == {p: list(range(end)) for p, end in ends.items()}


def test_a_plan_with_nothing_new_emits_nothing(broker, topic):
    """A wake-up too many makes no event: an event without a range would be one that is refused."""
    store = EventStore()
    publish(broker, topic, 2)
    store.run(planner(topic))
    before = len(list(store[ranges_asset(topic)]))

    assert store.run(planner(topic))["ranges"] == []
    assert len(list(store[ranges_asset(topic)])) == before


def test_a_preview_shows_and_emits_nothing(broker, topic):
    """A dry run says what would be planned, and the next plan plans it."""
    store = EventStore()
    publish(broker, topic, 3)
    shown = store.run(planner(topic, preview="True"))

    assert store.keys(ranges_asset(topic)) == []
    assert shown["dry_run"]
    assert store.run(planner(topic))["ranges"] == shown["ranges"]
    assert sum(each["batches"] for each in shown["ranges"]) == 3


def test_latest_begins_where_the_first_plan_ran(broker, topic):
    """What is published after an empty first plan is planned, though "latest" has moved on."""
    store = EventStore()
    publish(broker, topic, 3)
    first = ends_of(broker, topic)
    store.run(planner(topic, start="latest"))
    publish(broker, topic, 3)
    store.run(planner(topic, start="latest"))

    assert covered(store, topic) == {
        p: list(range(first[p], end)) for p, end in ends_of(broker, topic).items()
    }


def test_events_of_others_do_not_move_the_plan(broker, topic):
    """Backfills, and ranges that somebody emitted by hand, do not count as planned."""
    store = EventStore()
    publish(broker, topic, 4)
    store.run(planner(topic))
    planned = covered(store, topic)
    store.add(ranges_asset(topic), "00000:000000000900-000000000950")
    for _ in range(50):
        store.add(plan_asset(ranges_asset(topic)), None, {"by": "hand"})

    assert store.run(planner(topic))["ranges"] == []
    assert planned == {p: list(range(end)) for p, end in ends_of(broker, topic).items()}


def test_a_topic_made_again_is_refused(broker, topic):
    """Offsets of a topic that was deleted and recreated are not those that were planned."""
    store = EventStore()
    publish(broker, topic, 2)
    store.run(planner(topic))
    with AdminClient(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, batch_age="10ms", read_partitions=2)

    with pytest.raises(TopicRecreatedError, match="its offsets name other data"):
        store.run(planner(topic))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "soon"}, "start = 'soon'"),
        ({"start": '{"0": 99}'}, "offset 99 of .*/0 is not retained"),
        ({"max_offsets": "0"}, "limit offsets"),
        ({"max_bytes": "lots"}, "lots"),
        ({"on_removed": "guess"}, "on_removed"),
        ({"preview": "perhaps"}, "preview"),
    ],
)
def test_wrong_arguments_are_named(broker, topic, options, error):
    """An argument that makes no sense fails the task and says which."""
    with pytest.raises(ConfigError, match=error):
        EventStore().run(planner(topic, **options))


# -- windows of time ------------------------------------------------------------------------


def test_windows_that_meet_hold_each_batch_once(broker, topic):
    """The data intervals of three runs name all offsets of their time, none twice, at any time."""
    times = [datetime.now(UTC)]
    for _ in range(3):
        publish(broker, topic, 3)
        times.append(datetime.now(UTC))
    publish(broker, topic, 1)

    def window(start, end):
        operator = MemqWindowRangesOperator(task_id="window", topic=topic)
        context = {"data_interval_start": start, "data_interval_end": end}
        return EventStore().run(operator, **context)

    found = [window(*times[at : at + 2]) for at in range(3)]
    assert [window(*times[at : at + 2]) for at in range(3)] == found
    ranges = [parse_key(key) for keys in found for key in keys]
    assert sum(each.size for each in ranges) == 9
    assert sorted(window(times[0], times[3])) == sorted(
        key_of([each for each in ranges if each.partition == p])
        for p in {each.partition for each in ranges}
    )


def key_of(ranges) -> str:
    """The key of ranges that meet, as one."""
    ranges = sorted(ranges)
    assert all(a.end == b.start for a, b in pairwise(ranges))
    return range_key(ranges[0]._replace(end=ranges[-1].end))


@pytest.mark.parametrize("minutes", [None, 0, -5])
def test_a_window_of_no_width_is_refused(broker, topic, minutes):
    """A run without a data interval, or with an empty one, would silently process nothing."""
    now = datetime.now(UTC)
    context = {}
    if minutes is not None:
        context = {
            "data_interval_start": now,
            "data_interval_end": now + timedelta(minutes=minutes),
        }
    with pytest.raises(ConfigError, match=r"no data interval|CronDataIntervalTimetable"):
        EventStore().run(MemqWindowRangesOperator(task_id="window", topic=topic), **context)


# -- commits --------------------------------------------------------------------------------


def test_offsets_follow_what_is_processed_without_a_gap(broker, topic):
    """A range that is missing holds the offset back; once it is done, all behind it count."""
    store, done = EventStore(), processed_asset(topic, "job")
    publish(broker, topic, 8)
    store.run(planner(topic, max_offsets=1))
    keys = [key for key in sorted(store.keys(ranges_asset(topic))) if key.startswith("00000")]
    operator = MemqCommitOperator(
        task_id="commit", topic=topic, ranges=ranges_asset(topic), done=done, group="g"
    )

    def commit_after(*more: str):
        for key in more:
            store.add(done, key)
        store.run(operator)
        with AdminClient(broker.address) as admin:
            return admin.committed("g", topic).get(0)

    assert commit_after(keys[2], keys[1]) is None
    assert commit_after(keys[0]) == 3
    assert commit_after(keys[0]) == 3
    assert commit_after(*keys[3:]) == len(keys)


# -- retention and audit --------------------------------------------------------------------


def test_retention_warns_before_it_is_too_late(broker, topic):
    """What is not planned and soon removed fails the task; once it is planned, it does not."""
    store = EventStore()
    publish(broker, topic, 4)

    def look(**options):
        return store.run(
            MemqRetentionOperator(
                task_id="retention", topic=topic, ranges=ranges_asset(topic), **options
            )
        )

    assert look(warn_before="1d")["retention"] == "7d"
    with pytest.raises(DataLossError, match=r"partition 0, offsets 0 to \d+: not processed"):
        look(warn_before="8d")
    store.run(planner(topic))
    assert {row["left_ms"] for row in look(warn_before="8d")["partitions"]} == {None}
    with pytest.raises(DataLossError, match=": not processed"):
        look(warn_before="8d", group="nobody")


def test_window_that_is_partly_judged_fails_retriably_unless_it_may_pass(broker, topic):
    """What was not judged is said, and tried again; whoever allows it gets a warning instead."""
    publish(broker, topic, 2)
    begin = datetime.now(UTC) - timedelta(hours=1)
    window = {"topic": topic, "start": begin, "end": begin + timedelta(hours=2)}  # is not over
    store = EventStore()
    with pytest.raises(AirflowException, match="Audit again when it is over") as failed:
        store.run(MemqAuditOperator(task_id="audit", **window))
    assert not isinstance(failed.value, AirflowFailException)
    assert store.xcoms["return_value"]["verdict"] == "partly judged"
    found = EventStore().run(MemqAuditOperator(task_id="audit", allow_partly="true", **window))
    assert (found["clean"], len(found["unjudged"])) == (False, 1)


def test_removed_objects_fail_the_audit_and_are_named(broker, topic, tmp_path):
    """An object that is gone makes the audit name its sequences; else it is clean."""
    publish(broker, topic, 6, "p")

    def audit(**options):
        operator = MemqAuditOperator(
            task_id="audit", topic=topic, last="1h", output_dir=str(tmp_path), **options
        )
        return EventStore().run(operator)

    clean = audit()
    assert clean["clean"]
    assert clean["produced_records"] == 6
    json.dumps(clean)

    victim = sorted((tmp_path_of(broker) / "objects").glob(f"*/*/topics/{topic}/*/*/*.arrows"))[2]
    victim.unlink()
    with pytest.raises(AirflowFailException, match=r"producer .* \(1 LogMessage\)"):
        audit(deep="true")
    assert "findings" in next((tmp_path / f"topic={topic}").glob("*.csv")).read_text()


@pytest.fixture
def window(broker, topic):
    """Five Batches of a window, of which a job has consumed the first of partition 0; the contexts
    of the run for the window, and of the next one's.

    The window ends in an hour at least, so that it is not over when the clock strikes meanwhile.
    """
    publish(broker, topic, 5)
    report_consumed(broker.address, [consumed(topic, 0, 0, 1)])
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    edges = [begin + timedelta(hours=3 * number) for number in range(3)]
    return [{"data_interval_start": a, "data_interval_end": b} for a, b in pairwise(edges)]


def consumed(topic, partition, start, end):
    """The report that `job` has read some Batches of one record each."""
    batches = MemqHook().notifications(topic, partition, start, end)
    found = [batch.notification for batch in batches]
    return ConsumedReport(
        topic=topic,
        consumer="job",
        partition=partition,
        start=start,
        end=end,
        batches=end - start,
        messages=len(found),
        records=len(found),
        crc_sum=sum(run.crc_sum for each in found for run in each.producers),
        window_start_ms=1,
        window_end_ms=2,
        final=True,
    )


def settled(topic, **options):
    options |= {"settled_for": "3h", "allow_partly": True}  # the window is not over yet
    return MemqAuditOperator(task_id="consumed", topic=topic, **options)


def test_what_a_named_consumer_has_not_come_to_fails_when_it_had_the_time(broker, topic, window):
    """A job that has stopped is no fault at first; the task that looks again names it."""
    now, later = window
    audit = MemqAuditOperator(task_id="audit", topic=topic, consumers="job,jbo", allow_partly=True)
    at_once = EventStore().run(audit, **now)
    assert len(at_once["unjudged"]) == 2  # the window is not over, and who is jbo?
    assert at_once["consumers"]["job"]["behind_records"] == 4

    store = EventStore()
    with pytest.raises(AirflowFailException, match="'job' has not come to 4 LogMessages"):
        store.run(settled(topic, consumers="job"), **later)
    assert store.xcoms["return_value"]["clean"] is False
    with pytest.raises(AirflowFailException, match=r"'jbo' has not .* there is no report of it"):
        EventStore().run(settled(topic, consumers="job,jbo"), **later)
    nobody_named = EventStore().run(settled(topic), **later)
    assert nobody_named["verdict"] == "partly judged"

    ends = ends_of(broker, topic)
    rest = [(0, 1, ends[0]), (1, 0, ends[1])]
    reports = [consumed(topic, *place) for place in rest]
    report_consumed(broker.address, reports)
    done = EventStore().run(settled(topic, consumers="job"), **later)
    assert done["verdict"] == "partly judged"


def test_a_window_that_was_asked_for_is_not_audited_again(topic):
    """Only data intervals are settled later; a run over another window leaves that out."""
    with pytest.raises(AirflowSkipException):
        settled(topic, last="1h").execute({})


def tmp_path_of(broker):
    return Path(broker._options["data_dir"])


def test_a_range_that_is_gone_is_refused(broker, topic):
    """Asking what a range holds that was never published is an error that names it."""
    with (
        MemqHook().topic(topic) as client,
        pytest.raises(OffsetOutOfRangeError, match="/0: not retained"),
    ):
        contents_of(client, OffsetRange(0, 0, 5))
