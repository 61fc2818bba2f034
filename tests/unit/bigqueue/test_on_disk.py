"""The files as docs/bigqueue.md describes them, read with nothing of the library."""

import json
import struct
from pathlib import Path

from memq.bigqueue import BigQueue, FanOutQueue


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) bit by bit; `crc` continues an earlier value."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_item(path: Path, index: int) -> tuple[bytes, int]:
    """Item and timestamp, by the description alone."""
    per_page = json.loads((path / "meta.json").read_text())["index_page_items"]
    index_page = (path / "index" / f"{index // per_page:012d}.page").read_bytes()
    page, offset, length, check, timestamp_ms = struct.unpack_from(
        "<IIIIq", index_page, index % per_page * 24
    )
    data_page = (path / "data" / f"{page:012d}.page").read_bytes()
    item = data_page[offset : offset + length]
    seed = (crc32c(struct.pack("<q", timestamp_ms)) + index) % 2**32
    assert check == crc32c(item, seed)
    return item, timestamp_ms


def test_the_files_are_as_described(tmp_path, small):
    """Single and batch appends alike can be read by the description of the files."""
    items = [bytes([n]) * (n * 61) for n in range(20)]
    with BigQueue(tmp_path, clock_ms=lambda: 1_700_000_000_000, **small) as queue:
        for item in items[:10]:
            queue.enqueue(item)
        queue.enqueue_many(items[10:], timestamp_ms=1_700_000_000_001)
        queue.dequeue_many(10)
        queue.gc()
        for index in range(10, 20):
            expected_ms = 1_700_000_000_000 + (index >= 10)
            assert read_item(tmp_path, index) == (items[index], expected_ms)
        magic, start, end, _, start_copy = struct.unpack_from(
            "<8s4Q", (tmp_path / "control").read_bytes()
        )
        assert (magic, start, end, start_copy) == (b"MQARRAY1", 10, 20, 10)
        head = (tmp_path / "head").read_bytes()
        assert struct.unpack_from("<8sQ", head) == (b"MQFRONT1", 10)
        assert len(head) == 4096
    assert json.loads((tmp_path / "meta.json").read_text()) == {
        "format": 1,
        "page_bytes": 4096,
        "index_page_items": 8,
    }
    assert {file.stat().st_size for file in (tmp_path / "data").iterdir()} == {4096}
    assert {file.stat().st_size for file in (tmp_path / "index").iterdir()} == {8 * 24}


def test_front_files_are_named_after_their_fronts(tmp_path):
    """A front is a file whose name is the percent-encoded name of the front."""
    with FanOutQueue(tmp_path) as queue:
        queue.enqueue(b"x")
        queue.create_front("group a/1", position=1)
    file = tmp_path / "fronts" / "group%20a%2F1.front"
    assert struct.unpack_from("<8sQ", file.read_bytes()) == (b"MQFRONT1", 1)
