"""A group's stored offsets are what was committed last, for this topic and topic id."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import OK, SOUGHT, History

_NEVER = float("inf")


class _Group(NamedTuple):
    """Whose offset it is."""

    group: str
    topic: str
    topic_id: str
    partition: int


class _Stored(NamedTuple):
    """A commit of one partition; sorted by when it began."""

    start_us: int
    end_us: float
    offset: int
    proven: bool


def wrong_commits(log: Log) -> Iterator[Violation]:
    """What is fetched was never committed, was forgotten, or went back; or a commit went back.

    A commit may go back where a member chose another position.
    """
    stored, sought = _stored(log.history)
    floors = {at: _Floors(commits, sought.get(at, [])) for at, commits in stored.items()}
    fetched: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for at in stored:
        fetched[at[:3]].add(at.partition)
    for each in log.history.committed:
        if each.outcome != OK or each.end_us is None:
            continue
        offsets = dict(each.offsets)
        name = each.group, each.topic, each.topic_id
        for partition in sorted(offsets.keys() | fetched[name]):
            at, offset = _Group(*name, partition), offsets.get(partition)
            floor = floors[at].before(each.start_us, each.end_us) if at in floors else None
            if offset is None:
                if floor is not None and (each.topic, each.topic_id) not in log.deleted:
                    yield Violation("commit lost", f"{at}: {floor} was acked, nothing is stored")
            elif at not in floors or not floors[at].may_be(offset, each.end_us):
                yield Violation("commit from nowhere", f"{at}: {offset} was never committed")
            elif floor is not None and offset < floor:
                yield Violation("commit went back", f"{at}: {floor} was acked, {offset} is stored")
    for at, commits in stored.items():
        for each in commits:
            floor = floors[at].before(each.start_us, each.end_us)
            if each.proven and floor is not None and each.offset < floor:
                yield Violation("commit went back", f"{at}: from {floor} to {each.offset}")


class _Floors:
    """The least offset that must be stored, by time."""

    def __init__(self, commits: list[_Stored], sought: list[int]) -> None:
        self._commits = commits
        self._first: dict[int, int] = {}
        for each in commits:
            self._first.setdefault(each.offset, each.start_us)
        self._moves = sorted(sought)
        self._acked = sorted(
            (each.end_us, each.start_us, each.offset) for each in commits if each.proven
        )
        self._ends = [end_us for end_us, _, _ in self._acked]
        # The highest up to each, of those since the last move.
        self._floors: list[float] = []
        floor, move = -_NEVER, 0
        for end_us, start_us, offset in self._acked:
            while move < len(self._moves) and self._moves[move] <= end_us:
                floor, move = -_NEVER, move + 1
            settled = move == 0 or self._moves[move - 1] <= start_us
            floor = max(floor, offset) if settled else floor
            self._floors.append(floor)

    def before(self, start_us: int, end_us: float) -> float | None:
        """What was acked before a time, unless the group may have been moved since."""
        at = bisect_left(self._ends, start_us) - 1
        if at < 0 or self._floors[at] == -_NEVER:
            return None
        acked_us = self._ends[at]
        if any(acked_us <= move_us <= end_us for move_us in self._moves):
            return None
        return self._floors[at]

    def may_be(self, offset: int, end_us: float) -> bool:
        """Whether some commit of an offset had begun by a time."""
        return self._first.get(offset, _NEVER) <= end_us


def _stored(history: History) -> tuple[dict[_Group, list[_Stored]], dict[_Group, list[int]]]:
    stored: dict[_Group, list[_Stored]] = defaultdict(list)
    for commit in history.commits:
        end_us = _NEVER if commit.end_us is None else commit.end_us
        for partition, offset in commit.offsets:
            at = _Group(commit.group, commit.topic, commit.topic_id, partition)
            proven = commit.outcome == OK
            stored[at].append(
                _Stored(commit.start_us, end_us if proven else _NEVER, offset, proven)
            )
    for commits in stored.values():
        commits.sort()
    sought: dict[_Group, list[int]] = defaultdict(list)
    for each in history.assignments:
        if each.event == SOUGHT and each.group:
            for partition in each.partitions:
                at = _Group(each.group, each.topic, each.topic_id, partition)
                sought[at].append(each.time_us)
    return stored, sought
