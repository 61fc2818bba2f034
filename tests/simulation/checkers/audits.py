"""An audit names exactly what was destroyed."""

from collections.abc import Iterable, Iterator

from tests.simulation.checkers.log import Log
from tests.simulation.checkers.violation import Violation
from tests.simulation.history import CLEAN, UNCLEAN, Audit, Key, Loss, Name, Run

MAX_NAMED = 100_000  # sequences of a run that are compared


def inexact_audits(log: Log) -> Iterator[Violation]:
    """An audit is clean over a loss, or names what was not destroyed."""
    for audit in log.history.audits:
        about_it = audit.topic, audit.topic_id
        losses = [
            loss
            for loss in log.history.losses
            if (loss.topic, loss.topic_id) == about_it and loss.time_us <= audit.end_us
        ]
        # Without acks=all a crash may lose what was reported as sent: then the audit is right.
        may = {
            send.name
            for send in log.history.sends
            if send.acks != "all" and (send.topic, send.topic_id) == about_it
        }.union(*(loss.names for loss in losses))
        if log.history.steps:  # clocks may be further apart than an audit can allow for
            may |= _expired(log, audit)
        named = set(_names(audit.lost))
        about = f"{audit.process}: audit of {audit.topic} ({audit.topic_id}) at {audit.start_us}"
        if audit.verdict == CLEAN and (named or any(_is_due(log, audit, loss) for loss in losses)):
            yield Violation("audit clean over a loss", f"{about}: {_some(may)}")
        if named - may:
            yield Violation("audit false alarm", f"{about} named {_some(named - may)}")
        elif audit.verdict == UNCLEAN and not may:
            yield Violation("audit false alarm", f"{about}: {'; '.join(audit.wrong) or 'no word'}")


def _is_due(log: Log, audit: Audit, loss: Loss) -> bool:
    """Whether an audit must find a loss: it lasted for all of the audit."""
    key = Key(loss.topic, loss.topic_id, loss.partition)
    return loss.time_us <= audit.start_us and not log.gone(key, loss.offset, audit.end_us)


def _expired(log: Log, audit: Audit) -> set[Name]:
    """What retention has removed by the end of an audit."""
    about_it = audit.topic, audit.topic_id
    return {
        send.name
        for send in log.history.sends
        if (send.topic, send.topic_id) == about_it
        and log.gone(Key(*about_it, send.partition), send.offset, audit.end_us)
    }


def _names(runs: Iterable[Run]) -> Iterator[Name]:
    for write_partition, producer_id, epoch, first, last in runs:
        for sequence in range(first, min(last, first + MAX_NAMED) + 1):
            yield Name(write_partition, producer_id, epoch, sequence)


def _some(names: set[Name]) -> str:
    return ", ".join(map(str, sorted(names)[:5])) or "what nobody reported"
