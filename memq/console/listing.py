"""Lists as pages: filtered by name, sorted by a column, cut into pages; all by the address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROWS = 100  # of a page
MAX_FIND = 250  # characters


@dataclass(frozen=True)
class Listing:
    """A page of a list.

    Attributes:
        rows: of this page.
        total: rows of all pages, after filtering.
        page: number of this page, from 1.
        pages: how many there are.
        sort: column that sorts.
        is_falling: whether the greatest comes first.
        find: text that names have.
        more: other parts of the query, which links keep.
    """

    rows: Sequence[Any]
    total: int
    page: int
    pages: int
    sort: str
    is_falling: bool
    find: str
    more: Mapping[str, str]

    def link(self, *, sort: str = "", page: int = 1) -> str:
        """Return the query of the same list, sorted by a column, or at another page."""
        falling = self.is_falling
        if sort:
            falling = not self.is_falling if sort == self.sort else True
        query = {"sort": sort or self.sort, "down": str(int(falling)), "find": self.find}
        return "?" + urlencode({**self.more, **query, "page": str(page)})


def listing(
    rows: Sequence[Any],
    query: Mapping[str, str],
    columns: Sequence[str],
    names: Sequence[str],
    more: Sequence[str] = (),
) -> Listing:
    """Cut a page out of rows.

    What is not known comes last, whichever way a column is sorted.

    Args:
        rows: with the columns as attributes.
        query: `sort`, `down`, `find` and `page`; what makes no sense is left out.
        columns: that may sort; the first does by itself.
        names: columns that `find` looks into.
        more: other parts of the query that links keep.
    """
    sort = query.get("sort", "")
    if sort not in columns:
        sort, falling = columns[0], False
    else:
        falling = query.get("down") == "1"
    find = query.get("find", "").strip()[:MAX_FIND]
    found = [row for row in rows if any(find in getattr(row, name) for name in names)]
    known = [row for row in found if getattr(row, sort) is not None]
    known.sort(key=lambda row: getattr(row, sort), reverse=falling)
    ordered = known + [row for row in found if getattr(row, sort) is None]
    pages = max(1, -(-len(ordered) // ROWS))
    asked = query.get("page", "")
    page = (
        min(max(1, int(asked)), pages)
        if asked.isascii() and asked.isdigit() and len(asked) < 7
        else 1
    )
    kept = {name: query[name] for name in more if query.get(name)}
    shown = ordered[(page - 1) * ROWS : page * ROWS]
    return Listing(shown, len(ordered), page, pages, sort, falling, find, kept)
