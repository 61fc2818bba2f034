"""Which windows of time were audited, so that the next run knows which were not.

An hour may go unaudited for many reasons: its wait for the watermark timed out in an outage, the
brokers did not answer the audit, Airflow was down, the DAG was paused, or Airflow left out runs at
its limit. A scheduled run audits its own window, and then every one before it that none has
audited, back to the first that any run began to audit. What was judged counts as audited, whatever
was found: a finding has failed its task, and is not reported again every hour.

The record is in the state store of an asset. That is not part of the transaction which ends the
task: a run that dies after it audited may leave its window out of the record, and then it is
audited once more.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from memq.core.ranges import Interval, difference, union
from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_MADE_UP = 168  # windows that one run makes up for: a week of hours; the next run goes on


class AuditedWindows:
    """The windows that were audited, in milliseconds since 1970 UTC, as kept in a state store.

    Args:
        store: of an asset: has `get(key)` and `set(key, value)`.
        key: in it.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key

    def __repr__(self) -> str:
        return f"<AuditedWindows {self._key}>"

    def read(self) -> list[Interval]:
        """Read what was audited, as intervals that do not meet, sorted.

        Raises:
            CorruptDataError: what is kept makes no sense.
        """
        kept = self._store.get(self._key)
        try:
            windows = msgspec.convert(kept or [], list[Interval], strict=True)
        except msgspec.ValidationError as exc:
            raise CorruptDataError(
                f"key {self._key!r} of the asset's state store makes no sense: {exc}. Delete the "
                "key; the record then starts over with the next window"
            ) from exc
        return union(sorted(windows))

    def add(self, window: Interval) -> None:
        """Keep that a window was audited."""
        windows = union(sorted([*self.read(), window]))
        self._store.set(self._key, [list(each) for each in windows])


def left_out(audited: Iterable[Interval], own: Interval) -> list[Interval]:
    """Return the windows before a run's own that none has audited, the oldest first.

    They are as wide as the run's own, or less at the end of a gap; `MAX_MADE_UP` at most. Nothing
    is known of what lies before the first window that was audited.
    """
    known = union(sorted(audited))
    if not known:
        return []
    width_ms = own.end - own.start
    windows = (
        Interval(start_ms, min(start_ms + width_ms, gap.end))
        for gap in difference([Interval(known[0].start, own.start)], known)
        for start_ms in range(gap.start, gap.end, width_ms)
    )
    return list(islice(windows, MAX_MADE_UP))
