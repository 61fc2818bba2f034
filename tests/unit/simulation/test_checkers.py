"""The checkers: planted illegal histories are flagged, legal ones that look odd are not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation import history as h
from tests.simulation.checkers import check
from tests.simulation.checkers.violation import MAX_EACH, Violation
from tests.simulation.legal import legal_history

T = {"topic": "t", "incarnation": "i"}
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


def commit(offset, *, at, end=None, outcome=h.OK, member="m", reset=False, **fields):
    end = at + 1 if end is None else end
    return h.Commit(
        member, at, end, outcome, **(T | fields), group="g", member=member,
        offsets=((0, offset),), reset=reset,
    )  # fmt: skip


def fetched(*offset, at, **fields):
    return h.Committed(
        "m",
        at,
        at + 1,
        h.OK,
        **(T | fields),
        group="g",
        offsets=tuple((0, each) for each in offset),
    )


def audit(verdict, *lost, at=100, start=None, end=None, **fields):
    return h.Audit(
        "auditor", at, at + 10, h.OK, **(T | fields), start_ms=start, end_ms=end, verdict=verdict,
        lost=lost,
    )  # fmt: skip


def loss(*sequences, at=50, reported=5, offset=0, mended=None):
    names = tuple(h.Name(0, "p", 0, each) for each in sequences)
    return h.Loss(at, **T, partition=0, offset=offset, names=names, reported_ms=reported,
                  mended_us=mended)  # fmt: skip


def lost(first, last):
    return h.Run(0, "p", 0, first, last)


def topic(action, *, at, end=None, outcome=h.OK, retention=None, **fields):
    end = at + 1 if end is None else end
    return h.TopicChange("admin", at, end, outcome, action, **(T | fields), retention_us=retention)


def removal(at, published, *, what="notification", offset=0, begun=0):
    return h.Removal(at, what, **T, partition=0, offset=offset, published_us=published,
                     begun_us=begun)  # fmt: skip


def left(name, *, named, written=0, incarnation="i"):
    return h.Left(90, "object", name, "t", incarnation, written, named)


def durable(at, offset=0):
    return h.Durable(at, **T, partition=0, offset=offset)


DRAINED = h.Drained(50, "reader", **T)
CRASH = h.Life(5, "m1", h.CRASHED)

# -- what must be flagged, and as what ----------------------------------------------------------

ILLEGAL = {
    "two values at one place": (
        [send(1), poll((0, 1)), poll((0, 2), process="other"), send(2)],
        {"inconsistent offsets"},
    ),
    "one value at two offsets": ([send(1), poll((0, 1), (3, 1))], {"duplicate"}),
    "one value in two read partitions": (
        [send(1), poll((0, 1)), poll((0, 1), partition=1, process="other")],
        {"duplicate"},
    ),
    "acked as new at two places": ([send(1), send(1, offset=4, sequence=0)], {"duplicate"}),
    "ack names another offset": ([send(1, offset=4), poll((0, 1))], {"misplaced"}),
    "read in another topic": ([send(1), poll((0, 1), topic="other")], {"misplaced"}),
    "read in a later incarnation": ([send(1), poll((0, 1), incarnation="j")], {"misplaced"}),
    "acked, and readers went past it": (
        [send(1), send(2, offset=1), send(3, offset=2), poll((0, 1), (2, 3))],
        {"lost write"},
    ),
    "acked, and missing in a range that was read": (
        [send(1), send(2, offset=1), poll((0, 1), mode=h.SPARK, asked=(h.Asked(0, 0, 2),))],
        {"lost write"},
    ),
    "half of a Message": (
        [send(1, 2), send(3, offset=1), poll((0, 1), (1, 3)), DRAINED],
        {"lost write", "unseen"},
    ),
    "half of a Message whose outcome is unknown": (
        [send(1, 2, outcome=h.INFO), send(3, offset=1), poll((0, 1), (1, 3))],
        {"lost write"},
    ),
    "acked, and not read though all was": ([send(1), DRAINED], {"unseen"}),
    "never sent": ([poll((0, 1))], {"phantom"}),
    "failed, and read": ([send(1, outcome=h.FAIL), poll((0, 1))], {"aborted read"}),
    "read before it was sent": ([send(1, at=20), poll((0, 1), at=10)], {"precommitted read"}),
    "read before it was durable": (
        [durable(15), send(1, end=30), poll((0, 1), at=10)],
        {"precommitted read"},
    ),
    "acked before it was durable": ([durable(15), send(1, end=10)], {"precommitted ack"}),
    "acked and never durable": ([durable(0, offset=7), send(1)], {"precommitted ack"}),
    "skipped in a poll": (
        [
            *(send(n, offset=n) for n in range(3)),
            poll((0, 0), (1, 1), (2, 2), process="other"),
            poll((0, 0), (2, 2)),
        ],
        {"poll skip within"},
    ),
    "skipped between polls": (
        [
            *(send(n, offset=n) for n in range(3)),
            poll((0, 0), (1, 1), (2, 2), process="other"),
            poll((0, 0)),
            poll((2, 2), at=20),
        ],
        {"poll skip"},
    ),
    "skipped the end of a Batch": (
        [
            send(1, 2),
            send(3, offset=1),
            poll((0, 0, 1), (0, 1, 2), (1, 0, 3), process="other"),
            poll((0, 0, 1)),
            poll((1, 0, 3), at=20),
        ],
        {"poll skip"},
    ),
    "handed out again in a poll": (
        [send(1), poll((0, 1), (0, 1))],
        {"non-monotonic poll within"},
    ),
    "handed out again by the next poll": (
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
    "a range came with more": (
        [
            send(1),
            send(2, offset=1),
            poll((0, 1), (1, 2), mode=h.SPARK, asked=(h.Asked(0, 0, 1),)),
        ],
        {"inexact range"},
    ),
    "a Message in another order": (
        [send(1, 2), poll((0, 0, 2), (0, 1, 1))],
        {"non-monotonic send within"},
    ),
    "a Message in two Batches": (
        [send(1, 2), poll((0, 0, 1), (1, 0, 2))],
        {"non-monotonic send within", "misplaced"},
    ),
    "order lost": (
        [
            send(1, ordered=True, offset=1, sequence=0),
            send(2, ordered=True, offset=0, sequence=1),
            poll((0, 2), (1, 1)),
        ],
        {"non-monotonic send"},
    ),
    "order across two read partitions": (
        [
            send(1, ordered=True),
            send(2, ordered=True, sequence=1, partition=1),
            poll((0, 1)),
            poll((0, 2), partition=1),
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
    "one at a time, and swapped": (
        [
            send(1, max_in_flight=1, offset=1, sequence=0),
            send(2, at=5, max_in_flight=1, sequence=1),
            poll((0, 2), (1, 1)),
        ],
        {"non-monotonic send"},
    ),
    "an offset of another Batch": ([batch(0), batch(0, name="x")], {"offset reused"}),
    "a Batch at two offsets": ([batch(0), batch(1, name="b0")], {"duplicate"}),
    "a Batch that was changed": ([batch(0), batch(0, digest=b"x")], {"changed"}),
    "a Batch that is gone": (
        [batch(0), batch(0, digest=b"", findings=("no object",))],
        {"changed", "unsound"},
    ),
    "a Batch that contradicts itself": ([batch(0, findings=("counts",))], {"unsound"}),
    "the end went back": ([offsets(0, 5, at=1), offsets(0, 4, at=5)], {"offsets went back"}),
    "the start went back": ([offsets(3, 5, at=1), offsets(2, 5, at=5)], {"offsets went back"}),
    "times along offsets go back": (
        [batch(0, stamp=9), batch(1, stamp=8)],
        {"offsets out of order"},
    ),
    "the watermark went back": ([watermark(9, at=1), watermark(8, at=5)], {"watermark"}),
    "the watermark went back by more than the clock": (
        [watermark(9, at=1), h.ClockStep(3_000, -2), watermark(6, at=5)],
        {"watermark"},
    ),
    "the watermark went back before the clock": (
        [watermark(9, at=1), watermark(8, at=5), h.ClockStep(7_000_000, -2)],
        {"watermark"},
    ),
    "the watermark of one broker went back without a step back": (
        [watermark(9, at=1), h.ClockStep(3_000, 2), watermark(8, at=5)],
        {"watermark"},
    ),
    "something older behind the watermark": (
        [watermark(9, at=1), offsets(0, 1, at=5), batch(0, sealed=3), batch(1, sealed=8)],
        {"watermark"},
    ),
    "a commit that went back": (
        [commit(100, at=1), commit(51, at=5, member="other")],
        {"commit went back"},
    ),
    "a stored offset that went back": (
        [commit(5, at=1), commit(7, at=3), fetched(5, at=9)],
        {"commit went back"},
    ),
    "a commit that was forgotten": ([commit(5, at=1), fetched(at=9)], {"commit lost"}),
    "an offset nobody committed": ([commit(5, at=1), fetched(6, at=9)], {"commit from nowhere"}),
    "an offset of another incarnation": (
        [commit(5, at=1), fetched(5, at=9, incarnation="j")],
        {"commit from nowhere"},
    ),
    "an offset of another topic": (
        [commit(5, at=1), fetched(5, at=9, topic="u")],
        {"commit from nowhere"},
    ),
    "a commit that certainly failed": (
        [commit(5, at=1, outcome=h.FAIL), fetched(5, at=9)],
        {"commit from nowhere"},
    ),
    "a reset that was undone": (
        [commit(9, at=1), commit(2, at=3, reset=True), commit(5, at=5), fetched(2, at=9)],
        {"commit went back"},
    ),
    "two members of one partition": (
        [assigned(h.GRANTED, "m1", at=1, until=50), assigned(h.GRANTED, "m2", at=10, until=60)],
        {"partition shared"},
    ),
    "a renewed session is longer": (
        [
            assigned(h.GRANTED, "m1", at=1, until=10),
            assigned(h.RENEWED, "m1", at=9, until=20),
            assigned(h.GRANTED, "m2", at=15, until=60),
        ],
        {"partition shared"},
    ),
    "memory beyond the bound": ([h.Memory(1, "broker", "bodies", 9, 8)], {"memory"}),
    "a call that ended late": ([h.Call("c", 0, 11, 10, "poll")], {"late call"}),
    "a call that never ended": ([h.Call("c", 0, None, 10, "poll")], {"late call"}),
    "clean over a loss": ([loss(3), audit(h.CLEAN)], {"audit clean over a loss"}),
    "clean over a loss nobody reported": (
        [loss(3, reported=None), audit(h.CLEAN)],
        {"audit clean over a loss"},
    ),
    "one loss of three is left out": (
        [loss(3, 4, 5), audit(h.UNCLEAN, lost(3, 4))],
        {"audit inexact"},
    ),
    "partly judged, and a loss is in the window": (
        [loss(3), audit(h.PARTLY)],
        {"audit inexact"},
    ),
    "more is named than was lost": (
        [loss(3), audit(h.UNCLEAN, lost(3, 4))],
        {"audit false alarm"},
    ),
    "an alarm about nothing": ([audit(h.UNCLEAN)], {"audit false alarm"}),
    "what had expired is named, though no clock has stepped": (
        [
            topic(h.CREATE, at=0, retention=10),
            send("a"),
            removal(90, 5),
            audit(h.UNCLEAN, lost(0, 0)),
        ],
        {"audit false alarm"},
    ),
    "what expires after an audit is named": (
        [
            topic(h.CREATE, at=0, retention=10),
            h.ClockStep(3, 2),
            send("a"),
            removal(190, 5),
            audit(h.UNCLEAN, lost(0, 0)),
        ],
        {"audit false alarm"},
    ),
    "a loss of another incarnation is named": (
        [loss(3), audit(h.UNCLEAN, lost(3, 3), incarnation="j")],
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
    "an orphan removed before its time": (
        [topic(h.CREATE, at=0, retention=100), removal(90, None, what="object", begun=5)],
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
    "a file of nothing": ([left("o", named=False, incarnation="")], {"left behind"}),
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
    "nothing": [],
    "an unknown outcome that took effect": [send(1, outcome=h.INFO), poll((0, 1)), DRAINED],
    "an unknown outcome that did not": [send(1, outcome=h.INFO), DRAINED],
    "a failure": [send(1, outcome=h.FAIL), DRAINED],
    "acked with less than all, and lost": [
        send(1, acks="1", offset=h.NOWHERE, partition=h.NOWHERE),
        DRAINED,
    ],
    "gaps in offsets": [send(1), send(2, offset=7, sequence=1), poll((0, 1), (7, 2)), DRAINED],
    "a stable producer that was started again": [
        send(1, end=3),
        send(1, at=10, offset=0, duplicate=True),
        poll((0, 1)),
        DRAINED,
    ],
    "a life that did not learn its outcome, and one that did": [
        send(1, outcome=h.INFO),
        send(1, at=5, duplicate=True),
        poll((0, 1)),
        DRAINED,
    ],
    "a failure, and the same again with success": [
        send(1, outcome=h.FAIL),
        send(1, at=5),
        poll((0, 1)),
    ],
    "the same values in a topic recreated under other names": [
        send(1),
        send(2, incarnation="j"),
        poll((0, 1)),
        poll((0, 2), incarnation="j"),
    ],
    "unordered Messages of two write partitions": [
        send(1, offset=1),
        send(2, name=h.Name(1, "p", 0, 0)),
        poll((0, 2), (1, 1)),
    ],
    "many in flight, and swapped": [
        send(1, offset=1, sequence=0),
        send(2, at=5, sequence=1),
        poll((0, 2), (1, 1)),
    ],
    "one at a time, and the first was stored late": [
        send(1, outcome=h.INFO, max_in_flight=1),
        send(2, at=5, sequence=1, max_in_flight=1),
        poll((0, 2), (1, 1)),
    ],
    "began late, nobody has read before": [send(1), send(2, offset=1), poll((1, 2), at=20)],
    "read again after a seek": [
        send(1),
        poll((0, 1)),
        assigned(h.SOUGHT, "reader", at=15, group=""),
        poll((0, 1), at=20),
    ],
    "a rebalance during a poll": [
        send(1),
        send(2, offset=1),
        poll((0, 1), (1, 2), mode=h.GROUP, process="m1"),
        assigned(h.GRANTED, "m1", at=20),
        poll((0, 1), at=19, mode=h.GROUP, process="m1", end_us=21),
    ],
    "another member reads again what was not committed": [
        send(1),
        poll((0, 1), mode=h.GROUP, process="m1"),
        poll((0, 1), mode=h.GROUP, process="m2", at=20),
    ],
    "what was skipped had been removed": [
        *(send(n, offset=n) for n in range(3)),
        poll((0, 0), (1, 1), (2, 2), process="other"),
        removal(15, 0, offset=1),
        poll((0, 0)),
        poll((2, 2), at=20),
    ],
    "removed before anybody read it": [send(1), removal(15, 0), DRAINED],
    "destroyed on purpose": [
        send(1),
        batch(0),
        loss(0, at=5),
        batch(0, digest=b"", findings=("no object",)),
        DRAINED,
    ],
    "acked, and the topic deleted": [send(1), topic(h.DELETE, at=10, outcome=h.INFO), DRAINED],
    "a range of a range": [
        *(send(n, offset=n) for n in range(3)),
        poll((0, 0), (1, 1), (2, 2)),
        poll((1, 1), mode=h.SPARK, process="job", asked=(h.Asked(0, 1, 2), h.Asked(1, 0, 9))),
    ],
    "an end that was asked for before": [
        offsets(0, 5, at=5),
        h.Offsets("slow", 1, 9, h.OK, **T, partition=0, end=3),
    ],
    "the watermark went back with the clock": [
        watermark(9, at=1),
        h.ClockStep(3, -2),
        watermark(7, at=5),
    ],
    "a commit in quiet times that was under way at the end": [
        h.Quiet(5, 10),
        h.Commit("c", 99, None, h.INFO, **T, group="g", member="m", offsets=((0, 1),)),
    ],
    "something older, but it was there": [
        watermark(9, at=1),
        offsets(0, 2, at=5),
        batch(0, sealed=3),
        batch(1, sealed=8),
        batch(2, sealed=9),
    ],
    "a commit that went back by a reset": [
        commit(9, at=1),
        commit(2, at=3, reset=True),
        fetched(2, at=9),
        commit(3, at=20),
        fetched(3, at=30),
    ],
    "a commit that went back after a seek": [
        commit(9, at=1),
        assigned(h.SOUGHT, "m", at=5),
        commit(2, at=7),
        fetched(2, at=9),
    ],
    "an unknown commit that took effect": [
        commit(5, at=1),
        commit(9, at=3, outcome=h.INFO),
        fetched(9, at=9),
    ],
    "an unknown commit that did not": [
        commit(5, at=1),
        commit(9, at=3, outcome=h.INFO),
        fetched(5, at=9),
    ],
    "a commit under way": [commit(5, at=1), commit(9, at=3, end=20), fetched(5, at=9)],
    "a partition that changes hands at once": [
        assigned(h.GRANTED, "m1", at=1, until=50),
        assigned(h.RELEASED, "m1", at=10),
        assigned(h.GRANTED, "m2", at=10, until=60),
        assigned(h.GRANTED, "m1", at=60, until=90),
    ],
    "a member that crashed": [
        assigned(h.GRANTED, "m1", at=1, until=50),
        CRASH,
        assigned(h.GRANTED, "m2", at=10, until=60),
    ],
    "two groups share": [
        assigned(h.GRANTED, "m1", at=1),
        assigned(h.GRANTED, "m2", at=1, group="other"),
    ],
    "a call whose process crashed": [CRASH, h.Call("m1", 0, None, 10, "poll")],
    "memory at its bound": [h.Memory(1, "broker", "bodies", 8, 8)],
    "exactly the losses": [loss(3, 4), loss(7, offset=1), audit(h.UNCLEAN, lost(3, 4), lost(7, 7))],
    "a loss beyond the window": [loss(3, reported=50), audit(h.CLEAN, start=0, end=50)],
    "a loss during the audit": [loss(3, at=105), audit(h.CLEAN), audit(h.UNCLEAN, lost(3, 3))],
    "a loss that was mended": [loss(3, mended=60), audit(h.CLEAN)],
    "a loss that retention has removed": [loss(3), removal(60, 0), audit(h.PARTLY)],
    "nothing found, not all judged": [audit(h.PARTLY)],
    "removed when it was time": [topic(h.CREATE, at=0, retention=100), removal(106, 5)],
    "removed while retention was made longer": [
        topic(h.CREATE, at=0, retention=10),
        topic(h.ALTER, at=50, end=70, retention=100),
        removal(60, 40),
    ],
    "removed with its topic": [
        topic(h.CREATE, at=0, retention=100),
        topic(h.DELETE, at=10),
        removal(20, 5),
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


@given(seed=st.integers(0, 10**9), ordered=st.booleans())
def test_legal_histories_pass(seed, ordered) -> None:
    """Whatever a right system does, in any order, is called right."""
    assert check(legal_history(seed, ordered=ordered)) == []


# -- one mutation of a legal history -------------------------------------------------------------


def _change(rng, operations, chosen, **fields):
    at = rng.choice([n for n, each in enumerate(operations) if chosen(each)])
    operations[at] = operations[at]._replace(**fields)


def _batches(history):
    return [each for each in history.polls if each.mode == h.GROUP]


def lose_a_batch(history, rng):
    """Nobody ever reads an acked Message."""
    victim = rng.choice([each for each in history.sends if each.outcome == h.OK])
    for number, each in enumerate(history.polls):
        kept = [n for n, value in enumerate(each.values) if value not in victim.values]
        names = ("partitions", "offsets", "positions", "values")
        parts = {name: tuple(getattr(each, name)[n] for n in kept) for name in names}
        history.polls[number] = each._replace(**parts)


def double_a_batch(history, rng):
    """A Batch is read once more at an offset of its own."""
    each = rng.choice(_batches(history))
    far = tuple(10**6 for _ in each.offsets)
    history.add(each._replace(process="x", offsets=far))


def change_a_value(history, rng):
    """A reader is handed out another value than all others."""
    each = rng.choice(_batches(history))
    history.add(each._replace(process="x", values=tuple(-1 for _ in each.values)))


def fail_what_was_read(history, rng):
    """The outcome of a Message that was read is turned into a failure."""
    read = {value for each in history.polls for value in each.values}
    fields = {"outcome": h.FAIL, "offset": h.NOWHERE, "partition": h.NOWHERE}
    _change(rng, history.sends, lambda each: each.values[0] in read, **fields)


def repeat_a_poll(history, rng):
    """A reader is handed out the same again."""
    each = rng.choice(_batches(history))
    at = history.end_us
    history.add(each._replace(start_us=at, end_us=at + 1))


def skip_a_poll(history, rng):
    """A reader is not handed out what a job has read."""
    by_partition = {}
    for each in _batches(history):
        by_partition.setdefault(each.partitions[0], []).append(each)
    inner = [each for polls in by_partition.values() for each in polls[1:-1]]
    history.polls.remove(rng.choice(inner))


def shorten_a_range(history, rng):
    """A job is handed out less than its range."""
    jobs = [each for each in history.polls if each.mode == h.SPARK]
    each = rng.choice(jobs)
    names = ("partitions", "offsets", "positions", "values")
    shorter = each._replace(**{name: getattr(each, name)[:-1] for name in names})
    history.polls[history.polls.index(each)] = shorter


def read_too_early(history, rng):
    """A Batch is read before its Message was sent."""
    each = rng.choice(_batches(history))
    history.add(each._replace(process="x", start_us=-2, end_us=-1))


def move_an_ack(history, rng):
    """An ack names another offset than the one where it is."""
    _change(rng, history.sends, lambda each: each.outcome == h.OK, offset=10**6)


def reuse_an_offset(history, rng):
    """An offset names another Batch later."""
    history.add(rng.choice(history.batches)._replace(batch_id="other"))


def hurry_the_watermark(history, rng):
    """A watermark is ahead of what is still to come."""
    first = min(history.batches)
    ahead = history.watermarks[0]._replace(start_us=-9, end_us=-8, stored_through_ms=10**9)
    asked = history.offsets[0]._replace(start_us=-7, end_us=-6, end=first.offset)
    place = {"partition": first.partition}
    history.add(ahead._replace(**place))
    history.add(asked._replace(**place))


def forget_a_commit(history, rng):
    """A group's offset is not there any more."""
    history.add(history.committed[0]._replace(start_us=history.end_us, end_us=history.end_us + 1,
                                              offsets=()))  # fmt: skip


MUTATIONS = {
    lose_a_batch: {"lost write", "unseen"},
    double_a_batch: {"duplicate"},
    change_a_value: {"inconsistent offsets"},
    fail_what_was_read: {"aborted read"},
    repeat_a_poll: {"non-monotonic poll"},
    skip_a_poll: {"poll skip"},
    shorten_a_range: {"inexact range"},
    read_too_early: {"precommitted read"},
    move_an_ack: {"misplaced"},
    reuse_an_offset: {"offset reused"},
    hurry_the_watermark: {"watermark"},
    forget_a_commit: {"commit lost"},
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@given(seed=st.integers(0, 10**9), ordered=st.booleans())
def test_one_mutation_is_flagged(mutation, seed, ordered) -> None:
    """One wrong thing in a long legal history is found."""
    history = legal_history(seed, 80, ordered=ordered)
    mutation(history, Random(seed))
    if mutation is forget_a_commit and not history.commits:
        return
    assert kinds(history) & MUTATIONS[mutation]
