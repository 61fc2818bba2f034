"""Which Messages of a plan are repeats: exact, across read partitions and across tasks.

The rule is that of every reader (`memq.client.duplicates`): a Message is a repeat when it has the
name and the CRC32C of one that came before. "Before" is the order of publication, by time, and then
by read partition and offset, so that every plan of a range drops the same ones. A stream also looks
at what came before its micro-batch, see `memq.spark.stream`.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from memq.client.duplicates import DuplicateWindow
from memq.errors import MemqError
from memq.spark.objects import read_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memq.core.format.index import IndexEntry
    from memq.spark.objects import Objects
    from memq.spark.plan import StoredBatch

log = logging.getLogger("memq.spark")

INDEX_READS = 8  # at a time: each takes one round trip to the storage

Repeats = dict[tuple[int, int], frozenset[int]]
"""Positions of Messages that are repeats, by read partition and offset of their Batch."""


def find_repeats(
    suspects: Sequence[StoredBatch], objects: Objects, passes: Callable[[MemqError], bool]
) -> Repeats:
    """Compare Batches that hold Messages of the same names.

    Args:
        suspects: the Batches, in the order in which a reader is to have seen them.
        objects: to read their indexes.
        passes: whether a Batch that fails with this error is passed over by the read as well:
            then nothing repeats it.

    Raises:
        MemqError: an index cannot be read.
    """
    window = DuplicateWindow(sum(batch.messages for batch in suspects))  # none may be forgotten
    repeats: Repeats = {}
    for batch, entries in _indexes(suspects, objects, passes):
        place = (batch.partition, batch.offset)
        found = window.find(place, batch.write_partition, entries)
        if found:
            repeats[place] = frozenset(found)
    return repeats


def _indexes(
    batches: Sequence[StoredBatch], objects: Objects, passes: Callable[[MemqError], bool]
) -> Iterator[tuple[StoredBatch, list[IndexEntry]]]:
    """Each Batch with its Messages, a few read at a time."""
    with ThreadPoolExecutor(INDEX_READS, "memq-index") as executor:
        for start in range(0, len(batches), INDEX_READS):
            some = batches[start : start + INDEX_READS]
            reads = [executor.submit(read_index, objects, batch) for batch in some]
            for batch, read in zip(some, reads, strict=True):
                try:
                    yield batch, read.result().entries
                except MemqError as exc:
                    if not passes(exc):
                        raise
                    log.warning("MemQ did not look for repeats in a Batch: %s", exc)
