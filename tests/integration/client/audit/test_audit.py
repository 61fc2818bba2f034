"""The audit of real producers, consumers and jobs, and a real broker."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from memq import AdminClient, Consumer
from memq.core.audit.reports import runs_of
from memq.core.audit.result import LocatedRun, Verdict
from tests.topics.audited import Topic, report


def consume(topic, batches, *, group="g", commit=True, **options):
    """Read some Batches as a member of a group; values of their LogMessages."""
    values = []
    with Consumer(topic.address, topic=topic.name, group=group, **options) as consumer:
        for _ in range(batches):
            batch = consumer.poll(20)
            assert batch is not None
            values += [message.value for message in batch]
        if commit:
            consumer.commit()
    return values


def audited(topic, **options):
    """The findings for the one consumer there is."""
    result = topic.audit(**({"grace_ms": 0} | options))
    (consumer,) = result.consumers
    assert result.clean == (consumer.clean and not result.damage)
    return consumer


def records(consumer):
    """LogMessages of every finding that there is."""
    findings = ("stored", "consumed", "missed", "mismatched", "unreported", "behind", "again")
    totals = {finding: consumer.total(finding).records for finding in findings}
    return {finding: count for finding, count in totals.items() if count}


def test_damaged_offsets_of_a_group_do_not_hide_the_rest(broker):
    """The audit says that it does not know them, unless it is asked about others alone."""
    topic = Topic(broker)
    topic.produce(3)
    consume(topic, 3)
    consume(topic, 1, group="other")
    [file] = broker.data_dir.glob("queue/topics/*/groups/other.json")
    file.write_bytes(b"xx")
    result = topic.audit(grace_ms=0)
    assert result.verdict is Verdict.PARTLY
    assert "What groups have committed is not known" in result.beyond[0]
    assert topic.audit(grace_ms=0, consumers=["g"]).verdict is Verdict.CLEAN


def test_group_moved_forward_by_hand_has_missed(broker):
    """Offsets that an administrator steps over are missed; what he goes back to is not."""
    topic = Topic(broker)
    topic.produce(6)
    consume(topic, 2)
    with AdminClient(topic.address) as admin:
        admin.reset_offsets("g", topic.name, {0: 4})
    consume(topic, 2)
    consumer = audited(topic)
    assert records(consumer) == {"stored": 18, "consumed": 12, "missed": 6}
    assert consumer.producers[0].missed.parts == [LocatedRun(0, 2, 4, 2, 3)]
    with AdminClient(topic.address) as admin:
        admin.reset_offsets("g", topic.name, {0: 2})
    consume(topic, 4)
    assert records(audited(topic)) == {"stored": 18, "consumed": 18, "again": 6}


def test_member_killed_before_its_report_is_unreported(broker):
    """What a killed member had committed is consumed as far as anybody can tell; what its
    successor then steps over is missed.
    """
    topic = Topic(broker)
    topic.produce(9)
    code = """
        import os, signal, sys
        from memq import Consumer
        consumer = Consumer(sys.argv[1], topic=sys.argv[2], group="g", session_timeout="1s")
        for _ in range(2):
            consumer.poll(20)
        consumer.commit()
        consumer._loop.run(consumer._client._reporter.report())  # what its interval does in time
        for _ in range(3):
            consumer.poll(20)
        consumer.commit()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    program = [sys.executable, "-c", textwrap.dedent(code), topic.address, topic.name]
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(program, check=False, timeout=60, env=environment)
    assert done.returncode == -signal.SIGKILL
    with Consumer(topic.address, topic=topic.name, group="g", auto_commit=True) as successor:
        while not successor.assignment:
            assert successor.poll(0) is None
        assert successor.position(0) == 5
        consumer = audited(topic)
        assert records(consumer) == {"stored": 27, "consumed": 6, "unreported": 9, "behind": 12}
        successor.seek(0, 7)
        for _ in range(2):
            successor.poll(20)
    consumer = audited(topic)
    assert records(consumer) == {"stored": 27, "consumed": 12, "unreported": 9, "missed": 6}
    assert consumer.producers[0].unreported.parts == [LocatedRun(0, 2, 5, 2, 4)]
    assert consumer.producers[0].missed.parts == [LocatedRun(0, 5, 7, 5, 6)]


def test_named_consumers_alone_are_judged(broker):
    """Who asks about one is not told about others; a silent one, or a gap of now, is behind."""
    topic = Topic(broker)
    topic.produce(3)
    report(topic, (0, 1), (2, 3))
    consume(topic, 3, group="other")
    late = topic.audit(grace_ms=600_000)
    assert [each.consumer for each in late.consumers] == ["job", "other"]
    assert records(late.consumers[0]) == {"stored": 9, "consumed": 6, "behind": 3}
    assert not topic.audit(grace_ms=0).clean
    assert topic.audit(grace_ms=0, consumers=["other"]).clean
    (silent,) = topic.audit(grace_ms=0, consumers=["nobody"]).consumers
    assert (silent.reports, records(silent)) == (0, {"stored": 9, "behind": 9})


def test_what_a_consumer_reports_is_what_it_committed(broker):
    """What was handed out and not committed is lag; with `audit=False` nothing is reported."""
    topic = Topic(broker)
    topic.produce(4)
    consume(topic, 2)
    consume(topic, 1, commit=False)
    consume(topic, 4, group="experiment", audit=False)
    consumer = audited(topic, consumers=["g"])
    assert records(consumer) == {"stored": 12, "consumed": 6, "behind": 6}
    assert consumer.clean
    assert [each.consumer for each in topic.audit().consumers] == ["g"]


# -- producers --------------------------------------------------------------------------------


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
