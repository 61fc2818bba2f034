"""The audit of real producers and a real broker: what it says when all is well, and when not."""

from __future__ import annotations

import pytest

from memq.core.audit.reports import runs_of
from tests.topics.audited import Topic


def overwrite(path, position, text):
    """Damage an object; it is written once and read-only for everybody else."""
    with path.open("r+b") as file:
        file.seek(position)
        before = file.read(len(text))
        assert before != text
        file.seek(position)
        file.write(text)


def only(result):
    """The one producer in one write partition that there is."""
    (producer,) = result.producers
    return producer


@pytest.mark.parametrize("deep", [False, True])
def test_deleted_objects_are_lost_by_name(broker, deep):
    """Deleting objects names exactly their sequences, and counts exactly their LogMessages."""
    topic, seen = Topic(broker), []
    producer_id = topic.produce(12, records=4, compression="zstd")
    assert topic.audit(deep=deep, progress=lambda *at: seen.append(at)).clean
    assert seen == [(done, 12) for done in range(1, 13)]
    gone = [2, 7, 8]
    paths = topic.paths()
    for number in gone:
        paths[number].unlink()

    result = topic.audit(deep=deep)

    producer = only(result)
    assert producer.name.producer_id == producer_id
    assert producer.lost == runs_of(gone)
    assert producer.lost_records == result.total("lost_records") == 12
    assert producer.stored_messages == 9
    assert producer.produced_records == 48
    assert not result.clean
    assert len(result.damage) == 3
    assert all("does not exist" in line for line in result.damage)
    for number in gone:
        assert any(f"sequence {number} (4 LogM" in line for line in result.damage)


def test_windows_that_meet_judge_each_report_once(broker):
    """A report belongs to one window, and what other windows name is not unreported in this."""
    topic = Topic(broker)
    first = topic.produce(2)
    edge_ms = broker_now_ms(topic)
    second = topic.produce(3)
    before, after = topic.audit(end_ms=edge_ms), topic.audit(start_ms=edge_ms)
    assert [each.name.producer_id for each in before.producers] == [first]
    assert [each.name.producer_id for each in after.producers] == [second]
    assert before.total("unreported_messages") == after.total("unreported_messages") == 0
    later = topic.audit(start_ms=broker_now_ms(topic))
    assert (later.producers, later.clean) == ([], True)


def broker_now_ms(topic):
    """The broker's clock once it is past all that is stored: an idle topic is stored up to now."""
    stored_ms = max(each.sealed_ms for each in topic.notifications())
    while True:
        answer = topic.ask(lambda queue: queue.watermark())
        if answer.stored_through_ms > stored_ms + 1_000:  # the report follows within half a second
            return answer.stored_through_ms
