"""A full disk, and data far larger than what is mapped."""

from __future__ import annotations

import subprocess

import pytest

FILE_LIMIT = """
    import resource, sys
    from memq.core.bigqueue import BigArray
    from memq.errors import QueueError
    array = BigArray(sys.argv[1], page_bytes=1 << 20, index_page_items=1000)
    for _ in range(1000):
        array.append(b"x" * 1000)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, unlimited[1]))
    large = b"y" * 90_000
    for append in (lambda: array.append(large), lambda: array.append_many([b"small", large])):
        try:
            append()
        except QueueError as exc:
            print(exc.retriable, array.end, "File too large" in str(exc), flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    array.append(b"y" * 90_000)
    print(array.end, len(array.get(1000)), flush=True)
    array.close()
"""

FULL_DISK = """
    import sys
    from pathlib import Path
    from memq.core.bigqueue import BigQueue
    from memq.errors import QueueError
    queue = BigQueue(sys.argv[1], page_bytes=65536, index_page_items=256)
    item, added, refused = b"x" * 1000, 0, 0
    try:
        while True:
            added = queue.enqueue(item) + 1
    except QueueError as exc:
        print("No space" in str(exc), exc.retriable, flush=True)
    assert len(queue) == added > 500
    taken = len(queue.dequeue_many(200))
    queue.gc()
    queue.enqueue(item)
    print(len(queue) == added + 1 - taken, flush=True)
    assert set(queue.dequeue_many(10_000)) == {item}
    queue.close()
"""


def test_a_file_size_limit_is_a_retriable_error(tmp_path, start):
    """Where a page may not be made, single and batch appends fail whole, and later work."""
    process = start(FILE_LIMIT, tmp_path)
    output, _ = process.communicate(timeout=60)

    assert output.splitlines() == ["True 1000 True", "True 1000 True", "1001 90000"]
    assert process.returncode == 0


def test_a_full_disk_is_a_retriable_error(tmp_path, start):
    """A really full file system neither kills the writer nor loses an item; room helps."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount a small file system: {mounted.stderr.decode()}")
    try:
        process = start(FULL_DISK, disk / "queue")
        output, _ = process.communicate(timeout=60)
        assert output.splitlines() == ["True True", "True"]
        assert process.returncode == 0
    finally:
        subprocess.run(["/bin/umount", disk], check=True)
