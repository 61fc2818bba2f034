"""What is damaged, gone or there twice: one clear error, or skipped and counted."""

from __future__ import annotations

from collections import Counter

import pytest

from memq import read_range
from memq.errors import CorruptDataError, DataLossError
from tests.integration.spark.here import read
from tests.integration.spark.stored import Stored, change_byte
from tests.unit.reading.batches import Sent, records

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
    found = load(view="messages").to_pylist()

    name = ("write_partition", "producer_id", "epoch", "sequence", "crc32c")
    names = Counter(tuple(row[each] for each in name) for row in found)
    assert {each[:4] for each, count in names.items() if count > 1} == {
        (0, "p", 0, 3),
        (0, "p", 0, 5),
    }
    assert {row["status"] for row in found} == {"ok"}
    told = [found[0][each] for each in ("topic", "batch", "records", "error")]
    assert told == ["t", "b01", 4, None]
    assert min(found[0]["bytes"], found[0]["crc32c"]) > 0


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
