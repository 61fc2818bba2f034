from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from memq.bigqueue import BigQueue

PRODUCERS = 2
PER_PRODUCER = 4000
OPTIONS = {"page_bytes": 8192, "index_page_items": 64, "max_mapped_pages": 4}


def run(*targets):
    """Run the targets in threads and raise the first error of any of them."""
    with ThreadPoolExecutor(len(targets)) as pool:
        for future in [pool.submit(target) for target in targets]:
            future.result(60)


def producer(put, number):
    """A thread that puts numbered items."""

    def produce():
        for n in range(PER_PRODUCER):
            put(b"%d:%06d" % (number, n))

    return produce


def in_order(items):
    """Whether the items of each producer are in the order they were put."""
    by_producer = {n: [i for i in items if i.startswith(b"%d:" % n)] for n in range(PRODUCERS)}
    return all(found == sorted(found) for found in by_producer.values())


@pytest.mark.parametrize("batch", [1, 7])
def test_two_producers_and_two_consumers_lose_and_double_nothing(tmp_path, batch):
    """Each item comes out once, each consumer sees each producer's items in order."""
    taken = [[], []]
    with BigQueue(tmp_path, **OPTIONS) as queue:

        def consumer(own):
            def consume():
                while len(taken[0]) + len(taken[1]) < PRODUCERS * PER_PRODUCER:
                    if batch > 1:
                        own.extend(queue.dequeue_many(batch))
                    elif (item := queue.dequeue()) is not None:
                        own.append(item)

            return consume

        put = queue.enqueue if batch == 1 else lambda item: queue.enqueue_many([item])
        run(
            *(producer(put, n) for n in range(PRODUCERS)),
            *(consumer(own) for own in taken),
        )
        assert len(queue) == 0

    everything = Counter(taken[0] + taken[1])
    assert len(everything) == PRODUCERS * PER_PRODUCER
    assert set(everything.values()) == {1}
    assert all(map(in_order, taken))
