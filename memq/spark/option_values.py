"""Values of options, from the texts that users write.

A wrong one is a ValueError or a MemqError, whose message goes on after the option and its value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memq.core.topic import check_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_JOB_ID_BYTES = 128  # a producer id has up to 200, with the words around it


def checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return what takes each text that a check lets pass."""

    def parse(text: str) -> str:
        check(text)
        return text

    return parse


def parse_topics(text: str) -> tuple[str, ...]:
    """Names of topics."""
    names = _names(text, "topics")
    for name in names:
        check_topic_name(name)
    return names


def parse_pattern(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as exc:
        raise ValueError(f"is no regular expression: {exc}") from exc


def parse_count(text: str) -> int:
    """A number, 1 or more."""
    if not text.strip().isdigit() or not int(text):
        raise ValueError("must be a whole number, 1 or more")
    return int(text)


def parse_job_id(text: str) -> str:
    """The name of a write."""
    if not 0 < len(text.encode()) <= MAX_JOB_ID_BYTES:
        raise ValueError(f"must have 1 to {MAX_JOB_ID_BYTES} bytes")
    return text


def parse_flag(text: str) -> bool:
    """Yes or no."""
    return choice_of("true", "false")(text) == "true"


def choice_of(*choices: str) -> Callable[[str], str]:
    """What reads one of some words, in any case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return word

    return parse


def parse_columns(text: str) -> tuple[str, ...]:
    """Names of columns."""
    return _names(text, "columns")


def _names(text: str, what: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError(f"must name {what}, separated by commas")
    if len(set(names)) < len(names):
        raise ValueError(f"names a {what.removesuffix('s')} twice")
    return names
