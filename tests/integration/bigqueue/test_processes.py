"""One process writes, others read; nobody else may write."""

from __future__ import annotations

import pytest

from memq.core.bigqueue import BigArray, FanOutQueue
from memq.errors import LockedError, OffsetOutOfRangeError

ITEMS = 20_000

WRITER = """
    import sys
    from memq.core.bigqueue import FanOutQueue
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


def test_this_process_is_refused_while_another_writes(tmp_path, start):
    """A writer elsewhere keeps this process out until it has closed."""
    writer = start(WRITER, tmp_path, 10, 0)
    writer.stdout.readline()
    with pytest.raises(LockedError, match=f"process {writer.pid}"):
        BigArray(tmp_path)
    go(writer)
    assert writer.stdout.readline() == "done\n"
    go(writer)
    writer.wait(30)
    with BigArray(tmp_path) as array:
        assert array.end >= 10
