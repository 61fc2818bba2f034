"""What an object store's faults come to, through a proxy before a real server."""

import multiprocessing
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest

from memq.core.units import MIB
from memq.errors import ConfigError, StorageError
from memq.storage import object_store
from memq.storage.object_store import PART_BYTES
from memq.storage.open import open_storage, open_uri
from tests.harness.services.http_faults import (
    SLOW_DOWN,
    CutBody,
    Hang,
    Latency,
    LoseAnswer,
    Reset,
    Rule,
    Status,
)

SHORT = Status(
    HTTPStatus.PARTIAL_CONTENT,
    bytes(100),
    (
        ("Content-Range", f"bytes 0-{PART_BYTES - 1}/{3 * PART_BYTES + 12_345}"),
        ("Last-Modified", "Mon, 23 Nov 2026 12:00:00 GMT"),
        ("ETag", '"x"'),
    ),
)
"""An answer that is whole as an answer, and not what was asked for."""


def put(storage, key, content, timeout_s=30.0):
    storage.put(key, [content], timeout_s=timeout_s)


# -- puts --------------------------------------------------------------------------------------


def test_a_lost_answer_is_recognised_by_the_next_attempt(faulty, faults):
    """An object whose answer was lost is stored once, and the attempt after it succeeds."""
    lost = faults.add(Rule(LoseAnswer(), method="PUT"))
    with pytest.raises(StorageError, match="'k'"):
        put(faulty, "k", b"abc")
    assert faults.struck[lost] == 1
    assert bytes(faulty.get("k")) == b"abc"
    put(faulty, "k", b"abc")
    with pytest.raises(StorageError, match="other bytes"):
        put(faulty, "k", b"abd")


def test_a_slow_link_gives_no_put_up(monkeypatch, faulty, faults):
    """All requests share one link: each may take as long as all the bytes under way."""
    monkeypatch.setattr(object_store, "STALL_S", 0.3)
    monkeypatch.setattr(object_store, "SLOW_BYTES_S", MIB)
    hang = faults.add(Rule(Hang(), method="PUT", key="large"))
    faults.add(Rule(Latency(1.0), method="PUT", key="small"))
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(put, faulty, "large", bytes(8 * MIB))
        faults.wait_struck(hang)
        put(faulty, "small", b"abc")
        faults.release()
        before.result()


# -- reads -------------------------------------------------------------------------------------


def large(storage, size=3 * PART_BYTES + 12_345):
    content = random.Random(5).randbytes(size)
    put(storage, "large", content)
    return content


@pytest.mark.parametrize("action", [CutBody(1_000), SLOW_DOWN, Reset(after_body=True), SHORT])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_part_that_fails_is_read_again(faulty, faults, action, after):
    """An answer that is cut short, refused or lost costs one more request, and nobody sees it."""
    content = large(faulty)
    struck = faults.add(Rule(action, method="GET", after=after))
    assert bytes(faulty.get("large")) == content
    assert faults.struck[struck] == 1
    assert faults.requests["GET"] == 4


# -- a store that is away, or not there --------------------------------------------------------


def test_a_bucket_that_is_not_there_is_named_at_the_start(s3_server):
    """A start without its bucket says so; when it was made, it goes on."""
    with pytest.raises(ConfigError, match="there is no s3://not-yet; make it") as caught:
        open_storage("s3://not-yet/root")
    assert "lists, reads, writes and deletes there" in str(caught.value)
    s3_server.make_bucket("not-yet")
    put(open_storage("s3://not-yet/root"), "k", b"abc")


def _read_in_child(uri, answers):
    found, key = open_uri(uri)
    try:
        answers.put(bytes(found.get(key)))
    except StorageError as exc:
        answers.put(str(exc))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_forked_process_is_told_that_it_cannot_read(storage, method):
    """A child whose parent has read before gets an error, and no deadlock; a new process reads."""
    put(storage, "k", b"abc")
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(storage.uri("k"), answers))
    child.start()
    answer = answers.get()
    child.join()
    if method == "spawn":
        assert answer == b"abc"
    else:
        assert "was forked" in answer
    assert child.exitcode == 0
    assert os.getpid() != child.pid


READ_ONCE = """
import sys
from memq.storage.open import open_uri
storage, key = open_uri(sys.argv[1])
assert bytes(storage.get(key)) == b"abc"
"""


def test_processes_that_have_read_end_in_peace(storage):
    """However soon after a request an interpreter ends, the client of the store aborts nothing."""
    put(storage, "k", b"abc")
    command = [sys.executable, "-c", READ_ONCE, storage.uri("k")]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda _: subprocess.run(command, check=False), range(16)))
    assert [each.returncode for each in ended] == [0] * 16
