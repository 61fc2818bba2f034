"""Which windows of time were audited, so that the next run knows which were not.

An hour may go unaudited for many reasons: its wait for the watermark timed out in an outage, the
brokers did not answer the audit, Airflow was down, the DAG was paused, or Airflow left out runs at
its limit. A scheduled run audits its own window, and then every one before it that none has
audited, back to the first that any run began to audit. What was judged counts as audited, whatever
was found: a finding has failed its task, and is not told again every hour.

The record stands in the state store of an asset. That is not part of the transaction which ends the
task: a run that dies after it audited may leave its window out of the record, and then it is
audited once more.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memq.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_MADE_UP = 168  # windows that one run makes up for: a week of hours; the next run goes on


class Window(NamedTuple):
    """A window of time: milliseconds since 1970 UTC, the end not included."""

    start_ms: int
    end_ms: int


class Record:
    """The windows that were audited, as kept in a state store.

    Args:
        store: of an asset: has `get(key)` and `set(key, value)`.
        key: in it.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key

    def __repr__(self) -> str:
        return f"<Record {self._key}>"

    def read(self) -> list[Window]:
        """What was audited, as spans that do not touch, sorted.

        Raises:
            CorruptDataError: what is kept makes no sense.
        """
        kept = self._store.get(self._key)
        try:
            spans = msgspec.convert(kept or [], list[Window], strict=True)
        except msgspec.ValidationError as exc:
            raise CorruptDataError(
                f"key {self._key!r} of the asset's state store makes no sense: {exc}. Delete the "
                "key; the record then begins anew with the next window"
            ) from exc
        return joined(spans)

    def add(self, window: Window) -> None:
        """Keep that a window was audited."""
        self._store.set(self._key, [list(each) for each in joined([*self.read(), window])])


def joined(windows: Iterable[Window]) -> list[Window]:
    """Windows as spans that do not touch, sorted."""
    spans: list[Window] = []
    for each in sorted(windows):
        if spans and each.start_ms <= spans[-1].end_ms:
            spans[-1] = Window(spans[-1].start_ms, max(spans[-1].end_ms, each.end_ms))
        else:
            spans.append(each)
    return spans


def left_out(audited: Iterable[Window], own: Window) -> list[Window]:
    """The windows before a run's own that none has audited, the oldest first.

    They are as wide as the run's own, or less at the end of a gap; `MAX_MADE_UP` at most. Nothing
    is known of what lies before the first window that was audited.
    """
    width_ms = own.end_ms - own.start_ms
    found: list[Window] = []
    for before, after in pairwise(joined([*audited, own])):
        gap = Window(before.end_ms, min(after.start_ms, own.start_ms))
        for start_ms in range(gap.start_ms, gap.end_ms, width_ms):
            if len(found) == MAX_MADE_UP:
                return found
            found.append(Window(start_ms, min(start_ms + width_ms, gap.end_ms)))
    return found
