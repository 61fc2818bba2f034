"""Retention removes nothing early and in the right order, and at the end nothing is left behind."""

from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import DELETE, OK, Key, Left, TopicChange


def early_removals(log: Log) -> Iterator[Violation]:
    """Something was removed before its retention was over, or an object before its notification."""
    changes = _changes(log)
    notified: dict[tuple[Key, int], int] = {}
    for each in log.history.removals:
        if each.what == "notification":
            notified[Key(each.topic, each.topic_id, each.partition), each.offset] = each.time_us
    for each in log.history.removals:
        name = each.topic, each.topic_id
        where = f"{each.what} {each.topic}/{each.partition} ({each.topic_id}) {each.offset}"
        if log.deleted.get(name, each.time_us + 1) <= each.time_us:
            continue
        since_us = each.begun_us if each.published_us is None else each.published_us
        age_us = each.time_us - since_us + log.history.clock_error_us
        retention_us = _least_retention_us(changes[name], each.time_us)
        if retention_us is not None and age_us < retention_us:
            text = f"{where} was removed {age_us} us old; retention is {retention_us} us"
            yield Violation("removed early", text)
        at = Key(*name, each.partition), each.offset
        named = each.what == "object" and each.published_us is not None
        if named and notified.get(at, each.time_us + 1) > each.time_us:
            yield Violation("removed early", f"{where} was removed before its notification")


def left_behind(log: Log) -> Iterator[Violation]:
    """At the end there is something that nothing names and nobody will remove."""
    changes = _changes(log)
    deleted = {
        (each.topic, each.topic_id)
        for each in log.history.topics
        if each.action == DELETE and each.outcome == OK
    }
    for each in log.history.left:
        name = each.topic, each.topic_id
        if name in deleted:
            yield _left(each, "its topic was deleted")
        elif not each.named:
            retention_us = _least_retention_us(changes[name], log.history.end_us)
            if retention_us is not None and each.written_us + retention_us < log.history.end_us:
                yield _left(each, "nothing names it, and it is older than retention")


def _left(each: Left, why: str) -> Violation:
    return Violation("left behind", f"{each.what} {each.name} of {each.topic!r}: {why}")


def _changes(log: Log) -> dict[tuple[str, str], list[TopicChange]]:
    """What was said of retention, by topic and topic id."""
    changes: dict[tuple[str, str], list[TopicChange]] = defaultdict(list)
    for each in log.history.topics:
        if each.retention_us is not None:
            changes[each.topic, each.topic_id].append(each)
    return changes


def _least_retention_us(changes: list[TopicChange], time_us: int) -> int | None:
    """The least retention that may have been in force at a time; None when none is known."""
    done = [
        each
        for each in changes
        if each.outcome == OK and each.end_us is not None and each.end_us <= time_us
    ]
    last = max(done, key=lambda each: each.start_us, default=None)
    may = [
        each
        for each in changes
        if each.start_us <= time_us
        and (each is last or each not in done or (last and each.end_us >= last.start_us))
    ]
    return min((each.retention_us for each in may), default=None)
