"""The options that `BigArray` and what is built on it share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

Sync = Literal["none", "batch", "each"]


class ArrayOptions(TypedDict, total=False):
    """The keyword arguments of `BigArray`, which describes them."""

    page_bytes: int | None
    index_page_items: int | None
    sync: Sync
    max_mapped_pages: int
    page_ttl_s: float
    read_only: bool
    create: bool
    least_end: int
    clock_ms: Callable[[], int]
    clock_s: Callable[[], float]


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
