"""What an audit could not read."""

from __future__ import annotations

MAX_DAMAGE = 10_000  # sentences of a few hundred bytes; more is a storage that is gone as a whole


class Damage:
    """Collects what could not be read, as sentences; past `MAX_DAMAGE` it only counts."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = 0

    def add(self, line: str) -> None:
        """Keep a sentence about a Batch."""
        if len(self._lines) < MAX_DAMAGE:
            self._lines.append(line)
        else:
            self._more += 1

    def lines(self) -> list[str]:
        """What was kept, and how much more there is."""
        more = [f"and {self._more} more objects that could not be read"] if self._more else []
        return [*self._lines, *more]
