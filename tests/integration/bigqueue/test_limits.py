"""A full disk, and data far larger than what is mapped."""

from __future__ import annotations

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


def test_a_file_size_limit_is_a_retriable_error(tmp_path, start):
    """Where a page may not be made, single and batch appends fail whole, and later work."""
    process = start(FILE_LIMIT, tmp_path)
    output, _ = process.communicate(timeout=60)

    assert output.splitlines() == ["True 1000 True", "True 1000 True", "1001 90000"]
    assert process.returncode == 0
