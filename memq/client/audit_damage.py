"""What an audit could not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.client.source import Place

MAX_DAMAGE = 10_000  # sentences of a few hundred bytes; more is a storage that is gone as a whole


class Damage:
    """Collects what could not be read, as sentences; past `MAX_DAMAGE` it only counts."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._gone: list[tuple[Place, str]] = []
        self._more = 0

    def add(self, place: Place, line: str, *, gone: bool = False) -> None:
        """Keep a sentence about the Batch at a place.

        Args:
            place: of its notification.
            line: the sentence.
            gone: it is that the object does not exist.
        """
        if len(self._lines) + len(self._gone) >= MAX_DAMAGE:
            self._more += 1
        elif gone:
            self._gone.append((place, line))
        else:
            self._lines.append(line)

    def lines(self, starts: Mapping[int, int]) -> list[str]:
        """What was kept, but for objects that retention has removed meanwhile.

        Args:
            starts: first offset that is held now, by partition.
        """
        gone = [line for place, line in self._gone if place.offset >= starts[place.partition]]
        more = [f"and {self._more} more objects that could not be read"] if self._more else []
        return [*gone, *self._lines, *more]
