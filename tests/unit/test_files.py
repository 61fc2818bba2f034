"""Durable files: the parts that a storage test cannot reach."""

from __future__ import annotations

import errno
import os
import random

import pytest

from memq.core.files import _write_some, explain, opened, read_exactly, write_durably


def test_partial_writes_are_continued_where_they_ended():
    """When the system takes a part of the buffers, the rest follows, byte for byte."""
    rng = random.Random(3)
    pending = [memoryview(rng.randbytes(rng.randint(1, 100_000))) for _ in range(50)]
    expected = b"".join(pending)
    reader, writer = os.pipe()  # takes at most 64 KiB at a time
    os.set_blocking(writer, False)
    received, position, steps = b"", 0, 0
    while position < len(pending):
        position = _write_some(writer, pending, position)
        received += os.read(reader, 1 << 20)
        steps += 1
    os.close(reader)
    os.close(writer)
    assert received == expected
    assert steps > len(expected) // (64 << 10)


def test_a_file_is_never_overwritten(tmp_path):
    """Writing to a name that is taken fails and leaves the file as it was."""
    write_durably(tmp_path / "f", [memoryview(b"one")])
    with pytest.raises(FileExistsError):
        write_durably(tmp_path / "f", [memoryview(b"two")])
    assert (tmp_path / "f").read_bytes() == b"one"


def test_a_file_that_shrank_is_an_error_not_a_crash(tmp_path):
    """Reading past the end of a file that was cut after it was opened raises."""
    write_durably(tmp_path / "f", [memoryview(b"x" * 10_000)])
    with opened(tmp_path / "f") as (fd, size_bytes):
        os.truncate(tmp_path / "f", 5_000)
        with pytest.raises(OSError, match="ended early"):
            read_exactly(fd, 0, size_bytes)


def test_explain_adds_the_way_out_where_one_is_known():
    """A full disk says what to do; an unknown cause stands alone."""
    assert explain(OSError(errno.ENOSPC, "No space")) == "No space; free some space on that disk"
    assert explain(OSError(errno.ELOOP, "Loop")) == "Loop"
    assert explain(OSError("plain")) == "plain"
