"""What a checker says of a history that must not be."""

from typing import NamedTuple

MAX_EACH = 32  # violations that are kept of a kind; one mistake shows in many places


class Violation(NamedTuple):
    """Something that must not be: of which kind, and what exactly."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"
