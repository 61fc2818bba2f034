"""Where a table ends and Batches begin, and what is looked at again before that is settled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.wire.messages import PartitionOffsets
from memq.errors import DataLossError, InvalidRequestError, OffsetOutOfRangeError, UnavailableError
from memq.tables.commit import TableState
from memq.tables.ledger import EMPTY, TopicRange
from memq.tables.scan import ATTEMPTS, seam_of, settle

A, B = "a" * 16, "b" * 16


def clicks(partition, start, end, topic_id=A):
    return TopicRange(topic="clicks", topic_id=topic_id, partition=partition, start=start, end=end)


def ledger(held):
    made = EMPTY.plus(clicks(0, 1, 9, B)).plus(clicks(7, 0, 99))
    for partition, offsets in enumerate(held):
        for offset in offsets:
            made = made.plus(clicks(partition, offset, offset + 1))
    return made


@st.composite
def partitions(draw):
    """Of one read partition: what is retained, is held, was retained before, and is asked for.

    Mostly nothing is lost and what is asked for is there.
    """
    start = draw(st.integers(0, 8))
    end = draw(st.integers(start, 12))
    first = draw(st.integers(0, start))
    held = {*range(first, start), *draw(st.sets(st.sampled_from(range(start, end) or [end])))}
    held -= {end}
    begun = draw(st.integers(first, start))
    until = draw(st.one_of(st.none(), st.integers(0, end)))
    match draw(st.sampled_from(["sound"] * 12 + ["hole", "beyond", "before", "asked"])):
        case "hole":
            held -= draw(st.sets(st.integers(0, 12)))
        case "beyond":
            held |= {draw(st.integers(end, 13))}
        case "before":
            begun = draw(st.integers(0, start))
        case "asked":
            until = draw(st.sampled_from([-1, end + 1]))
    return start, end, held, begun, until


@given(st.lists(partitions(), min_size=1, max_size=3), st.booleans())
def test_each_offset_comes_from_one_of_the_two(found, looked_before):
    """From the table what it has, all else from Batches, up to where was asked for; offsets that
    are in neither are an error, and so are those of the table that the topic has lost.
    """
    starts, ends, held, begun, until = zip(*found, strict=True)
    retained = [
        PartitionOffsets(partition=p, start=start, end=end)
        for p, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    before = [
        PartitionOffsets(partition=p, start=start, end=end)
        for p, (start, end) in enumerate(zip(begun, ends, strict=True))
    ]
    asked = {p: end for p, end in enumerate(until) if end is not None}
    wrong = any(not 0 <= end <= ends[p] for p, end in asked.items())
    stored, rest, lost = {}, set(), False
    for p, offsets in enumerate(held):
        first = min([starts[p], *offsets, *([begun[p]] if looked_before else [])])
        wanted = set(range(first, asked.get(p, ends[p])))
        stored[p] = wanted & offsets
        left = wanted - offsets
        rest |= {(p, each) for each in left}
        lost |= any(each < starts[p] for each in left) or any(each >= ends[p] for each in offsets)

    def look():
        given_before = {"begun": before} if looked_before else {}
        return seam_of(ledger(held), "clicks", A, retained, asked, **given_before)

    if wrong or lost:
        with pytest.raises(InvalidRequestError if wrong else DataLossError):
            look()
        return
    seam = look()
    assert {p: {n for s, e in each for n in range(s, e)} for p, each in seam.stored.items()} == (
        stored
    )
    assert sorted((p, n) for p, s, e, _ in seam.rest for n in range(s, e)) == sorted(rest)
    assert {each.topic_id for each in seam.rest} <= {A}


class Looked:
    """A table and its topic, and in which order they are looked at."""

    topic_id = A

    def __init__(self):
        self.asked = []

    def offsets(self):
        self.asked.append("topic")
        return [PartitionOffsets(partition=0, start=0, end=5)]

    def look(self):
        self.asked.append("table")
        return TableState(ledger([{1, 2}]), f"look {self.asked.count('table')}")


def settled(looked, errors):
    """Settle what is read, while the first plans fail."""
    errors = list(errors)

    def plan(rest):
        if errors:
            raise errors.pop(0)
        return rest.start, rest.end

    return settle(looked, looked, "clicks", {}, plan)


@pytest.mark.parametrize("failures", range(ATTEMPTS + 1))
@pytest.mark.parametrize("error", [OffsetOutOfRangeError, DataLossError, UnavailableError])
def test_what_went_meanwhile_is_looked_for_again(failures, error):
    """In the table, which may have it by now: some times, and what was found last is read; an
    outage is told at once.
    """
    looked = Looked()
    tries = 1 if error is UnavailableError else ATTEMPTS
    if failures >= tries:
        with pytest.raises(error):
            settled(looked, [error("gone")] * failures)
        assert looked.asked == ["topic", "table", "topic"] * tries
        return

    found = settled(looked, [error("gone")] * failures)

    assert found.base == f"look {failures + 1}"
    assert found.plans == [(0, 1), (3, 5)]
    assert looked.asked == ["topic", "table", "topic"] * (failures + 1)
