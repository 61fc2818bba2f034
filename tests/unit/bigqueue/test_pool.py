from __future__ import annotations

import pytest

from memq.bigqueue.layout import DATA, INDEX, Layout
from memq.bigqueue.pool import PagePool
from memq.errors import CorruptDataError


@pytest.fixture
def now_s():
    """What the clock of the pool says, in a list."""
    return [0.0]


@pytest.fixture
def pool(tmp_path, now_s):
    """A pool of four pages that live for ten seconds."""
    for kind in (DATA, INDEX):
        (tmp_path / kind).mkdir()
    layout = Layout(tmp_path, 4096, 8)
    pool = PagePool(layout, max_pages=4, ttl_s=10, writable=True, clock_s=lambda: now_s[0])
    for number in range(6):
        pool.allocate(DATA, number)
    yield pool
    pool.close()


def test_the_least_recently_used_page_goes_first(pool):
    """At the bound, the page not asked for longest is unmapped, and no other."""
    maps = [pool.map(DATA, number) for number in range(4)]
    pool.map(DATA, 0)

    pool.map(DATA, 4)

    assert [mapped.closed for mapped in maps] == [False, True, False, False]
    assert len(pool) == 4


def test_idle_pages_are_unmapped(pool, now_s):
    """Pages not asked for within their time to live go when another is asked for."""
    old = pool.map(DATA, 0)
    now_s[0] = 9.9
    young = pool.map(DATA, 1)
    now_s[0] = 10.0

    pool.map(DATA, 2)

    assert old.closed
    assert not young.closed


def test_missing_and_empty_pages_are_damage(pool, tmp_path):
    """A page file that is gone or empty is a CorruptDataError that names it."""
    with pytest.raises(CorruptDataError, match=r"000000000009\.page is missing"):
        pool.map(DATA, 9)
    (tmp_path / DATA / "000000000001.page").write_bytes(b"")
    with pytest.raises(CorruptDataError, match=r"000000000001\.page is empty"):
        pool.map(DATA, 1)
