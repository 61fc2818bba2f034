"""What a task notes before it starts a job elsewhere, so that its next try finds the job again.

The note is in the task's state store, which its tries share. It is written before the job is
started, with a token that the job then carries: a worker that dies at any moment leaves either no
note and no job, or a note by which the job is found if there is one. It is deleted when the result
of the job has been judged, so a task that is cleared after that runs its range anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_memq.planning.ranges import RangeContents
from memq.core.decoding import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

_KEY = "memq_range_job"
_TOKEN_BYTES = 16


class JobRecord(msgspec.Struct, frozen=True):
    """A job that a task started, or is about to start.

    Attributes:
        what: `digest` of what the task was told; a note of something else is none.
        token: what the job carries, in its name or among its arguments.
        expected: what the notifications of the range promised before the start.
        manifest: file or URI of the manifest.
        earlier: digest of what stood there before the start; None for nothing.
        job: the service's id of the job; empty until it is known.
    """

    what: str
    token: str
    expected: RangeContents
    manifest: str
    earlier: str | None
    job: str = ""


def new_token() -> str:
    """Text that no other job has."""
    return secrets.token_hex(_TOKEN_BYTES)


def digest(told: Mapping[str, Any]) -> str:
    """What a task was told, in short."""
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def recall(store: Any, what: str | None) -> JobRecord | None:
    """The note of an earlier try that was told the same; None when there is none.

    Args:
        store: of the task: has `get(key)`, `set(key, value)` and `delete(key)`.
        what: as in `JobRecord`; None where it is known to be the same.
    """
    kept = store.get(_KEY)
    if kept is None:
        return None
    try:
        record = msgspec.json.decode(kept, type=JobRecord)
    except (*UNDECODABLE, TypeError) as exc:  # of another version of this package
        log.warning("what an earlier try noted of its job is passed over: %s", exc)
        return None
    return record if what in (None, record.what) else None


def keep(store: Any, record: JobRecord) -> None:
    """Write a note, in place of another one."""
    store.set(_KEY, msgspec.json.encode(record).decode())


def forget(store: Any) -> None:
    """Delete the note: its job has been judged."""
    store.delete(_KEY)
