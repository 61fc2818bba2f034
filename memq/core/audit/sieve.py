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
from typing import TYPE_CHECKING

from memq.core.audit.reports import CRC_MODULUS, MAX_NUMBER, ProducerName
from memq.core.audit.result import ProducerAudit
from memq.core.ranges import IntervalSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.core.audit.reports import ProducedReport, SequenceRun
    from memq.core.format.batch import ProducerRun

MAX_GAPS = 1_000  # of a producer that are kept until something fills them; more make it suspect
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
        name, first, end = report.name, report.first, report.last + 1
        row = self._row(name)
        numbers = self._numbers
        reported_end = numbers[row + 3]
        sound = not report.failed and report.records < MAX_NUMBER >> 20
        if not sound or first != (reported_end if reported_end >= 0 else first):
            self.suspects.add(name)
            return
        if reported_end < 0:
            numbers[row + 2] = first
        numbers[row + 3] = end
        if judged:
            if numbers[row + 1] < 0:
                numbers[row] = numbers[row + 4] = first
            elif numbers[row + 1] != first:
                self.suspects.add(name)
                return
            numbers[row + 1] = end
            numbers[row + 5] += report.records
            numbers[row + 6] += report.records
            at = row // _NUMBERS
            self._crcs[at] = (self._crcs[at] + report.crc_sum) % CRC_MODULUS

    def needs(self, write_partition: int, run: ProducerRun, *, in_window: bool) -> bool:
        """Whether the Messages of a run must be told; see `ProducedReconciliation.needs`."""
        name = ProducerName(write_partition, run.producer_id, run.epoch)
        at = self._rows.get(name)
        if at is None or name in self.suspects:
            return in_window and at is None
        first, end, reported_first, reported_end, *_ = self._numbers[at : at + _NUMBERS]
        if first <= run.last and run.first < end:
            return True
        return in_window and not reported_first <= run.first <= run.last < reported_end

    def unreadable(
        self, write_partition: int, run: ProducerRun, *, gone: bool, in_window: bool
    ) -> None:
        """These Messages must be looked at closely: they cannot be read."""
        del gone, in_window  # it is the same to a suspect
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
            if self._ahead and row in self._ahead:
                self._close_gap(row)
        elif sequence < found_end or not self._is_ahead(row, sequence):
            self.suspects.add(name)
            return
        numbers[row + 6] -= records
        at = row // _NUMBERS
        self._crcs[at] = (self._crcs[at] - crc32c) % CRC_MODULUS

    # -- findings ---------------------------------------------------------------------------

    def producers(self) -> Iterator[ProducerAudit]:
        """The counts of those that are no suspects; all others are suspects from now on."""
        nothing: list[SequenceRun] = []  # one for all of them: there may be a million
        for name, row in self._rows.items():
            first, end, _, _, found_end, records, missing, unreported, unreported_records = (
                self._numbers[row : row + _NUMBERS]
            )
            if end >= 0 and (found_end, missing, self._crcs[row // _NUMBERS]) != (end, 0, 0):
                self.suspects.add(name)
            if name in self.suspects or (end < 0 and not unreported):
                continue
            messages = max(0, end - first)
            yield ProducerAudit(
                name,
                messages,
                records,
                messages,
                records,
                *(nothing, 0, nothing, 0, nothing, nothing, nothing, nothing, 0),
                unreported,
                unreported_records,
            )

    # -- inside -----------------------------------------------------------------------------

    def _row(self, name: ProducerName) -> int:
        """Where the numbers of a producer begin."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._numbers)
            # Judged sequences and all that are reported, each with its end; how far the judged
            # ones are found; records of these, and those not found yet; what no report names.
            self._numbers.extend((0, -1, 0, -1, 0, 0, 0, 0, 0))
            self._crcs.append(0)
        return row

    def _is_ahead(self, row: int, sequence: int) -> bool:
        """Keep a Message that was found after a gap; False when it was before, or gaps are many."""
        ahead = self._ahead.setdefault(row, IntervalSet())
        if sequence in ahead or len(ahead) > MAX_GAPS:
            return False
        ahead.add(sequence, sequence + 1)
        return True

    def _close_gap(self, row: int) -> None:
        ahead = self._ahead[row]
        if ahead.starts and ahead.starts[0] == self._numbers[row + 4]:
            self._numbers[row + 4] = ahead.pop_first().end
        if not ahead.starts:
            del self._ahead[row]
