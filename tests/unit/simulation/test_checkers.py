"""The checkers: planted illegal histories are flagged, legal ones that look odd are not."""

import pytest

from tests.simulation import history as h
from tests.simulation.checkers import check
from tests.simulation.checkers.violation import MAX_EACH, Violation

T = {"topic": "t", "topic_id": "i"}
FOREVER_US = 10**15


def kinds(history: h.History) -> set[str]:
    return {violation.kind for violation in check(history)}


# -- operations, short ------------------------------------------------------------------------


def send(*values, at=0, end=None, partition=0, offset=0, outcome=h.OK, sequence=None, **fields):
    unknown = outcome != h.OK
    sequence = offset if sequence is None else sequence
    defaults = {
        "process": "producer",
        "start_us": at,
        "end_us": at + 1 if end is None else end,
        "outcome": outcome,
        "name": h.Name(0, "p", 0, sequence),
        "values": values,
        "partition": h.NOWHERE if unknown else partition,
        "offset": h.NOWHERE if unknown else offset,
    }
    return h.Send(**(defaults | T | fields))


def poll(*rows, at=10, mode=h.ASSIGNED, partition=0, process="reader", asked=(), **fields):
    """Rows are (offset, value), or (offset, position, value)."""
    rows = [row if len(row) == 3 else (row[0], 0, row[1]) for row in rows]
    defaults = {
        "process": process,
        "start_us": at,
        "end_us": at + 1,
        "outcome": h.OK,
        "mode": mode,
        "group": "g" if mode == h.GROUP else "",
        "member": process,
        "partitions": (partition,) * len(rows),
        "offsets": tuple(row[0] for row in rows),
        "positions": tuple(row[1] for row in rows),
        "values": tuple(row[2] for row in rows),
        "asked": asked,
    }
    return h.Poll(**(defaults | T | fields))


def batch(offset, *, sealed=0, stamp=None, digest=b"d", name=None, **fields):
    stamp = offset if stamp is None else stamp
    defaults = {"time_us": 0, "partition": 0, "batch_id": name or f"b{offset}", "findings": ()}
    return h.Batch(
        **(defaults | T | fields),
        offset=offset,
        timestamp_ms=stamp,
        sealed_ms=sealed,
        digest=digest,
    )


def offsets(start, end, *, at):
    return h.Offsets("r", at, at + 1, h.OK, **T, partition=0, start=start, end=end)


def watermark(mark, *, at):
    return h.Watermark("r", at, at + 1, h.OK, **T, partition=0, stored_through_ms=mark)


def assigned(event, member, *, at, until=None, partitions=(0,), group="g"):
    return h.Assignment(
        member, at, event, **T, group=group, member=member, partitions=partitions, until_us=until
    )


def commit(offset, *, at, member="m"):
    offsets = ((0, offset),)
    return h.Commit(member, at, at + 1, h.OK, **T, group="g", member=member, offsets=offsets)


def fetched(*offset, at, **fields):
    offsets = tuple((0, each) for each in offset)
    return h.Committed("m", at, at + 1, h.OK, **(T | fields), group="g", offsets=offsets)


def audit(verdict, *lost, at=100):
    return h.Audit("auditor", at, at + 10, h.OK, **T, verdict=verdict, lost=lost)


def loss(*sequences, at=50, offset=0):
    names = tuple(h.Name(0, "p", 0, each) for each in sequences)
    return h.Loss(at, **T, partition=0, offset=offset, names=names)


def lost(first, last):
    return h.Run(0, "p", 0, first, last)


def topic(action, *, at, end=None, outcome=h.OK, retention=None, **fields):
    end = at + 1 if end is None else end
    return h.TopicChange("admin", at, end, outcome, action, **(T | fields), retention_us=retention)


def removal(at, published, *, what="notification", offset=0, begun=0):
    return h.Removal(at, what, **T, partition=0, offset=offset, published_us=published,
                     begun_us=begun)  # fmt: skip


def left(name, *, named, written=0, topic_id="i"):
    return h.Left(90, "object", name, "t", topic_id, written, named)


def durable(at, offset=0):
    return h.Durable(at, **T, partition=0, offset=offset)


SOUGHT = assigned(h.SOUGHT, "m", at=3)
DRAINED = h.Drained(50, "reader", **T)
CRASH = h.Life(5, "m1", h.CRASHED)

# -- what must be flagged, and as what ----------------------------------------------------------

ILLEGAL = {
    "ack names another offset": ([send(1, offset=4), poll((0, 1))], {"misplaced"}),
    "read in a later topic_id": ([send(1), poll((0, 1), topic_id="j")], {"misplaced"}),
    "acked, and readers went past it": (
        [send(1), send(2, offset=1), send(3, offset=2), poll((0, 1), (2, 3))],
        {"lost write"},
    ),
    "acked, and missing in a range that was read": (
        [send(1), send(2, offset=1), poll((0, 1), mode=h.RANGE, asked=(h.Asked(0, 0, 2),))],
        {"lost write"},
    ),
    "half of a Message": (
        [send(1, 2), send(3, offset=1), poll((0, 1), (1, 3)), DRAINED],
        {"lost write", "unseen"},
    ),
    "read, and never sent": ([poll((0, 1))], {"phantom"}),
    "two at one place": (
        [send(1), send(2, offset=1), poll((0, 1)), poll((0, 2), process="other")],
        {"inconsistent offsets"},
    ),
    "one at two places": (
        [send(1), poll((0, 1)), poll((5, 1), process="other")],
        {"duplicate"},
    ),
    "acked as new at two places": ([send(1), send(1, offset=3, sequence=0)], {"duplicate"}),
    "read before it was sent": ([send(1, at=50), poll((0, 1), at=10)], {"precommitted read"}),
    "read before it was durable": (
        [durable(15), send(1, end=30), poll((0, 1), at=10)],
        {"precommitted read"},
    ),
    "acked before it was durable": ([durable(15), send(1, end=10)], {"precommitted ack"}),
    "skipped between polls": (
        [
            *(send(n, offset=n) for n in range(3)),
            poll((0, 0), (1, 1), (2, 2), process="other"),
            poll((0, 0)),
            poll((2, 2), at=20),
        ],
        {"poll skip"},
    ),
    "read again": (
        [send(1), poll((0, 1)), poll((0, 1), at=20)],
        {"non-monotonic poll"},
    ),
    "went back within a grant": (
        [
            send(1),
            send(2, offset=1),
            assigned(h.GRANTED, "m1", at=1),
            poll((0, 1), (1, 2), mode=h.GROUP, process="m1"),
            assigned(h.RENEWED, "m1", at=15, until=FOREVER_US),
            poll((0, 1), at=20, mode=h.GROUP, process="m1"),
        ],
        {"non-monotonic poll"},
    ),
    "a range came short": (
        [
            send(1),
            send(2, offset=1),
            poll((0, 1), (1, 2)),
            poll((0, 1), mode=h.RANGE, asked=(h.Asked(0, 0, 2),), process="job"),
        ],
        {"inexact range"},
    ),
    "a Message in another order": (
        [send(1, 2), poll((0, 0, 2), (0, 1, 1))],
        {"non-monotonic send within"},
    ),
    "order lost": (
        [
            send(1, ordered=True, offset=1, sequence=0),
            send(2, ordered=True, offset=0, sequence=1),
            poll((0, 2), (1, 1)),
        ],
        {"non-monotonic send"},
    ),
    "a key in two write partitions": (
        [
            send(1, 2, keys=("a", "b")),
            send(3, sequence=0, offset=0, partition=1, name=h.Name(1, "p", 0, 0), keys=("a",)),
            poll((0, 0, 1), (0, 1, 2)),
            poll((0, 3), partition=1),
        ],
        {"moved key"},
    ),
    "a Batch at two offsets": ([batch(0), batch(1, name="b0")], {"duplicate"}),
    "an offset of another Batch": ([batch(0), batch(0, name="b1")], {"offset reused"}),
    "a Batch that was changed": ([batch(0), batch(0, digest=b"x")], {"changed"}),
    "a Batch that contradicts itself": ([batch(0, findings=("counts",))], {"unsound"}),
    "the end went back": ([offsets(0, 5, at=1), offsets(0, 4, at=5)], {"offsets went back"}),
    "times along offsets go back": (
        [batch(0, stamp=9), batch(1, stamp=8)],
        {"offsets out of order"},
    ),
    "the watermark went back": ([watermark(9, at=1), watermark(8, at=5)], {"watermark"}),
    "something older behind the watermark": (
        [watermark(9, at=1), offsets(0, 2, at=5), batch(2, sealed=3)],
        {"watermark"},
    ),
    "a commit that went back": (
        [commit(100, at=1), commit(51, at=5, member="other")],
        {"commit went back"},
    ),
    "a commit that was forgotten": ([commit(5, at=1), fetched(at=9)], {"commit lost"}),
    "an offset nobody committed": ([commit(5, at=1), fetched(6, at=9)], {"commit from nowhere"}),
    "an offset of another topic_id": (
        [commit(5, at=1), fetched(5, at=9, topic_id="j")],
        {"commit from nowhere"},
    ),
    "a commit after a move that was undone": (
        [commit(9, at=1), SOUGHT, commit(5, at=5), fetched(2, at=9), commit(2, at=20)],
        {"commit went back"},
    ),
    "two members of one partition": (
        [assigned(h.GRANTED, "m1", at=1, until=50), assigned(h.GRANTED, "m2", at=10, until=60)],
        {"partition shared"},
    ),
    "memory beyond the bound": ([h.Memory(1, "broker", "bodies", 9, 8)], {"memory"}),
    "a call that never ended": ([h.Call("c", 0, None, 10, "poll")], {"late call"}),
    "clean over a loss": ([loss(3), audit(h.CLEAN)], {"audit clean over a loss"}),
    "more is named than was lost": (
        [loss(3), audit(h.UNCLEAN, lost(3, 4))],
        {"audit false alarm"},
    ),
    "removed before its time": (
        [topic(h.CREATE, at=0, retention=100), removal(90, 5)],
        {"removed early"},
    ),
    "removed by a retention that is over": (
        [
            topic(h.CREATE, at=0, retention=10),
            topic(h.ALTER, at=20, retention=100),
            removal(60, 40),
        ],
        {"removed early"},
    ),
    "an object removed before its notification": (
        [
            topic(h.CREATE, at=0, retention=10),
            removal(60, 40, what="object"),
            removal(61, 40),
        ],
        {"removed early"},
    ),
    "an object of a deleted topic": (
        [topic(h.DELETE, at=5), left("o", named=True)],
        {"left behind"},
    ),
    "an orphan that is too old": (
        [topic(h.CREATE, at=0, retention=10), left("o", named=False)],
        {"left behind"},
    ),
    "a send in quiet times that failed": (
        [h.Quiet(5, 10), send(1, at=20, outcome=h.INFO)],
        {"not live"},
    ),
}

LEGAL = {
    "what had expired is named where a clock has stepped": [
        topic(h.CREATE, at=0, retention=10),
        h.ClockStep(3, 2),
        send("a"),
        removal(90, 5),
        audit(h.UNCLEAN, lost(0, 0)),
    ],
    "an unknown outcome that took effect": [send(1, outcome=h.INFO), poll((0, 1)), DRAINED],
    "acked with less than all, and lost": [
        send(1, acks="1", offset=h.NOWHERE, partition=h.NOWHERE),
        DRAINED,
    ],
    "what was skipped had been removed": [
        *(send(n, offset=n) for n in range(3)),
        poll((0, 0), (1, 1), (2, 2), process="other"),
        removal(15, 0, offset=1),
        poll((0, 0)),
        poll((2, 2), at=20),
    ],
    "destroyed on purpose": [
        send(1),
        batch(0),
        loss(0, at=5),
        batch(0, digest=b"", findings=("no object",)),
        DRAINED,
    ],
    "the watermark went back with the clock": [
        watermark(9, at=1),
        h.ClockStep(3, -2),
        watermark(7, at=5),
    ],
    "something older, but it was there": [
        watermark(9, at=1),
        offsets(0, 2, at=5),
        batch(0, sealed=3),
        batch(1, sealed=8),
        batch(2, sealed=9),
    ],
    "a commit that went back by a move": [
        commit(9, at=1),
        SOUGHT,
        commit(2, at=5),
        fetched(2, at=9),
        commit(3, at=20),
        fetched(3, at=30),
    ],
    "a partition that changes hands at once": [
        assigned(h.GRANTED, "m1", at=1, until=50),
        assigned(h.RELEASED, "m1", at=10),
        assigned(h.GRANTED, "m2", at=10, until=60),
        assigned(h.GRANTED, "m1", at=60, until=90),
    ],
    "a call whose process crashed": [CRASH, h.Call("m1", 0, None, 10, "poll")],
    "exactly the losses": [loss(3, 4), loss(7, offset=1), audit(h.UNCLEAN, lost(3, 4), lost(7, 7))],
    "a loss during the audit": [loss(3, at=105), audit(h.CLEAN), audit(h.UNCLEAN, lost(3, 3))],
    "removed while retention was made longer": [
        topic(h.CREATE, at=0, retention=10),
        topic(h.ALTER, at=50, end=70, retention=100),
        removal(60, 40),
    ],
    "an orphan that is still young": [
        topic(h.CREATE, at=0, retention=1_000),
        left("o", named=False),
        left("p", named=True),
    ],
    "a failure while there were faults": [h.Quiet(50, 60), send(1, at=20, outcome=h.INFO)],
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_must_not_be_is_flagged(name) -> None:
    """A planted violation is found as what it is."""
    operations, expected = ILLEGAL[name]
    assert kinds(h.History(*operations, end_us=100)) >= expected


@pytest.mark.parametrize("name", LEGAL)
def test_what_may_be_is_not_flagged(name) -> None:
    """What a right system may do raises no alarm, odd as it looks."""
    assert check(h.History(*LEGAL[name], end_us=100)) == []


def test_violations_of_a_kind_are_bounded() -> None:
    """One mistake that shows everywhere is told some times, and reads well."""
    found = check(h.History(*(poll((number, number)) for number in range(100))))
    assert len(found) == MAX_EACH
    assert str(Violation("lost", "it")) == "lost: it"
