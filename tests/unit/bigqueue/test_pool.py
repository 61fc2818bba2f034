from __future__ import annotations

import pytest

from memq.bigqueue.layout import DATA, INDEX, Layout
from memq.bigqueue.pool import PagePool


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


def test_idle_pages_are_unmapped(pool, now_s):
    """Pages not asked for within their time to live go when another is asked for."""
    old = pool.map(DATA, 0)
    now_s[0] = 9.9
    young = pool.map(DATA, 1)
    now_s[0] = 10.0

    pool.map(DATA, 2)

    assert old.closed
    assert not young.closed
