"""An export: the rows of a plan as one file, or as a folder of files that can be gone on with.

Theory of operation
-------------------
A folder gets one file for each piece of the plan: consecutive Batches of one read partition, of a
bounded size. The plan is written down before the first of them, in a small manifest, and from then
on nothing of it changes: a run that goes on later reads the offsets that were planned, whatever has
been published since. Each file is written under a hidden name, made durable, and renamed when it
is whole; then the manifest says so, with what the file holds.

A run that is killed, at whatever point, leaves whole files and a hidden one. The next run
rewrites every file that the manifest does not call whole, in the place of what it finds under that
name. So no record is there twice and none is missing. A manifest of something else, and one whose
whole files were changed, is never touched: it is refused. A lock keeps a second run out of the
folder.

Batches never change, so a piece gives the same rows whenever it is read; what retention has removed
by then, or a topic that was recreated, is refused before anything is written.

A file alone has no manifest: it is written under a hidden name beside it and renamed when whole.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

import msgspec

from memq.cli.formats import SUFFIXES, FileFormat, open_sink
from memq.core.decoding import UNDECODABLE
from memq.core.manifest import Totals
from memq.core.ranges import OffsetRange
from memq.core.units import counted, iso_ms
from memq.errors import ConfigError, CorruptDataError, LockedError, StorageError
from memq.reading.plan import EventTimes, Piece, ReadPlan
from memq.runtime.files import explain, lock_exclusively, make_folders, replace_durably, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from memq.client.read_range import TopicReader
    from memq.reading.plan import Selection

MANIFEST = "_memq_export.json"  # readers of folders pass over what begins with _ or .
MANIFEST_VERSION = 1
LOCK = ".memq_export.lock"


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be exported, as it was asked for.

    Attributes:
        topic: the topic.
        format: of the files.
        columns: names of the columns; None for all.
        metadata: whether the columns are there that say where a row comes from.
        range: offsets of a partition as they were written; empty for all.
        start: first time as it was written, which may be "1h"; empty for no beginning.
        end: time that the records are before, as it was written; empty for no end.
        start_us: what `start` meant then, microseconds since 1970 UTC.
        end_us: what `end` meant then.
    """

    topic: str
    format: FileFormat
    columns: list[str] | None
    metadata: bool
    range: str
    start: str
    end: str
    start_us: int | None
    end_us: int | None

    def __str__(self) -> str:
        """It as the command line has it: "1h" is the hour before the first run."""
        words = [self.topic, f"--format {self.format}"]
        words += [f"--range {self.range}"] if self.range else []
        words += [f"--from {self.start}"] if self.start else []
        words += [f"--to {self.end}"] if self.end else []
        words += [f"--columns {','.join(self.columns)}"] if self.columns is not None else []
        words += ["--metadata"] if self.metadata else []
        return " ".join(words)


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file of the folder.

    Attributes:
        file: its name.
        partition: read partition.
        start: first offset of its piece.
        end: one past the last offset.
        batches: Batches in it.
        size_bytes: of their objects.
        records: rows in the file; None until it is whole.
        file_bytes: its size; None until it is whole.
    """

    file: str
    partition: int
    start: int
    end: int
    batches: int
    size_bytes: int
    records: int | None = None
    file_bytes: int | None = None


class ExportManifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a folder holds, or is to hold.

    Attributes:
        version: of this format.
        request: what was asked for.
        topic_id: of the topic.
        schema_id: of the topic's schema that all files have.
        planned_ms: when the end offsets were fixed, milliseconds since 1970 UTC.
        parts: the files.
        incomplete_before_ms: as in `ReadPlan`.
    """

    version: int
    request: ExportRequest
    topic_id: str
    schema_id: str
    planned_ms: int
    parts: list[Part]
    incomplete_before_ms: float | None = None

    def plan(self) -> ReadPlan:
        """Return the plan of the parts that are not whole."""
        it = self.request
        limited = it.start_us is not None or it.end_us is not None
        return ReadPlan(
            times=EventTimes(it.start_us, it.end_us) if limited else None,
            pieces=[self.piece(part) for part in self.missing],
        )

    def piece(self, part: Part) -> Piece:
        """Return what is read for a part."""
        span = OffsetRange(part.partition, part.start, part.end, self.topic_id)
        return Piece(span, Totals(batches=part.batches, bytes=part.size_bytes))

    @property
    def missing(self) -> list[Part]:
        """The parts that are not whole."""
        return [part for part in self.parts if part.records is None]


class ExportOutcome(NamedTuple):
    """What an export holds.

    Attributes:
        records: rows.
        batches: Batches that were read for them.
        files: how many there are.
        resumed_files: of these, how many were there already.
        read_bytes: stored bytes of the Batches.
        written_bytes: size of the files.
        incomplete_before: records of the times wanted that were published before this time may be
            missing, as retention came first; None where none can.
    """

    records: int = 0
    batches: int = 0
    files: int = 0
    resumed_files: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    incomplete_before: str | None = None


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """What an export is made of.

    Attributes:
        request: what to export.
        selection: the same, as it is now.
        open_reader: a reader for a topic id and a schema; for the present ones
            where they are empty.
        progress: shows how far it is, of so many bytes; gives what is called with bytes done.
        say: tells the user something.
        file_bytes: stored bytes after which a file of a folder ends.
    """

    request: ExportRequest
    selection: Selection
    open_reader: Callable[[str, str], TopicReader]
    progress: Callable[[int], AbstractContextManager[Callable[[int], None]]]
    say: Callable[[str], None]
    file_bytes: int


# -- a folder -------------------------------------------------------------------------------


def export_folder(folder: Path, job: ExportJob) -> ExportOutcome:
    """Export into a folder, or go on with what is there.

    Args:
        folder: made if there is none.
        job: what to do.

    Raises:
        ConfigError: the folder holds something else.
        LockedError: another run is at work in it.
        CorruptDataError: its manifest cannot be read.
        OffsetOutOfRangeError: retention has removed some of what is left to export.
        TopicRecreatedError: the topic was recreated since the export began.
        StorageError: the files cannot be written.
        MemqError: as `TopicReader`.
    """
    with _locked_folder(folder):
        manifest, there, place = _read_manifest(folder, job.request), 0, ("", "")
        if manifest is not None:
            _check_whole(folder, manifest)
            there = len(manifest.parts) - len(manifest.missing)
            if not manifest.missing:
                written = iso_ms(manifest.planned_ms)
                job.say(f"{folder}: all is there already of the export planned at {written}")
                return _outcome(manifest, there)
            if there:
                to_go = counted(len(manifest.missing), "file")
                job.say(f"{folder}: {to_go} to go; {there} are there")
            place = (manifest.topic_id, manifest.schema_id)
        with job.open_reader(*place) as reader:
            if manifest is None:
                manifest = _plan(reader, job)
                _write_manifest(folder, manifest)
            else:
                reader.check_retained(manifest.plan().pieces)
            _export_missing(folder, manifest, reader, job)
        return _outcome(manifest, there)


def _check_whole(folder: Path, manifest: ExportManifest) -> None:
    """Refuse an export of which somebody has removed or changed a whole file."""
    for part in manifest.parts:
        file = folder / part.file
        with _files_of(folder):
            size_bytes = file.stat().st_size if file.exists() else None
        if part.records is not None and size_bytes != part.file_bytes:
            raise ConfigError(
                f"{file} has {size_bytes} bytes (None: it is gone), and {part.file_bytes} were "
                "written; export into another folder"
            )


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs; make it if there is none."""
    with _files_of(folder):
        make_folders(folder)
        lock = lock_exclusively(folder / LOCK)
    try:
        yield
    finally:
        os.close(lock)


def _plan(reader: TopicReader, job: ExportJob) -> ExportManifest:
    plan = reader.plan(job.selection, piece_bytes=job.file_bytes)
    nothing = Piece(OffsetRange(job.selection.partition or 0, 0, 0))  # a file says so as well
    return ExportManifest(
        version=MANIFEST_VERSION,
        request=job.request,
        topic_id=reader.topic_id,
        schema_id=reader.schema_id,
        planned_ms=time.time_ns() // 1_000_000,
        parts=[_part(piece, job.request.format) for piece in plan.pieces or [nothing]],
        incomplete_before_ms=plan.incomplete_before_ms,
    )


def _part(piece: Piece, form: FileFormat) -> Part:
    partition, start, end, _ = piece.range
    return Part(
        file=f"partition-{partition:05d}-{start:012d}-{end:012d}{suffix_of(form)}",
        partition=partition,
        start=start,
        end=end,
        batches=piece.contents.batches,
        size_bytes=piece.contents.bytes,
    )


def _export_missing(
    folder: Path, manifest: ExportManifest, reader: TopicReader, job: ExportJob
) -> None:
    """Make the files that are not whole, one after the other."""
    plan = manifest.plan()
    with job.progress(plan.size_bytes) as advance:
        for part, piece in zip(manifest.missing, plan.pieces, strict=True):
            file = folder / part.file
            with _files_of(folder), _hidden(file).open("wb") as hidden:
                part.records, part.file_bytes = _write(
                    hidden, reader, plan, [piece], form=job.request.format, advance=advance
                )
                _show(file)
            _write_manifest(folder, manifest)


def _outcome(manifest: ExportManifest, there: int) -> ExportOutcome:
    parts = manifest.parts
    return ExportOutcome(
        records=sum(part.records or 0 for part in parts),
        batches=sum(part.batches for part in parts),
        files=len(parts),
        resumed_files=there,
        read_bytes=sum(part.size_bytes for part in parts),
        written_bytes=sum(part.file_bytes or 0 for part in parts),
        incomplete_before=_time(manifest.incomplete_before_ms),
    )


def _time(time_ms: float | None) -> str | None:
    return None if time_ms is None else iso_ms(round(time_ms))


def _read_manifest(folder: Path, request: ExportRequest) -> ExportManifest | None:
    """Read the manifest of the export that a folder holds; None when it holds nothing."""
    path = folder / MANIFEST
    with _files_of(folder):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            held = folder.iterdir() if folder.exists() else ()
            others = sorted(each.name for each in held if each.name not in _OWN)
            if others:
                raise ConfigError(
                    f"{folder} holds {others[0]} and no export; name a folder that is new or empty"
                ) from None
            return None
    try:
        manifest = msgspec.json.decode(content, type=ExportManifest)
    except UNDECODABLE as exc:
        raise CorruptDataError(
            f"{path} is no manifest of an export that this version knows ({exc}); name another "
            "folder"
        ) from exc
    if manifest.version != MANIFEST_VERSION:
        raise CorruptDataError(
            f"{path} has version {manifest.version}; this memq knows {MANIFEST_VERSION}; name "
            "another folder"
        )
    if str(manifest.request) != str(request):
        raise ConfigError(
            f"{folder} holds the export '{manifest.request}', and this one is '{request}'; name "
            "another folder"
        )
    return manifest


_OWN = (LOCK, f"{MANIFEST}.tmp")


def _write_manifest(folder: Path, manifest: ExportManifest) -> None:
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    with _files_of(folder):
        replace_durably(folder / MANIFEST, content)


# -- one file -------------------------------------------------------------------------------


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
    with job.open_reader("", "") as reader, _files_of(file), _locked(_hidden(file)) as hidden:
        plan = reader.plan(job.selection)
        with job.progress(plan.size_bytes) as advance:
            records, size_bytes = _write(
                hidden, reader, plan, plan.pieces, form=job.request.format, advance=advance
            )
        _check_new(file)
        _show(file)
    return ExportOutcome(
        records=records,
        batches=sum(piece.contents.batches for piece in plan.pieces),
        files=1,
        read_bytes=plan.size_bytes,
        written_bytes=size_bytes,
        incomplete_before=_time(plan.incomplete_before_ms),
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


# -- files ----------------------------------------------------------------------------------


def _write(
    file: IO[bytes],
    reader: TopicReader,
    plan: ReadPlan,
    pieces: Sequence[Piece],
    *,
    form: FileFormat,
    advance: Callable[[int], None],
) -> tuple[int, int]:
    """Write the rows of some pieces, durably; rows and bytes of the file."""
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


def suffix_of(form: FileFormat) -> str:
    """Return the suffix of the files of a format."""
    return next(suffix for suffix, each in SUFFIXES.items() if each == form)


def _hidden(file: Path) -> Path:
    """Return the name that a file has until it is complete."""
    return file.with_name(f".{file.name}.tmp")


def _show(file: Path) -> None:
    """Give a file that is whole and durable its name."""
    _hidden(file).replace(file)
    sync_folder(file.parent)


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
