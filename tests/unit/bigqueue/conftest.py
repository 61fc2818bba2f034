"""What the big queue tests share: small pages, and what a crash leaves behind."""

import itertools
import shutil
from pathlib import Path

import pytest

# Small pages, so that a few items already cross the borders of both kinds.
SMALL = {"page_bytes": 4096, "index_page_items": 8}


def page(path: Path, kind: str, number: int) -> Path:
    """The file of a page."""
    return path / kind / f"{number:012d}.page"


def overwrite(file: Path, offset: int, content: bytes) -> None:
    """Replace bytes of a file in place."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)


@pytest.fixture
def small() -> dict:
    """Options for an array whose pages are crossed by a handful of items."""
    return dict(SMALL)


@pytest.fixture
def crash(tmp_path):
    """Copy an array that is still open: the files exactly as a killed process leaves them."""
    numbers = itertools.count()

    def copy(path: Path) -> Path:
        target = tmp_path / f"crashed-{next(numbers)}"
        shutil.copytree(path, target)
        return target

    return copy
