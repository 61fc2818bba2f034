from __future__ import annotations

import pytest

from memq.core.bigqueue.layout import DATA, INDEX, Layout
from memq.core.bigqueue.pool import PagePool
from memq.errors import ClosedError, CorruptDataError


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    """A clock at zero."""
    return Clock()


@pytest.fixture
def pool(tmp_path, clock):
    """A pool of four pages that live for ten seconds."""
    for kind in (DATA, INDEX):
        (tmp_path / kind).mkdir()
    layout = Layout(tmp_path, 4096, 8)
    pool = PagePool(layout, max_pages=4, ttl_s=10, writable=True, clock_s=clock)
    for number in range(6):
        pool.allocate(DATA, number)
    yield pool
    pool.close()


def test_a_page_is_mapped_once(pool):
    """Asking again gives the same map."""
    assert pool.map(DATA, 0) is pool.map(DATA, 0)
    assert len(pool) == 1


def test_the_least_recently_used_page_goes_first(pool):
    """At the bound, the page not asked for longest is unmapped, and no other."""
    maps = [pool.map(DATA, number) for number in range(4)]
    pool.map(DATA, 0)

    pool.map(DATA, 4)

    assert [mapped.closed for mapped in maps] == [False, True, False, False]
    assert len(pool) == 4


def test_idle_pages_are_unmapped(pool, clock):
    """Pages not asked for within their time to live go when another is asked for."""
    old = pool.map(DATA, 0)
    clock.now_s = 9.9
    young = pool.map(DATA, 1)
    clock.now_s = 10.0

    pool.map(DATA, 2)

    assert old.closed
    assert not young.closed


def test_what_was_written_survives_unmapping(pool):
    """An unmapped page keeps its content for the next map."""
    pool.map(DATA, 0)[:5] = b"hello"
    pool.unmap(DATA, 0)

    assert pool.map(DATA, 0)[:5] == b"hello"


def test_allocating_keeps_content_and_says_whether_it_grew(pool, tmp_path):
    """A page that exists is left alone; one that is too short is filled up."""
    pool.map(DATA, 0)[:5] = b"hello"
    assert pool.allocate(DATA, 0) is False

    with (tmp_path / DATA / "000000000000.page").open("r+b") as file:
        file.truncate(100)

    assert pool.allocate(DATA, 0) is True
    assert pool.map(DATA, 0)[:6] == b"hello\0"
    assert len(pool.map(DATA, 0)) == 4096


def test_missing_and_empty_pages_are_damage(pool, tmp_path):
    """A page file that is gone or empty is a CorruptDataError that names it."""
    with pytest.raises(CorruptDataError, match=r"000000000009\.page is missing"):
        pool.map(DATA, 9)
    (tmp_path / DATA / "000000000001.page").write_bytes(b"")
    with pytest.raises(CorruptDataError, match=r"000000000001\.page is empty"):
        pool.map(DATA, 1)


def test_a_closed_pool_maps_nothing(pool):
    """After close every page is unmapped and stays so."""
    mapped = pool.map(DATA, 0)
    pool.close()

    assert mapped.closed
    with pytest.raises(ClosedError):
        pool.map(DATA, 0)


def test_repr_shows_the_bound(pool):
    """The pool says how many pages it maps."""
    pool.map(DATA, 0)
    assert "1 of 4 pages mapped" in repr(pool)
