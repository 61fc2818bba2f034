"""An audit names exactly what was destroyed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.violation import Violation
from tests.simulation.history import CLEAN, OK, UNCLEAN, Audit, Key, Loss, Name, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.checkers.log import Log

MAX_NAMED = 100_000  # sequences of one audit that are compared


def inexact_audits(log: Log) -> Iterator[Violation]:
    """An audit is clean over a loss, leaves a loss out, or names what was not destroyed."""
    for audit in log.history.audits:
        if audit.outcome != OK or audit.end_us is None:
            continue
        must: set[Name] = set()
        about_it = audit.topic, audit.topic_id
        # Without acks=all a crash may lose what was reported as sent: then the audit is right.
        may = {
            send.name
            for send in log.history.sends
            if send.acks != "all" and (send.topic, send.topic_id) == about_it
        }
        hidden = 0
        for loss in log.history.losses:
            if (loss.topic, loss.topic_id) != (audit.topic, audit.topic_id):
                continue
            if loss.time_us > audit.end_us:
                continue
            may |= set(loss.names)
            if _is_due(log, audit, loss):
                if loss.reported_ms is None:
                    hidden += 1
                else:
                    must |= set(loss.names)
        if log.history.steps:  # clocks may be further apart than an audit can allow for
            may |= _expired(log, audit)
        named = set(_names(audit.lost))
        about = f"{audit.process}: audit of {audit.topic} ({audit.topic_id}) at {audit.start_us}"
        if audit.verdict == CLEAN and (must or hidden or named):
            yield Violation("audit clean over a loss", f"{about}: {_some(must or may)}")
        elif must - named:
            yield Violation("audit inexact", f"{about} left out {_some(must - named)}")
        if named - may:
            yield Violation("audit false alarm", f"{about} named {_some(named - may)}")
        elif audit.verdict == UNCLEAN and not may:
            yield Violation("audit false alarm", f"{about}: {'; '.join(audit.wrong) or 'no word'}")


def _is_due(log: Log, audit: Audit, loss: Loss) -> bool:
    """Whether an audit must find a loss: it lasted for all of the audit, and is in the window."""
    assert audit.end_us is not None
    removed_us = log.removed.get(
        (Key(loss.topic, loss.topic_id, loss.partition), loss.offset), audit.end_us + 1
    )
    lasted = loss.mended_us is None or loss.mended_us > audit.end_us
    if loss.time_us > audit.start_us or not lasted or removed_us <= audit.end_us:
        return False
    if loss.reported_ms is None:
        return audit.start_ms is None and audit.end_ms is None
    begun = audit.start_ms is None or audit.start_ms <= loss.reported_ms
    return begun and (audit.end_ms is None or loss.reported_ms < audit.end_ms)


def _expired(log: Log, audit: Audit) -> set[Name]:
    """What retention has removed by the end of an audit."""
    assert audit.end_us is not None
    about_it = audit.topic, audit.topic_id
    return {
        send.name
        for send in log.history.sends
        if (send.topic, send.topic_id) == about_it
        and log.removed.get((Key(*about_it, send.partition), send.offset), audit.end_us + 1)
        <= audit.end_us
    }


def _names(runs: Iterable[Run]) -> Iterator[Name]:
    left = MAX_NAMED
    for write_partition, producer_id, epoch, first, last in runs:
        for sequence in range(first, min(last, first + left) + 1):
            yield Name(write_partition, producer_id, epoch, sequence)
        left -= min(left, last - first + 1)


def _some(names: set[Name]) -> str:
    return ", ".join(map(str, sorted(names)[:5])) or "what nobody reported"
