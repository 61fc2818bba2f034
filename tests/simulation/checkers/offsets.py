"""An offset, once handed out, is for ever that of one Batch, and offsets only grow."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TypeVar

import numpy as np

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import OK, Batch, Key, Offsets, Watermark

Keyed = TypeVar("Keyed", Offsets, Watermark, Batch)


def reused_offsets(log: Log) -> Iterator[Violation]:
    """An offset named another Batch, or the Batch was changed."""
    first: dict[tuple[str, str, int, int], Batch] = {}
    places: dict[tuple[str, str, str], tuple[int, int]] = {}
    for each in log.history.batches:
        before = first.setdefault(each[1:5], each)
        if before.batch_id != each.batch_id:
            yield Violation(
                "offset reused", f"{_where(each)} was {before.batch_id}, is {each.batch_id}"
            )
        elif before.digest != each.digest and not _is_excused(log, each):
            yield Violation("changed", f"{_where(each)} is not what it was")
        place = each.partition, each.offset
        other = places.setdefault((each.topic, each.topic_id, each.batch_id), place)
        if other != place:
            yield Violation("duplicate", f"Batch {each.batch_id} is at {other} and at {place}")


def unsound_batches(log: Log) -> Iterator[Violation]:
    """Notification, index and data disagree, or the object cannot be read though it should."""
    told = set()
    for each in log.history.batches:
        if not each.findings or each[1:5] in told or _is_excused(log, each):
            continue
        told.add(each[1:5])
        yield Violation("unsound", f"{_where(each)}: {'; '.join(each.findings)}")


def offsets_out_of_order(log: Log) -> Iterator[Violation]:
    """Start or end of a read partition went back, or a later offset is of an earlier time."""
    for key, answers in by_key(log.history.offsets).items():
        for name in ("start", "end"):
            for low, each in gone_back(answers, attrgetter(name)):
                text = f"{name} of {key} went from {low} to {getattr(each, name)}"
                yield Violation("offsets went back", text)
    for key, batches in by_key(log.history.batches).items():
        offset = np.array([batch.offset for batch in batches], np.int64)
        stamp = np.array([batch.timestamp_ms for batch in batches], np.int64)
        order = np.lexsort((stamp, offset))
        offset, stamp = offset[order], stamp[order]
        newest = np.maximum.accumulate(stamp)
        # Brokers that share a queue have clocks of their own; each of them is in order.
        for at in np.flatnonzero(stamp < newest - log.history.clocks_differ_ms):
            yield Violation(
                "offsets out of order",
                f"offset {offset[at]} of {key} is of {stamp[at]}, after {newest[at]}",
            )


def by_key(found: Iterable[Keyed]) -> dict[Key, list[Keyed]]:
    """What was answered well about each key, in the order of recording."""
    parts: dict[tuple[str, str, int], list[Keyed]] = defaultdict(list)
    for each in found:
        if type(each) is Batch or each.outcome == OK:
            parts[each.topic, each.topic_id, each.partition].append(each)
    return {Key(*key): answers for key, answers in parts.items()}


def gone_back(answers: Iterable, value) -> Iterator[tuple[float, object]]:
    """Answers that are less than one that was complete before they were asked for, with that."""
    by_end = sorted((each.end_us, value(each)) for each in answers if each.end_us is not None)
    at, most = 0, float("-inf")
    for each in sorted(answers, key=attrgetter("start_us")):
        while at < len(by_end) and by_end[at][0] < each.start_us:
            most = max(most, by_end[at][1])
            at += 1
        if value(each) < most:
            yield most, each


def _is_excused(log: Log, batch: Batch) -> bool:
    """Whether it was destroyed on purpose, or was not read and may be gone."""
    key = Key(batch.topic, batch.topic_id, batch.partition)
    destroyed = (key, batch.offset) in log.destroyed
    return destroyed or (not batch.digest and log.excused(key, batch.offset))


def _where(batch: Batch) -> str:
    return f"{batch.topic}/{batch.partition} ({batch.topic_id}) offset {batch.offset}"
