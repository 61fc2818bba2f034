"""Which producers an audit need not look at closely: all they reported is stored, and just once.

Of most producers nothing is to be said but counts. This finds them in one pass, with some numbers
for each producer in a write partition, however many reports and Messages there are. About all
others it says nothing: they are *suspects*, which `memq.core.audit.produced` compares Message by
Message. So an error here costs time, or memory, and hides nothing.

A producer is none when its reports follow each other without a gap, give nothing up, and each
Message that the judged ones name was found once, as sound, with the records and CRC32Cs that they
add up to. Reports and Batches come about in the order in which they were published.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from memq.core.audit.reports import CRC_MODULUS, ProducerName
from memq.core.audit.result import ProducerAudit
from memq.core.ranges import IntervalSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.core.audit.reports import ProducedReport
    from memq.core.format.batch import ProducerRun

MAX_GAPS = 1_000  # of a producer that are kept until something fills them; more make it suspect
MAX_RECORDS = 2**40  # of one report; a million of them fit 64 bits
_NUMBERS = 9  # for each row; see `_add_row`


class ProducerSieve:
    """Tells suspects from the others; give it all reports, then all Batches that it needs.

    Attributes:
        suspects: names of the producers that must be looked at closely.
    """

    def __init__(self) -> None:
        self.suspects: set[ProducerName] = set()
        self._rows: dict[ProducerName, int] = {}
        self._numbers = array("q")  # of each row: its judged, then all its reported sequences, …
        self._crcs = array("Q")
        self._ahead: dict[int, IntervalSet] = {}  # found after a gap

    def __repr__(self) -> str:
        return f"<ProducerSieve [{len(self._rows)} producers, {len(self.suspects)} suspects]>"

    # -- what is told -----------------------------------------------------------------------

    def report(self, report: ProducedReport, *, judged: bool) -> None:
        """Take in a report."""
        name, first, numbers = report.name, report.first, self._numbers
        row = self._row(name)
        follows = numbers[row + 3] in (first, -1) and (
            not judged or numbers[row + 1] in (first, -1)
        )
        if report.failed or report.records > MAX_RECORDS or not follows:
            self.suspects.add(name)
            return
        for at in (0, 2) if judged else (2,):
            if numbers[row + at + 1] < 0:
                numbers[row + at] = first
            numbers[row + at + 1] = report.last + 1
        if judged:
            numbers[row + 4] = numbers[row]
            numbers[row + 5] += report.records
            self._count(row, -report.records, -report.crc_sum)

    def needs(self, write_partition: int, run: ProducerRun, *, in_window: bool) -> bool:
        """Return whether the Messages of a run must be told; see `ProducedReconciliation.needs`."""
        name = ProducerName(write_partition, run.producer_id, run.epoch)
        at = self._rows.get(name)
        if at is None or name in self.suspects:
            return in_window and at is None
        first, end, reported_first, reported_end, *_ = self._numbers[at : at + _NUMBERS]
        if first <= run.last and run.first < end:
            return True
        return in_window and not reported_first <= run.first <= run.last < reported_end

    def unreadable(self, write_partition: int, run: ProducerRun, **_: bool) -> None:
        """Record that these Messages must be looked at closely: they cannot be read."""
        self.suspects.add(ProducerName(write_partition, run.producer_id, run.epoch))

    def stored(
        self, name: ProducerName, sequence: int, records: int, crc32c: int, *, in_window: bool
    ) -> None:
        """Take in a Message that was found sound."""
        row = self._row(name)
        numbers = self._numbers
        if not numbers[row] <= sequence < numbers[row + 1]:
            if in_window and not numbers[row + 2] <= sequence < numbers[row + 3]:
                numbers[row + 7] += 1
                numbers[row + 8] += records
            return
        found_end = numbers[row + 4]
        if sequence == found_end:
            numbers[row + 4] = sequence + 1
            ahead = self._ahead.get(row) if self._ahead else None
            if ahead and ahead.starts[0] == sequence + 1:
                numbers[row + 4] = ahead.pop_first().end
        else:
            ahead = self._ahead.setdefault(row, IntervalSet())
            if sequence < found_end or sequence in ahead or len(ahead) > MAX_GAPS:
                self.suspects.add(name)
                return
            ahead.add(sequence, sequence + 1)
        self._count(row, records, crc32c)

    # -- findings ---------------------------------------------------------------------------

    def producers(self) -> Iterator[ProducerAudit]:
        """Yield the counts of those that are no suspects; all others are suspects from now on."""
        findings = ("lost", "damaged", "recovered", "duplicated", "changed", "expired")
        nothing: dict[str, Any] = {finding: [] for finding in findings}  # for up to a million
        for name, row in self._rows.items():
            first, end, _, _, found_end, records, *counts = self._numbers[row : row + _NUMBERS]
            excess, unreported, unreported_records = counts
            if end >= 0 and (found_end, excess, self._crcs[row // _NUMBERS]) != (end, 0, 0):
                self.suspects.add(name)
            if name not in self.suspects and (end >= 0 or unreported):
                sound = (max(0, end - first), records) * 2  # as many stored as produced
                audit = ProducerAudit(name, *sound, **nothing)
                audit.unreported_messages = unreported
                audit.unreported_records = unreported_records
                yield audit

    # -- inside -----------------------------------------------------------------------------

    def _count(self, row: int, records: int, crc: int) -> None:
        """Add what was found, or with negative signs what was reported."""
        self._numbers[row + 6] += records
        at = row // _NUMBERS
        self._crcs[at] = (self._crcs[at] + crc) % CRC_MODULUS

    def _row(self, name: ProducerName) -> int:
        """Return where the numbers of a producer begin."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._numbers)
            # Judged sequences and all that are reported, each with its end; how far the judged
            # ones are found; their records; how many more were found; what no report names.
            self._numbers.extend((0, -1, 0, -1, 0, 0, 0, 0, 0))
            self._crcs.append(0)
        return row
