"""SIGKILL at any moment: what a call returned for is there afterwards."""

from __future__ import annotations

import random

import pytest

from memq.core.bigqueue import BigArray, BigQueue

WRITER = """
    import sys
    from memq.core.bigqueue import BigArray
    path, sync, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    array = BigArray(path, page_bytes=65536, index_page_items=512, sync=sync)
    item = lambda n: b"%08d" % n * (n % 50)
    while True:
        end = array.end
        if batch:
            array.append_many([item(end + n) for n in range(batch)])
        else:
            array.append(item(end))
        sys.stdout.write(f"{array.end}\\n")
        sys.stdout.flush()
"""

CONSUMER = """
    import sys
    from memq.core.bigqueue import BigQueue
    queue = BigQueue(sys.argv[1], sync=sys.argv[2])
    while (item := queue.dequeue()) is not None:
        sys.stdout.write(item.decode() + "\\n")
        sys.stdout.flush()
"""


def read_then_kill(process, lines):
    """Everything that the process wrote until it was killed, after so many lines."""
    seen = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    seen += process.stdout.readlines()
    return [line.strip() for line in seen if line.endswith("\n")]


@pytest.mark.parametrize(("sync", "batch"), [("none", 0), ("none", 7), ("batch", 7), ("each", 0)])
def test_a_killed_writer_loses_nothing_it_returned_for(tmp_path, start, sync, batch):
    """Killed again and again, the array keeps each item whose append returned, in order."""
    chance = random.Random(1)
    for _ in range(5):
        writer = start(WRITER, tmp_path, sync, batch)
        reported = int(read_then_kill(writer, chance.randrange(1, 300))[-1])

        with BigArray(tmp_path) as array:
            assert array.recovery.items_dropped == 0
            assert reported <= array.end <= reported + max(1, batch)
            for first in range(0, array.end, 1000):
                items = array.get_many(first, 1000)
                expected = [b"%08d" % n * (n % 50) for n in range(first, first + len(items))]
                assert items == expected


@pytest.mark.parametrize("sync", ["none", "each"])
def test_a_killed_consumer_takes_nothing_twice(tmp_path, start, sync):
    """Items that a killed consumer had got do not come again; only one in its hands may be gone."""
    chance = random.Random(2)
    with BigQueue(tmp_path, page_bytes=4096, index_page_items=64) as queue:
        queue.enqueue_many([b"%d" % n for n in range(3000)])
    following = 0
    for _ in range(5):
        taken = read_then_kill(start(CONSUMER, tmp_path, sync), chance.randrange(1, 300))
        first = int(taken[0])
        assert following <= first <= following + 1
        assert taken == [str(n) for n in range(first, first + len(taken))]
        following = first + len(taken)
    with BigQueue(tmp_path) as queue:
        assert 3000 - following - 1 <= len(queue) <= 3000 - following
