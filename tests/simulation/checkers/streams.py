"""What one reader was handed out, one after the other.

A *stream* is one reader and one key, from where it began or was sent anew. In it every known place
comes right after the one before. A poll during which the reader was given or chose another position
is a stream by itself: nobody can tell on which side of that its rows are. A read of ranges is one.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import ASSIGNED, GRANTED, GROUP, SOUGHT, Key


class Streams(NamedTuple):
    """Rows in the order of their streams.

    Attributes:
        row: the row.
        begins: whether it is the first of its stream.
        same_poll: whether the one before it was handed out by the same poll.
    """

    row: np.ndarray
    begins: np.ndarray
    same_poll: np.ndarray


def streams_of(log: Log) -> Streams:
    """The streams of a history; made once."""
    if "streams" not in log.cache:
        log.cache["streams"] = _streams_of(log)
    return log.cache["streams"]


def _streams_of(log: Log) -> Streams:
    resets: dict[tuple, list[int]] = defaultdict(list)
    for each in log.history.assignments:
        if each.event in (GRANTED, SOUGHT):
            reader = each.process, each.group, each.member, each.topic, each.topic_id
            for partition in each.partitions:
                resets[*reader, partition].append(each.time_us)
    for times in resets.values():
        times.sort()
    polls = log.history.polls
    numbers: dict[tuple, int] = {}
    of_poll = np.empty(len(polls), np.int64)
    reset_readers = {key[:-1] for key in resets}
    cut: list[int] = []  # polls of readers that were sent anew at some time
    for number, poll in enumerate(polls):
        reader = poll.process, poll.group, poll.member, poll.topic, poll.topic_id
        if poll.mode in (ASSIGNED, GROUP):
            of_poll[number] = numbers.setdefault((*reader, poll.mode), len(numbers))
            if reader in reset_readers:
                cut.append(number)
        else:
            of_poll[number] = numbers.setdefault((number,), len(numbers))
    segment = np.zeros(len(log.poll), np.int64)
    begin = np.searchsorted(log.poll, cut)
    for number, row in zip(cut, begin, strict=True):
        poll = polls[number]
        reader = poll.process, poll.group, poll.member, poll.topic, poll.topic_id
        partitions = set(poll.partitions)
        of = {
            partition: _segment(resets.get((*reader, partition)), poll) for partition in partitions
        }
        segment[row : row + len(poll.partitions)] = [of[each] for each in poll.partitions]
    stream = of_poll[log.poll]
    order = np.lexsort((np.arange(len(stream)), segment, log.key, stream))
    begins = np.ones(len(order), bool)
    same_poll = np.zeros(len(order), bool)
    if len(order):
        a, b = order[:-1], order[1:]
        begins[1:] = (
            (stream[a] != stream[b]) | (log.key[a] != log.key[b]) | (segment[a] != segment[b])
        )
        same_poll[1:] = log.poll[a] == log.poll[b]
    return Streams(order, begins, same_poll)


def _segment(times: list[int] | None, poll) -> int:
    """Even between two resets, odd for a poll that spans one."""
    if times is None:
        return 0
    return bisect_right(times, poll.start_us) + bisect_right(times, poll.end_us)


def poll_skips(log: Log) -> Iterator[Violation]:
    """A reader was handed out something, and then something behind what others have read next."""
    row, begins, same_poll = streams_of(log)
    step = np.diff(log.index[row], prepend=0)
    for at in np.flatnonzero(~begins & (step > 1)):
        before, after = row[at - 1], row[at]
        if not _all_removed(log, before, after):
            kind = "poll skip within" if same_poll[at] else "poll skip"
            yield Violation(kind, f"{log.where(before)} was followed by {log.where(after)}")


def nonmonotonic_polls(log: Log) -> Iterator[Violation]:
    """A reader was handed out something again, or something before it."""
    row, begins, same_poll = streams_of(log)
    step = np.diff(log.index[row], prepend=0)
    for at in np.flatnonzero(~begins & (step < 1)):
        kind = "non-monotonic poll within" if same_poll[at] else "non-monotonic poll"
        yield Violation(kind, f"{log.where(row[at - 1])} was followed by {log.where(row[at])}")


def inexact_ranges(log: Log) -> Iterator[Violation]:
    """A read of ranges brought something outside them, or left out what others have read there."""
    order = np.lexsort((log.position, log.offset, log.key))
    key, offset, place = log.key[order], log.offset[order], log.place[order]
    numbers = {each: number for number, each in enumerate(log.keys)}
    begins = np.searchsorted(key, np.arange(len(log.keys) + 1))
    first = np.searchsorted(log.poll, np.arange(len(log.history.polls) + 1))
    for number, poll in enumerate(log.history.polls):
        if not poll.asked:
            continue
        inside = 0
        for asked in poll.asked:
            known = numbers.get(Key(poll.topic, poll.topic_id, asked.partition))
            if known is None:
                continue
            part = slice(begins[known], begins[known + 1])
            start, end = np.searchsorted(offset[part], [asked.start, asked.end]) + part.start
            mine = slice(first[number], first[number + 1])
            got = (log.key[mine] == known) & (log.offset[mine] >= asked.start)
            got &= log.offset[mine] < asked.end
            inside += int(got.sum())
            missing = np.setdiff1d(place[start:end], log.place[mine][got])
            for one in missing[:1]:
                at = order[start + int(np.searchsorted(place[start:end], one))]
                yield Violation("inexact range", f"{asked} came without {log.where(at)}")
        if inside != len(poll.values):
            yield Violation(
                "inexact range", f"{poll.process}: {poll.asked} came with more than was asked for"
            )


def _all_removed(log: Log, before: int, after: int) -> bool:
    """Whether all that lies between two rows of a key was removed by then, or destroyed."""
    between = (
        (log.key == log.key[before])
        & (log.index > log.index[before])
        & (log.index < log.index[after])
    )
    key, end_us = log.keys[log.key[before]], log.history.polls[log.poll[after]].end_us
    return all(
        (key, offset) in log.destroyed or log.gone(key, offset, end_us)
        for offset in map(int, np.unique(log.offset[between]))
    )
