"""The tests that were skipped because this machine cannot run a service, told in one line."""

from __future__ import annotations

import textwrap
from collections import Counter

PROPERTY = "skipped for want of"
"""Name of the JUnit property of such a test; its value is `service: reason`."""

SHOWN_CHARACTERS = 200  # of each reason, so that all are one line


class Missing:
    """Counts such tests."""

    def __init__(self) -> None:
        self._tests: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._tests)

    def add(self, why: str) -> None:
        """Count a test; `why` is `service: reason`."""
        self._tests[textwrap.shorten(why, SHOWN_CHARACTERS, placeholder=" …")] += 1

    def line(self) -> str:
        """What is missing, with how many tests were skipped for it."""
        parts = (f"{count} for want of {why}" for why, count in sorted(self._tests.items()))
        return f"!!! TESTS WERE SKIPPED: {'; '.join(parts)} !!!"
