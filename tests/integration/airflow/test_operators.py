"""The operators against a real broker: what they ask, emit, commit and refuse."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
)

from airflow_provider_memq.operators.memq import (
    MemqAuditOperator,
    MemqPlanRangesOperator,
    MemqWindowRangesOperator,
)
from airflow_provider_memq.range_assets import ranges_asset
from airflow_provider_memq.ranges import parse_key, range_key
from memq import AdminClient, Producer
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


# -- planning -------------------------------------------------------------------------------


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


# -- commits --------------------------------------------------------------------------------


# -- retention and audit --------------------------------------------------------------------


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

    objects = Path(broker._options["data_dir"]) / "objects"
    victim = sorted(objects.glob(f"*/*/topics/{topic}/*/*/*.arrows"))[2]
    victim.unlink()
    with pytest.raises(AirflowFailException, match=r"producer .* \(1 LogMessage\)"):
        audit(deep="true")
    assert "findings" in next((tmp_path / f"topic={topic}").glob("*.csv")).read_text()
