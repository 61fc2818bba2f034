"""Kill -9 of a process that writes objects."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from memq.storage.local import LocalStorage

ROOT = Path(__file__).parents[3]

WRITER = """
import hashlib, itertools, os, pathlib, sys
from concurrent.futures import ThreadPoolExecutor
from memq.storage.local import LocalStorage

storage = LocalStorage(pathlib.Path(sys.argv[1]))

def write(number):
    content = (b"%d." % number) * 50_000
    key = f"{number % 16:02x}/{number}-{hashlib.sha256(content).hexdigest()}"
    storage.put(key, [content[:1000], content[1000:]], timeout_s=30)
    os.write(1, key.encode() + b"\\n")  # one system call, so that threads do not mix lines

with ThreadPoolExecutor(4) as pool:
    for number in itertools.count(int(sys.argv[2])):
        pool.submit(write, number)
        if number % 8 == 0:
            pool.submit(int).result()
"""


@pytest.mark.parametrize("acked", [1, 20, 57])
def test_what_was_acked_is_there_and_nothing_is_half(tmp_path, acked):
    """After a kill every object that is visible is whole, and every acked one is visible."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        keys = {child.stdout.readline().strip() for _ in range(acked)}
        child.kill()
        keys.update(line.strip() for line in child.stdout if line.endswith("\n"))
    storage = LocalStorage(tmp_path)
    visible = {info.key for info in storage.list("")}
    assert keys <= visible
    for key in visible:
        assert hashlib.sha256(storage.get(key)).hexdigest() == key.rpartition("-")[2]
    storage.clean_temporary(older_than_ms=-1, now_ms=1 << 50)
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert {info.key for info in storage.list("")} == visible
