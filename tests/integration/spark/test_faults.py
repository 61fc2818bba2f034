"""What is damaged, gone, removed or there twice: one clear error, or skipped and counted."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import msgspec
import pytest

from memq import read_range
from memq.core.format.batch import ProducerRun
from memq.errors import (
    CorruptDataError,
    DataLossError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from tests.advice import follows
from tests.integration.spark.here import inputs, read
from tests.integration.spark.stored import Stored, change_byte
from tests.unit.client.batches import Sent, records

PLANNED = 20_000
MAX_PLAN_BYTES = 2_048  # of memory for a notification with ten producers

MESSAGES = [
    Sent("p", sequence, records(*(b"%d-%d" % (sequence, at) for at in range(4))))
    for sequence in range(8)
]
"""Eight Messages of four records each."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Six Batches in two read partitions; some Messages of the last three came before.

    Read partition 0 holds Messages 0-1, 2-3 and 3-4; read partition 1 holds 5, 5 again, and a new
    Message under the name of 0.
    """
    with Stored(tmp_path_factory.mktemp("stored"), partitions=2) as found:
        other = Sent("p", 0, records(b"another"))
        placed = [
            (0, found.batch(*MESSAGES[0:2], batch_id="b01")),
            (0, found.batch(*MESSAGES[2:4], batch_id="b23")),
            (1, found.batch(MESSAGES[5], batch_id="b5")),
            (0, found.batch(*MESSAGES[3:5], batch_id="b34")),
            (1, found.batch(MESSAGES[5], batch_id="b5-again")),
            (1, found.batch(other, batch_id="b0-other")),
        ]
        found.publish(*placed)
        found.placed = {notification.batch_id: notification for _, notification in placed}
        yield found


@pytest.fixture
def load(stored):
    """Reads the topic with some options."""
    return lambda **options: read(stored.address, **options)


@pytest.fixture
def damaged(stored):
    """Damages a byte of a Batch for one test; returns its notification."""
    undo = []

    def damage(batch_id, at=None):
        notification = stored.placed[batch_id]
        path = stored.path(notification)
        whole = path.read_bytes()
        undo.append((path, whole))
        if at is None:
            path.unlink()
        else:
            change_byte(path, at)
        return notification

    yield damage
    for path, whole in undo:
        path.write_bytes(whole)


def states(table):
    """Status of each Message, by name."""
    return Counter(
        zip(*(table.column(name).to_pylist() for name in ("sequence", "status")), strict=True)
    )


def firsts(table):
    """First bytes of the values: the sequences of their Messages."""
    return {value[:1] for value in table.column("value").to_pylist()}


# -- stored twice ---------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", ["1", "6"])
def test_a_message_comes_as_often_as_it_is_stored(load, tasks):
    """Nothing is left out silently: what stands in two Batches comes twice, whoever reads it."""
    found = Counter(load(minPartitions=tasks).column("value").to_pylist())

    wanted = {b"%d-%d" % (sequence, at): 1 for sequence in range(6) for at in range(4)}
    twice = {b"%d-%d" % (sequence, at): 1 for sequence in (3, 5) for at in range(4)}
    assert found == Counter(wanted) + Counter(twice) + Counter([b"another"])


def test_what_is_stored_twice_is_found_by_its_name(load):
    """`view=messages` names every Message, so one that is there twice is found by a count."""
    found = load(view="messages")

    name = ("write_partition", "producer_id", "epoch", "sequence", "crc32c")
    names = zip(*(found.column(each).to_pylist() for each in name), strict=True)
    assert {each[:4] for each, count in Counter(names).items() if count > 1} == {
        (0, "p", 0, 3),
        (0, "p", 0, 5),
    }
    assert set(found.column("status").to_pylist()) == {"ok"}
    first = found.slice(0, 1).to_pylist()[0]
    assert (first["topic"], first["batch"], first["records"], first["error"]) == (
        "t",
        "b01",
        4,
        None,
    )
    assert first["bytes"] > 0
    assert first["crc32c"] > 0


@pytest.mark.parametrize("partition", [0, 1])
def test_every_reader_gives_the_same_rows(load, stored, partition):
    """`read_range` of a read partition gives what Spark gives of the same range."""
    options = {
        "startingOffsets": f'{{"{partition}": 0}}',
        "endingOffsets": f'{{"{partition}": 3}}',
    }
    expected = read_range(
        stored.address, topic="t", partition=partition, start=0, end=3, metadata=True
    )

    found = load(**options).select(expected.column_names)

    assert found.equals(expected.cast(found.schema))


# -- damage ---------------------------------------------------------------------------------


def message_byte(stored, batch_id):
    """A byte within the last Message of a Batch."""
    return stored.placed[batch_id].index_offset - 40


def test_a_damaged_message_is_one_error(load, stored, damaged):
    """A damaged Message is an error with its object, offset, read partition and name."""
    notification = damaged("b23", message_byte(stored, "b23"))

    with pytest.raises(CorruptDataError) as caught:
        load()

    text = str(caught.value)
    assert f"Batch b23 at t/0 offset 1 ({notification.uri})" in text
    assert "Message 3 of producer 'p'" in text
    assert "CRC32C" in text


def test_a_damaged_message_is_skipped_and_counted_when_asked(load, stored, damaged, caplog):
    """`mode=permissive` leaves out the damaged Message alone, and says so."""
    damaged("b01", message_byte(stored, "b01"))

    found = load(mode="permissive")
    skipped = caplog.text
    status = load(mode="permissive", view="messages").slice(0, 2).to_pylist()

    assert firsts(found) == {b"0", b"2", b"3", b"4", b"5", b"a"}
    assert [row["status"] for row in status] == ["ok", "damaged"]
    assert "CRC32C" in status[1]["error"]
    assert "MemQ skipped 1 Message: Batch b01 at t/0 offset 0" in skipped
    assert "MemQ topic t: skipped 1 Message" in skipped


@pytest.mark.parametrize("at", [-1, -60])
def test_a_damaged_index_is_one_error(load, damaged, at):
    """A damaged footer or index is an error likewise, or costs the whole Batch if asked."""
    damaged("b5", at)

    with pytest.raises(CorruptDataError, match="Batch b5 at t/1 offset 0"):
        load()
    found = states(load(mode="permissive", view="messages"))
    assert found[5, "damaged"] == 1
    assert found[5, "ok"] == 1  # the other copy


def test_a_missing_object_is_one_error(load, damaged):
    """An object that is gone is an error by name, or is counted as missing if asked."""
    notification = damaged("b01")

    with pytest.raises(DataLossError) as caught:
        load(startingOffsets='{"0": 0}', endingOffsets='{"0": 1}')

    named = f"Batch b01 at t/0 offset 0 ({notification.uri}) is gone"
    assert named in str(caught.value)
    for options in ({"mode": "permissive"}, {"failOnDataLoss": "false"}):
        found = states(load(view="messages", **options))
        assert found[0, "missing"] == 1
        assert found[2, "ok"] == 1


def test_counts_need_no_message_to_be_read(load, stored, damaged):
    """Without `status` and `error` the view of Messages comes from the indexes alone."""
    damaged("b01", message_byte(stored, "b01"))

    found = load(view="messages", columns="sequence,records")

    assert found.column("records").to_pylist().count(4) == 8


# -- ranges ---------------------------------------------------------------------------------


@follows("or set failOnDataLoss to false to read on without them")
def test_a_removed_range_is_an_error_unless_told_otherwise(tmp_path, caplog):
    """Offsets that retention removed are an error; with failOnDataLoss=false the rest is read."""
    with Stored(tmp_path) as found:
        placed = [(0, found.batch(each, batch_id=f"b{each.sequence}")) for each in MESSAGES[:4]]
        found.publish(*placed)
        found.truncate(0, 2)
        starting = {"startingOffsets": '{"0": 1}'}

        with pytest.raises(OffsetOutOfRangeError) as caught:
            read(found.address, **starting)
        rest = read(found.address, failOnDataLoss="false", **starting)

    gone = "offset 1 of t/0: removed by retention; 2 is the first that is left"
    assert gone in str(caught.value)
    assert set(rest.column("offset").to_pylist()) == {2, 3}
    assert gone in caplog.text


def test_brokers_out_of_reach_are_one_error(monkeypatch):
    """When no broker can be reached in time, the error names the address."""
    monkeypatch.setattr("memq.spark.topic.REQUEST_TIMEOUT_S", 0.2)

    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"):
        read("127.0.0.1:9")


def test_a_plan_needs_little_memory_for_each_notification(tmp_path):
    """A plan covers all of 20,000 notifications, and takes at most two kilobytes for each."""
    with Stored(tmp_path, partitions=4) as found:
        like = found.batch(*MESSAGES[:1], batch_id="b")
        found.publish(*((number % 4, numbered(like, number)) for number in range(PLANNED)))
        tracemalloc.start()
        planned = inputs(found.address)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert sum(len(each.ranges) for each in planned) == PLANNED
    assert peak < PLANNED * MAX_PLAN_BYTES


def numbered(like, number):
    """A notification as busy topics have them: ten producers with a run each."""
    runs = [ProducerRun(f"producer-{n}", 0, number, number, 100, number) for n in range(10)]
    return msgspec.structs.replace(
        like, batch_id=f"{number:026d}", size_bytes=8 << 20, producers=runs
    )
