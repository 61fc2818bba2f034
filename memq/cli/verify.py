"""What `memq batch verify` finds: in an object, and between it and its notification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memq.cli.output import show_one, show_rows
from memq.core.format.batch import producer_runs
from memq.core.format.index import decode_tail
from memq.core.format.verify import VerifyReport, verify
from memq.core.storage.open import open_uri
from memq.errors import CorruptDataError, MemqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.cli.output import Row
    from memq.cli.published import Published
    from memq.core.notification.notification import Notification


class Verdict(NamedTuple):
    """What was found in one object.

    Attributes:
        findings: what does not hold, one sentence each; empty for a sound Batch.
        size_bytes: of the object; 0 when it cannot be read.
        messages: in it.
        records: in it.
    """

    findings: list[str]
    size_bytes: int = 0
    messages: int = 0
    records: int = 0


class Findings:
    """What was found in some objects.

    Attributes:
        totals: Batches checked, their Messages, records and bytes.
        damaged: one row for each finding.
    """

    def __init__(self) -> None:
        self.totals = {"batches": 0, "messages": 0, "records": 0, "size_bytes": 0}
        self.damaged: list[Row] = []

    def check(self, uri: str, published: Published | None = None) -> None:
        """Check one object."""
        partition, offset, about = published or (None, None, None)
        verdict = verify_object(uri, about)
        self.totals["batches"] += 1
        self.totals["messages"] += verdict.messages
        self.totals["records"] += verdict.records
        self.totals["size_bytes"] += verdict.size_bytes
        self.damaged += [
            {"partition": partition, "offset": offset, "uri": uri, "finding": finding}
            for finding in verdict.findings
        ]

    def forget_expired(self, starts: dict[int, int]) -> None:
        """Leave out what retention has removed by now; it may have gone while it was read."""
        self.damaged = [row for row in self.damaged if row["offset"] >= starts[row["partition"]]]

    def show(self, output: str) -> None:
        """Print it.

        Raises:
            CorruptDataError: something is damaged.
        """
        if output == "json":
            show_one(self.totals | {"damaged": self.damaged}, output)
        else:
            if self.damaged:
                show_rows(self.damaged, ["partition", "offset", "finding", "uri"], output)
            show_one(self.totals, output)
        count = len({row["uri"] for row in self.damaged})
        if count:
            raise CorruptDataError(f"{count} of {self.totals['batches']} Batches are damaged")


def verify_object(uri: str, notification: Notification | None = None) -> Verdict:
    """Read an object and check every byte; and that it is the one that its notification names.

    Whatever is wrong with it is a finding, also that it cannot be read.
    """
    try:
        storage, key = open_uri(uri)
        data = storage.get(key)
    except MemqError as exc:
        return Verdict([str(exc)])
    report = verify(data)
    findings = list(report.findings)
    if report.ok and notification is not None:
        findings += _disagreements(notification, memoryview(data), report)
    return Verdict(findings, report.size_bytes, report.messages, report.records)


def _disagreements(
    notification: Notification, view: memoryview, report: VerifyReport
) -> Iterator[str]:
    index = decode_tail(view, len(view))
    actual: dict[str, Any] = {
        "batch_id": index.metadata.batch_id,
        "topic": index.metadata.topic,
        "write_partition": index.metadata.write_partition,
        "size_bytes": report.size_bytes,
        "index_offset": index.offset,
        "messages": report.messages,
        "records": report.records,
        "producers": producer_runs(index.entries),
    }
    for name, value in actual.items():
        said = getattr(notification, name)
        if said != value:
            yield f"its notification says {name} = {said!r}; it is {value!r}"
