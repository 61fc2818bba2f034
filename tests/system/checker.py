"""What must hold of what was read, given what was written and acked.

Kinds of violation: *lost* (acked, not there), *doubled* (there twice), *damaged* (there, but other
bytes), *phantom* (there, but never written), *misordered* (in an ordered topic), *misplaced* (not
where its ack said), *miscounted* (notification, index and data disagree), *unsound* (an object that
does not verify), *offsets*, *refused* (an error that no producer deserved); and from the follower
*changed*, *watermark* and *commits*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from memq.core.format.batch import ProducerRun
from tests.system.ledger import MessageName, Name, name_in, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.system.follower import Seen
    from tests.system.ledger import Ledger

Violation = tuple[str, str]


class _Found(NamedTuple):
    """A LogMessage as it was found: where, and in which Message."""

    seen: Seen
    message: MessageName


def check(ledger: Ledger, topics: dict[str, dict], read: dict[str, list[Seen]]) -> list[Violation]:
    """Every violation.

    Args:
        ledger: of the producers.
        topics: options by name.
        read: every Batch of each topic, by read partition and offset.
    """
    found: dict[Name, list[_Found]] = defaultdict(list)
    places: dict[MessageName, list[Seen]] = defaultdict(list)
    violations: list[Violation] = [("refused", text) for text in ledger.refused]
    for topic, batches in read.items():
        violations += _check_offsets(topic, batches)
        for seen in batches:
            violations += _check_counts(topic, seen)
            violations += _take_apart(topic, seen, ledger, found, places)
        if topics[topic]["ordering"] == "producer":
            violations += _check_order(topic, batches)
    violations += _check_names(ledger, found)
    violations += _check_places(ledger, topics, found, places)
    return violations


def _check_offsets(topic: str, batches: Sequence[Seen]) -> Iterator[Violation]:
    following: dict[int, Seen] = {}
    for seen in batches:
        before = following.get(seen.partition)
        following[seen.partition] = seen
        if before is None:
            continue
        where = f"{topic}/{seen.partition}: offset {seen.offset}"
        if seen.offset != before.offset + 1:
            yield "offsets", f"{where} follows {before.offset}"
        if seen.timestamp_ms < before.timestamp_ms:
            yield "offsets", f"{where} is of {seen.timestamp_ms}, after {before.timestamp_ms}"
    ids = Counter(seen.notification.batch_id for seen in batches)
    uris = Counter(seen.notification.uri for seen in batches)
    for name, count in (ids + uris).items():
        if count > 1:
            yield "doubled", f"{topic}: {count} notifications of {name}"


def _check_counts(topic: str, seen: Seen) -> Iterator[Violation]:
    """Notification = index = data."""
    note = seen.notification
    where = f"{topic}/{seen.partition}: offset {seen.offset}"
    for finding in seen.findings:
        yield "unsound", f"{where}: {finding}"
    if seen.findings:
        return
    records = [entry.records for entry in seen.entries]
    stamps = [row.timestamp_us for rows in seen.rows for row in rows]
    claimed = {
        "topic": (note.topic, topic),
        "size": (note.size_bytes, seen.size_bytes),
        "Messages": (note.messages, len(seen.entries)),
        "records": (note.records, sum(records)),
        "records of Messages": (records, [len(rows) for rows in seen.rows]),
        "timestamps": ((note.min_timestamp_us, note.max_timestamp_us), (min(stamps), max(stamps))),
        "runs": (sorted(note.producers, key=_run_order), _runs(seen)),
        "stored_through": (note.stored_through_ms, note.sealed_ms),
    }
    for what, (said, is_) in claimed.items():
        if said != is_:
            yield "miscounted", f"{where}: {what}: {said} is said, {is_} is there"


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


def _take_apart(
    topic: str,
    seen: Seen,
    ledger: Ledger,
    found: dict[Name, list[_Found]],
    places: dict[MessageName, list[Seen]],
) -> Iterator[Violation]:
    """Note each LogMessage and Message of a Batch, and compare contents with what was written."""
    for entry, rows in zip(seen.entries, seen.rows, strict=True):
        message = MessageName(
            topic,
            seen.notification.write_partition,
            entry.producer_id,
            entry.epoch,
            entry.sequence,
        )
        places[message].append(seen)
        for row in rows:
            name = name_in(row.value)
            written = None if name is None else ledger.written.get(name.label)
            if name is None or written is None or name.number >= written.count:
                yield "phantom", f"offset {seen.offset}: {message}: {row.value!r:.80}"
                continue
            found[name].append(_Found(seen, message))
            if written.topic != topic or row != row_of(name, written.sizes):
                yield "damaged", f"{topic}/{seen.partition}, {seen.offset}: {name} is {row!r:.200}"


def _check_order(topic: str, batches: Sequence[Seen]) -> Iterator[Violation]:
    """Along a read partition each producer's numbers grow; each producer has one partition."""
    last: dict[str, tuple[int, int]] = {}
    for seen in sorted(batches, key=lambda seen: (seen.partition, seen.offset)):
        for rows in seen.rows:
            for name in filter(None, (name_in(row.value) for row in rows)):
                partition, number = last.get(name.label, (seen.partition, -1))
                last[name.label] = (seen.partition, name.number)
                if partition != seen.partition:
                    yield "misordered", f"{topic}: {name} is in partition {seen.partition} as well"
                elif name.number <= number:
                    yield "misordered", f"{topic}: {name} came after {number}"


def _check_names(ledger: Ledger, found: dict[Name, list[_Found]]) -> Iterator[Violation]:
    for name in sorted(ledger.acked - found.keys()):
        yield "lost", f"{name} was acked, and is not there"
    for name, places in found.items():
        if len(places) > 1:
            offsets = [(each.seen.partition, each.seen.offset) for each in places]
            yield "doubled", f"{name} is at {offsets}"


def _check_places(
    ledger: Ledger,
    topics: dict[str, dict],
    found: dict[Name, list[_Found]],
    places: dict[MessageName, list[Seen]],
) -> Iterator[Violation]:
    """Every ack, of an original or of a duplicate, names the place where the Message is."""
    for message, acks in ledger.places.items():
        true = {
            (seen.partition, seen.offset, seen.notification.batch_id)
            for seen in places.get(message, [])
        }
        for ack in acks:
            said = (ack.partition, ack.offset, ack.batch_id)
            # Only of what retention has removed the broker cannot say where it was.
            unknown = ack.duplicate and said == (-1, -1, "") and "retention" in topics[ack.topic]
            if true and said not in true and not unknown:
                yield "misplaced", f"{message} was acked at {said}, and is at {true}"
        # Two lives of a stable producer may wait for the same Message: both acks name one place.
        originals = {(ack.partition, ack.offset) for ack in acks if not ack.duplicate}
        if len(originals) > 1:
            yield "doubled", f"{message} was acked as new at {originals}"
    for name, message in ledger.inside.items():
        if name in found and message not in {each.message for each in found[name]}:
            yield "misplaced", f"{name} was acked in {message}, and is in {found[name][0].message}"
