"""Checkers: pure functions over a history, each for one kind of promise.

`check` runs all of them. They know the anomalies of Jepsen's Kafka workload, with the key (topic,
topic id, read partition), and what else MemQ promises. A checker calls nothing wrong that a
right system may do: an unknown outcome that took effect, gaps in offsets, rebalances, retries.
"""

import gc
from collections.abc import Callable, Iterator
from itertools import islice

from tests.simulation.checkers.audits import inexact_audits
from tests.simulation.checkers.bounds import late_calls, memory_exceeded
from tests.simulation.checkers.commits import wrong_commits
from tests.simulation.checkers.groups import shared_partitions
from tests.simulation.checkers.liveness import failures_in_quiet
from tests.simulation.checkers.log import Log
from tests.simulation.checkers.losses import lost_writes, unseen
from tests.simulation.checkers.offsets import offsets_out_of_order, reused_offsets, unsound_batches
from tests.simulation.checkers.order import (
    moved_keys,
    nonmonotonic_sends,
    nonmonotonic_sends_within,
)
from tests.simulation.checkers.places import duplicates, inconsistent_offsets, misplaced
from tests.simulation.checkers.reads import phantoms, precommitted_reads
from tests.simulation.checkers.removals import early_removals, left_behind
from tests.simulation.checkers.streams import inexact_ranges, nonmonotonic_polls, poll_skips
from tests.simulation.checkers.violation import MAX_EACH, Violation
from tests.simulation.checkers.watermark import untrue_watermarks
from tests.simulation.history import History

Checker = Callable[[Log], Iterator[Violation]]

CHECKERS: tuple[Checker, ...] = (
    inconsistent_offsets,
    duplicates,
    misplaced,
    lost_writes,
    unseen,
    phantoms,
    precommitted_reads,
    poll_skips,
    nonmonotonic_polls,
    inexact_ranges,
    nonmonotonic_sends_within,
    nonmonotonic_sends,
    moved_keys,
    reused_offsets,
    unsound_batches,
    offsets_out_of_order,
    untrue_watermarks,
    wrong_commits,
    shared_partitions,
    memory_exceeded,
    late_calls,
    inexact_audits,
    early_removals,
    left_behind,
    failures_in_quiet,
)
"""Every checker, by itself a generator of what is wrong."""


def check(history: History) -> list[Violation]:
    """What must not be, up to `MAX_EACH` violations of each checker."""
    enabled = gc.isenabled()
    gc.disable()  # a million tuples would be gone through again and again
    try:
        log = Log(history)
        return [violation for checker in CHECKERS for violation in islice(checker(log), MAX_EACH)]
    finally:
        if enabled:
            gc.enable()
