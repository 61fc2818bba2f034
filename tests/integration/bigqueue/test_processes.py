"""The big queue in processes of their own: killed with -9, at a limit, and read meanwhile."""

import random
import subprocess
import sys
import textwrap

import pytest

from memq.bigqueue import BigArray, BigQueue, FanOutQueue
from memq.errors import OffsetOutOfRangeError


@pytest.fixture
def start():
    """Start a program; it is killed at the end of the test if it still runs."""
    started = []

    def run(program: str, *arguments: object) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


APPENDER = """
    import sys
    from memq.bigqueue import BigArray
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
    from memq.bigqueue import BigQueue
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
        writer = start(APPENDER, tmp_path, sync, batch)
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


ITEMS = 20_000

WRITER = """
    import sys
    from memq.bigqueue import FanOutQueue
    path, items, keep = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    queue = FanOutQueue(path, page_bytes=65536, index_page_items=512, max_mapped_pages=4)
    print("open", flush=True)
    sys.stdin.readline()
    while queue.end < items:
        if queue.end % 3:
            queue.enqueue(b"%06d" % queue.end * 10)
        else:
            queue.enqueue_many([b"%06d" % n * 10 for n in range(queue.end, queue.end + 5)])
        if keep and queue.end % 100 == 0:
            queue.truncate_front(max(0, queue.end - keep))
    print("done", flush=True)
    sys.stdin.readline()
    queue.close()
"""


def go(process):
    """Let the other process take its next step."""
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_reader_survives_truncation_by_the_writer(tmp_path, start):
    """While pages are deleted under it, a reader gets right items or a typed error, and goes on."""
    writer = start(WRITER, tmp_path, ITEMS, 300)
    assert writer.stdout.readline() == "open\n"
    with FanOutQueue(tmp_path, read_only=True, max_mapped_pages=4) as reader:
        go(writer)
        index = read = overtaken = 0
        while index < ITEMS:
            try:
                items = reader.get_many(index, 50)
            except OffsetOutOfRangeError:
                overtaken += 1
                index = reader.start
                continue
            assert items == [b"%06d" % n * 10 for n in range(index, index + len(items))]
            index += len(items)
            read += len(items)
        assert writer.stdout.readline() == "done\n"
        with pytest.raises(OffsetOutOfRangeError):
            reader.get(0)
    assert read + overtaken > 0
