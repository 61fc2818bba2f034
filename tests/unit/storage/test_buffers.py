"""Buffers of objects, compared with what is stored."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest

from memq.runtime.files import opened, read_exactly, write_durably
from memq.storage.buffers import COMPARE_BYTES, same_bytes, views_of

CONTENT = random.Random(1).randbytes(3_000_000)


@pytest.fixture(params=["file", "memory"])
def read(request, tmp_path):
    """Reads the content, from a file or from memory."""
    if request.param == "memory":
        yield lambda start, length: memoryview(CONTENT)[start : start + length]
        return
    write_durably(tmp_path / "f", [memoryview(CONTENT)])
    with opened(tmp_path / "f") as (fd, _):
        yield partial(read_exactly, fd)


def test_same_bytes_compares_size_and_content(read):
    """An object equals buffers however they are cut, and differs by one byte anywhere."""
    size_bytes = len(CONTENT)
    for cuts in ([], [1], [COMPARE_BYTES], [5, 2_999_999]):
        edges = [0, *cuts, size_bytes]
        views = [memoryview(CONTENT)[a:b] for a, b in itertools.pairwise(edges)]
        assert same_bytes(read, size_bytes, views)
    for place in (0, COMPARE_BYTES, 2_999_999):
        other = bytearray(CONTENT)
        other[place] ^= 1
        assert not same_bytes(read, size_bytes, [memoryview(other)])
    assert not same_bytes(read, size_bytes, [memoryview(CONTENT)[:-1]])
    assert not same_bytes(read, size_bytes - 1, [memoryview(CONTENT)])


def test_views_leave_out_what_is_empty():
    """No view is empty, and all are of bytes."""
    views = views_of([b"", memoryview(b"abcd").cast("i"), bytearray(), b"e"])
    assert [bytes(view) for view in views] == [b"abcd", b"e"]
    assert [view.nbytes for view in views] == [len(view) for view in views]
