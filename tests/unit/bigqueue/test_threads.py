from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from memq.bigqueue import BigQueue

PRODUCERS = 2
PER_PRODUCER = 4000
OPTIONS = {"page_bytes": 8192, "index_page_items": 64, "max_mapped_pages": 4}


def in_order(items):
    """Whether the items of each producer are in the order they were put."""
    by_producer = {n: [i for i in items if i.startswith(b"%d:" % n)] for n in range(PRODUCERS)}
    return all(found == sorted(found) for found in by_producer.values())


@pytest.mark.parametrize("batch", [1, 7])
def test_two_producers_and_two_consumers_lose_and_double_nothing(tmp_path, batch):
    """Each item comes out once, each consumer sees each producer's items in order."""
    taken = [[], []]
    with BigQueue(tmp_path, **OPTIONS) as queue, ThreadPoolExecutor(PRODUCERS + 2) as pool:

        def produce(number):
            for n in range(PER_PRODUCER):
                item = b"%d:%06d" % (number, n)
                queue.enqueue(item) if batch == 1 else queue.enqueue_many([item])

        def consume(own):
            while len(taken[0]) + len(taken[1]) < PRODUCERS * PER_PRODUCER:
                if batch > 1:
                    own.extend(queue.dequeue_many(batch))
                elif (item := queue.dequeue()) is not None:
                    own.append(item)

        threads = [pool.submit(produce, number) for number in range(PRODUCERS)]
        threads += [pool.submit(consume, own) for own in taken]
        for each in threads:
            each.result(60)
        assert len(queue) == 0
    everything = Counter(taken[0] + taken[1])
    assert len(everything) == PRODUCERS * PER_PRODUCER
    assert set(everything.values()) == {1}
    assert all(map(in_order, taken))
