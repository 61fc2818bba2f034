"""How a range is committed to a table: what is done, in which order, and what failures mean.

Theory of operation
-------------------
1. *Look* at the table. If its ledger has the range, it is in, and nothing is to be done.
2. *Write* the rows to files that nobody else knows: each attempt has names of its own.
3. *Look* again, and *commit*: the files and the new ledger, on the condition that the table still
   is what was looked at.
4. If that fails, for whatever reason, *look* again: the ledger says whether the range is in.

The condition is what makes it exact. Of all that commit upon one state of the table, one succeeds;
the others find another ledger. So a range cannot be put in twice, by whomever, not even by a commit
that everybody took for lost and that arrives late: it is one upon an old state. An answer that got
lost needs no care of its own, for step 4 asks the table and not the answer.

A committer that dies leaves files that no table names. They are never deleted here: only the table
can tell that nobody will commit them any more, and its maintenance (in Iceberg, the removal of
orphan files) does that.

This is a generator of steps, without a table: `run` does them on a real one, and the simulation on
a model of one, with any of them cut off.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from memq.errors import MemqError, TableConflictError
from memq.runtime.retry import STORAGE_BACKOFF
from memq.runtime.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memq.runtime.system import Runtime
    from memq.tables.ledger import Ledger, TopicRange

log = logging.getLogger("memq.tables")

ATTEMPTS = 30  # others commit meanwhile; with the waits between them a few minutes

Base = TypeVar("Base")


class TableState(NamedTuple, Generic[Base]):
    """A table at one moment.

    Attributes:
        ledger: what it has.
        base: what a commit upon this state is conditional on.
        attempts: those that the table remembers to have committed, by name.
    """

    ledger: Ledger
    base: Base
    attempts: frozenset[str] = frozenset()


class Commit(NamedTuple):
    """What a table is to take in one step.

    Attributes:
        range: whose rows they are.
        ledger: the table's, with the range.
        attempt: unique name of the caller that commits.
        job: what it is called.
        files: paths of the files; none where the range has no rows.
    """

    range: TopicRange
    ledger: Ledger
    attempt: str
    job: str
    files: Sequence[str]


class LedgerTable(Protocol[Base]):
    """A table with a ledger."""

    def look(self) -> TableState[Base]:
        """Load the table as it is now.

        Raises:
            MemqError: it cannot be told.
        """

    def commit(self, base: Base, commit: Commit) -> None:
        """Take a commit if the table is still as it was.

        Raises:
            MemqError: it was not taken, or whether it was is not known. Where the error is not
                retriable, it was not, and another try would not be either.
        """


class CommitStep(enum.Enum):
    """What comes next, apart from a commit."""

    LOOK = "look"
    WRITE = "write"


class TryCommit(NamedTuple, Generic[Base]):
    """Try to commit; the answer is None, or the error."""

    base: Base
    commit: Commit


class Wait(NamedTuple):
    """Try again after so many failures."""

    failures: int


class Written(NamedTuple):
    """What the rows of a range became.

    Attributes:
        range: with what is in them.
        files: paths of the files.
    """

    range: TopicRange
    files: Sequence[str]


class CommitOutcome(NamedTuple):
    """How a range came to be in the table.

    Attributes:
        written: the files of this attempt; None when nothing was written.
        committed: this attempt has put it in. Otherwise another one had before.
    """

    written: Written | None
    committed: bool


Steps = Generator[CommitStep | TryCommit[Base] | Wait, object, CommitOutcome]


def steps(wanted: TopicRange, attempt: str, job: str) -> Steps[Base]:
    """Yield the steps of a commit; each is answered with its result.

    Args:
        wanted: the range.
        attempt: a name that nobody else has.
        job: what the job is called.

    Raises:
        RangeConflictError: some of the range is in the table already.
        LimitReachedError: the table has too many gaps.
        TableConflictError: others were always faster, or the catalog takes no commit.
    """
    written: Written | None = None
    failure: object = None
    for failures in range(ATTEMPTS):
        state: TableState[Base] = yield CommitStep.LOOK  # type: ignore[assignment]
        if state.ledger.has(wanted):
            return CommitOutcome(written, attempt in state.attempts)
        if written is None:
            written = yield CommitStep.WRITE  # type: ignore[assignment]
            continue  # it took minutes: look again
        ledger = state.ledger.plus(written.range)
        failure = yield TryCommit(
            state.base, Commit(written.range, ledger, attempt, job, written.files)
        )
        if failure is None:
            return CommitOutcome(written, committed=True)
        yield Wait(failures)
    raise TableConflictError(
        f"{wanted}: no commit was taken in {ATTEMPTS} tries; the last failed with: {failure}. If "
        "that says that others have changed the table, try again when fewer jobs commit to it"
    )


def commit_range(
    table: LedgerTable[Base],
    wanted: TopicRange,
    write: Callable[[], Written],
    *,
    attempt: str,
    job: str,
    runtime: Runtime = SYSTEM,
) -> CommitOutcome:
    """Put a range into a table, unless it is there.

    Args:
        table: the table.
        wanted: the range; its counts need not be known.
        write: writes the rows to files of names that only this attempt has; called at most once.
        attempt: a name that nobody else has.
        job: what the job is called.
        runtime: chance, for the waits between tries.

    Raises:
        MemqError: as `steps`, or what the table or `write` raised. The range is in, or not.
    """
    doing: Steps[Base] = steps(wanted, attempt, job)
    answer: object = None
    while True:
        try:
            step = doing.send(answer)
        except StopIteration as done:
            outcome: CommitOutcome = done.value
            return outcome
        answer = _do(step, table, write, runtime)


def _do(
    step: CommitStep | TryCommit[Base] | Wait,
    table: LedgerTable[Base],
    write: Callable[[], Written],
    runtime: Runtime,
) -> object:
    match step:
        case CommitStep.LOOK:
            return table.look()
        case CommitStep.WRITE:
            return write()
        case Wait(failures):
            time.sleep(STORAGE_BACKOFF.full_jitter_s(failures, runtime.random))
            return None
        case TryCommit(base, commit):
            try:
                table.commit(base, commit)
            except MemqError as exc:
                if not exc.retriable:
                    raise
                log.warning("%s: not committed: %s", commit.range, exc)
                return exc
    return None
