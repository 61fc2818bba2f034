"""What a Batch must agree with: its notification, its index, its data, and what was sent.

Everything else that must hold is judged by the checkers of `tests.simulation.checkers`, on the
history that a run records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.format.batch import ProducerRun
from tests.simulation.history import Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.follower import Seen
    from tests.system.ledger import Ledger


def contradictions(topic: str, seen: Seen, ledger: Ledger) -> Iterator[str]:
    """What does not hold of a Batch that can be read."""
    note = seen.notification
    records = [entry.records for entry in seen.entries]
    stamps = seen.timestamps_us
    claimed = {
        "topic": (note.topic, topic),
        "size": (note.size_bytes, seen.size_bytes),
        "Messages": (note.messages, len(seen.entries)),
        "records": (note.records, sum(records)),
        "records of Messages": (records, [len(values) for values in seen.values]),
        "timestamps": ((note.min_timestamp_us, note.max_timestamp_us), (min(stamps), max(stamps))),
        "runs": (sorted(note.producers, key=_run_order), _runs(seen)),
        "stored_through": (note.stored_through_ms, note.sealed_ms),
    }
    for what, (said, is_) in claimed.items():
        if said != is_:
            yield f"{what}: {said} is said, {is_} is there"
    for entry, values in zip(seen.entries, seen.values, strict=True):
        name = Name(note.write_partition, entry.producer_id, entry.epoch, entry.sequence)
        sent = ledger.sent.get((topic, name))
        if sent != values:
            yield f"{name} is not as it was sent"


def _run_order(run: ProducerRun) -> tuple[str, int, int]:
    return run.producer_id, run.epoch, run.first


def _runs(seen: Seen) -> list[ProducerRun]:
    """The producers' runs that follow from the index, by a way of its own."""
    runs: list[ProducerRun] = []
    for entry in sorted(seen.entries, key=lambda e: (e.producer_id, e.epoch, e.sequence)):
        first, records, crc_sum = entry.sequence, entry.records, entry.crc32c
        last = runs[-1] if runs else None
        if last is not None and (last.producer_id, last.epoch, last.last) == (
            entry.producer_id,
            entry.epoch,
            entry.sequence - 1,
        ):
            runs.pop()
            first, records, crc_sum = last.first, last.records + records, last.crc_sum + crc_sum
        runs.append(
            ProducerRun(entry.producer_id, entry.epoch, first, entry.sequence, records, crc_sum)
        )
    return runs
