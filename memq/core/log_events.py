"""Fields of the log lines that programs follow: what became of a broker or a write partition."""

from __future__ import annotations

from typing import Any

FIELDS = "memq_fields"
"""Attribute of a log record that has them."""


def event(name: str, **fields: object) -> dict[str, Any]:
    """Make the `extra` of a log line that is an event."""
    return {FIELDS: {"event": name, **fields}}
