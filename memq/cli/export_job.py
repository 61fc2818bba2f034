"""An export: the rows of a plan as one file, or as a folder of files.

Theory of operation
-------------------
Each file is written under a hidden name, made durable, and renamed when it is whole: it is there
whole or not at all. A folder must be new or empty. It gets one file for each piece of the plan:
consecutive Batches of one read partition, of a bounded size. The empty file `.started` is made
before them, by one run alone, and becomes `_SUCCESS` when all are there. So a run that fails or is
killed leaves a folder without `_SUCCESS`. The next run refuses it: it would plan again, and what is
published by then would be in other files.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from memq.cli.formats import SUFFIXES, FileFormat, open_sink
from memq.core.ranges import OffsetRange
from memq.core.units import iso_ms
from memq.errors import ConfigError, LockedError, StorageError
from memq.reading.plan import Piece, ReadPlan
from memq.runtime.files import explain, make_folders, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from memq.client.read_range import TopicReader
    from memq.reading.plan import Selection

STARTED = ".started"  # readers of folders pass over what begins with _ or .
SUCCESS = "_SUCCESS"  # as Hadoop calls it


class ExportOutcome(NamedTuple):
    """What an export holds.

    Attributes:
        records: rows.
        batches: Batches that were read for them.
        files: how many there are.
        read_bytes: stored bytes of the Batches.
        written_bytes: size of the files.
        incomplete_before: records of the times wanted that were published before this time may be
            missing, as retention came first; None where none can.
    """

    records: int = 0
    batches: int = 0
    files: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    incomplete_before: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """What an export is made of.

    Attributes:
        form: of the files.
        selection: what to export.
        open_reader: opens a reader of the topic.
        progress: shows how far it is, of so many bytes; gives what is called with bytes done.
        file_bytes: stored bytes after which a file of a folder ends.
    """

    form: FileFormat
    selection: Selection
    open_reader: Callable[[], TopicReader]
    progress: Callable[[int], AbstractContextManager[Callable[[int], None]]]
    file_bytes: int


def export_folder(folder: Path, job: ExportJob) -> ExportOutcome:
    """Export into a folder.

    Args:
        folder: new or empty; made if there is none.
        job: what to do.

    Raises:
        ConfigError: the folder holds something.
        LockedError: another run has begun meanwhile.
        StorageError: the files cannot be written.
        MemqError: as `TopicReader`.
    """
    _check_empty(folder)
    with job.open_reader() as reader:
        plan = reader.plan(job.selection, piece_bytes=job.file_bytes)
        with _files_of(folder):
            make_folders(folder)
            try:
                (folder / STARTED).touch(exist_ok=False)
            except FileExistsError as exc:
                raise LockedError(f"another export has begun in {folder}; name another") from exc
        _check_empty(folder, STARTED)  # another run may have come and gone
        nothing = Piece(OffsetRange(job.selection.partition or 0, 0, 0))  # a file says so as well
        with job.progress(plan.size_bytes) as advance:
            write = partial(_write, reader=reader, plan=plan, form=job.form, advance=advance)
            written = [
                write(folder / _name(piece, job.form), pieces=[piece])
                for piece in plan.pieces or [nothing]
            ]
        with _files_of(folder):
            (folder / STARTED).replace(folder / SUCCESS)
            sync_folder(folder)
    return _outcome(plan, written)


def _check_empty(folder: Path, own: str = "") -> None:
    """Refuse a folder that holds another file than our own."""
    with _files_of(folder):
        held = {each.name for each in folder.iterdir()} - {own} if folder.exists() else ()
    if held:
        raise ConfigError(
            f"{folder} holds {min(held)}; name a folder that is new or empty. An export without "
            f"{SUCCESS} is running, or was interrupted: delete it then"
        )


def export_file(file: Path, job: ExportJob) -> ExportOutcome:
    """Export into one file, which is there whole or not at all.

    Args:
        file: must not exist.
        job: what to do.

    Raises:
        ConfigError: the file exists.
        LockedError: another run is writing it.
        StorageError: it cannot be written.
        MemqError: as `TopicReader`.
    """
    _check_new(file)
    with job.open_reader() as reader:
        plan = reader.plan(job.selection)
        with job.progress(plan.size_bytes) as advance:
            written = _write(file, reader, plan, plan.pieces, form=job.form, advance=advance)
    return _outcome(plan, [written])


def _name(piece: Piece, form: FileFormat) -> str:
    """Name the file of a piece, by its offsets and its format."""
    partition, start, end, _ = piece.range
    suffix = next(suffix for suffix, each in SUFFIXES.items() if each == form)
    return f"partition-{partition:05d}-{start:012d}-{end:012d}{suffix}"


def _outcome(plan: ReadPlan, written: Sequence[tuple[int, int]]) -> ExportOutcome:
    before_ms = plan.incomplete_before_ms
    return ExportOutcome(
        records=sum(records for records, _ in written),
        batches=sum(piece.contents.batches for piece in plan.pieces),
        files=len(written),
        read_bytes=plan.size_bytes,
        written_bytes=sum(size_bytes for _, size_bytes in written),
        incomplete_before=None if before_ms is None else iso_ms(round(before_ms)),
    )


def _check_new(file: Path) -> None:
    if file.exists():
        raise ConfigError(f"{file} exists; delete it, or name another file")


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Open an empty file that no other run writes to; delete it unless it got another name."""
    free = False  # unless it is locked, and still what is found under its name
    with path.open("ab") as file:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = path.exists() and path.samefile(f"/dev/fd/{file.fileno()}")
        if not free:
            raise LockedError(f"another export is writing {path}; wait for it")
        try:
            file.truncate(0)
            yield file
        finally:
            path.unlink(missing_ok=True)


def _write(
    file: Path,
    reader: TopicReader,
    plan: ReadPlan,
    pieces: Sequence[Piece],
    *,
    form: FileFormat,
    advance: Callable[[int], None],
) -> tuple[int, int]:
    """Write the rows of some pieces to a file, durably; returns its rows and bytes."""
    with _files_of(file), _locked(_hidden(file)) as hidden:
        written = _write_rows(hidden, reader, plan, pieces, form=form, advance=advance)
        _check_new(file)
        _hidden(file).replace(file)
        sync_folder(file.parent)
    return written


def _write_rows(
    file: IO[bytes],
    reader: TopicReader,
    plan: ReadPlan,
    pieces: Sequence[Piece],
    *,
    form: FileFormat,
    advance: Callable[[int], None],
) -> tuple[int, int]:
    records = 0
    sink = open_sink(form, file, reader.schema)
    try:
        with closing(reader.rows(plan, pieces)) as batches:
            for each in batches:
                for rows in each.rows:
                    sink.write(rows)
                    records += rows.num_rows
                advance(each.batch.notification.size_bytes)
    except BaseException:
        with suppress(Exception):  # it would else be closed after the file
            sink.close()
        raise
    sink.close()
    file.flush()
    os.fsync(file.fileno())
    return records, os.fstat(file.fileno()).st_size


def _hidden(file: Path) -> Path:
    """Return the name that a file has until it is complete."""
    return file.with_name(f".{file.name}.tmp")


@contextmanager
def _files_of(path: Path) -> Iterator[None]:
    """Say what cannot be written, and what to do.

    Raises:
        StorageError: in place of an OSError.
    """
    try:
        yield
    except OSError as exc:
        raise StorageError(f"{path} cannot be written: {explain(exc)}") from exc
