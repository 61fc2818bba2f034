"""What is damaged, gone or there twice: one clear error, or skipped and counted."""

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
            change_byte(path, at(notification))
        return notification

    yield damage
    for path, whole in undo:
        path.write_bytes(whole)


# -- stored twice ---------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", ["1", "6"])
def test_a_message_comes_as_often_as_it_is_stored(load, tasks):
    """Nothing is left out silently: what stands in two Batches comes twice, whoever reads it; and
    `view=messages` names every Message, so that it is found by a count.
    """
    found = Counter(load(minPartitions=tasks).column("value").to_pylist())
    messages = load(view="messages", minPartitions=tasks).to_pylist()

    wanted = {b"%d-%d" % (sequence, at): 1 for sequence in range(6) for at in range(4)}
    twice = {b"%d-%d" % (sequence, at): 1 for sequence in (3, 5) for at in range(4)}
    assert found == Counter(wanted) + Counter(twice) + Counter([b"another"])
    name = ("write_partition", "producer_id", "epoch", "sequence", "crc32c")
    names = Counter(tuple(row[each] for each in name) for row in messages)
    assert sorted(each[:4] for each, count in names.items() if count > 1) == [
        (0, "p", 0, 3),
        (0, "p", 0, 5),
    ]
    assert {(row["topic"], row["status"], row["error"]) for row in messages} == {("t", "ok", None)}


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


def in_last_message(notification):
    return notification.index_offset - 40


DAMAGE = {
    "a Message": (
        *("b23", in_last_message, CorruptDataError),
        *("t/0 offset 1 .*Message 3 of producer 'p'.*CRC32C", {3}),
    ),
    "a footer": ("b5", lambda _: -1, CorruptDataError, "t/1 offset 0", {5}),
    "an index": ("b5", lambda _: -60, CorruptDataError, "t/1 offset 0", {5}),
    "an object": ("b01", None, DataLossError, "t/0 offset 0 .* is gone", {0, 1}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_cannot_be_read(load, damaged, caplog, kind):
    """It is one error that names object, offset and read partition; with `mode=permissive` it alone
    is left out, told and counted.
    """
    batch_id, at, error, said, lost = DAMAGE[kind]
    notification = damaged(batch_id, at)

    with pytest.raises(error, match=f"Batch {batch_id} at {said}") as caught:
        load()
    assert notification.uri in str(caught.value)
    assert len(load(mode="permissive")) == 33 - 4 * len(lost)
    status = "missing" if error is DataLossError else "damaged"
    assert f"MemQ topic t: skipped {len(lost)} Message" in caplog.text
    tolerant = [{"mode": "permissive"}] + [{"failOnDataLoss": "false"}] * (status == "missing")
    for options in tolerant:
        found = load(view="messages", **options).to_pylist()
        assert {row["sequence"] for row in found if row["status"] == status} == lost
        assert Counter(row["status"] for row in found) == {status: len(lost), "ok": 9 - len(lost)}
        assert all(row["error"] for row in found if row["status"] == status)


def test_counts_need_no_message_to_be_read(load, damaged):
    """Without `status` and `error` the view of Messages comes from the indexes alone."""
    damaged("b01", in_last_message)

    found = load(view="messages", columns="sequence,records")

    assert found.column("records").to_pylist().count(4) == 8
