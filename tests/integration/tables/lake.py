"""A catalog in a folder, and files of ranges in it."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from memq.tables.commit import Written, commit_range
from memq.tables.iceberg import open_table
from memq.tables.ledger import TopicRange

NAME = "lake.clicks"
SCHEMA = pa.schema(
    [
        ("value", pa.int64()),
        ("topic", pa.string()),
        ("memq_incarnation", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
RECORDS = 3
"""Of each offset."""


def catalog_options(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


def lake_table(folder: Path, schema: pa.Schema = SCHEMA):
    """A table in a catalog of its own, as another process would open it."""
    table = open_table(f"local:{NAME}", catalog_options(folder))
    table.create(schema)
    return table


def clicks(start: int, end: int, partition: int = 0, incarnation: str = "a1") -> TopicRange:
    return TopicRange(
        topic="clicks", incarnation=incarnation, partition=partition, start=start, end=end
    )


def rows(wanted: TopicRange, schema: pa.Schema = SCHEMA) -> pa.Table:
    """The records of a range: some of each offset, which their value tells apart."""
    offsets = [offset for offset in range(wanted.start, wanted.end) for _ in range(RECORDS)]
    count = len(offsets)
    columns = {
        "value": [offset * RECORDS + n % RECORDS for n, offset in enumerate(offsets)],
        "topic": [wanted.topic] * count,
        "memq_incarnation": [wanted.incarnation] * count,
        "partition": [wanted.partition] * count,
        "offset": offsets,
    }
    return pa.table(
        [pa.array(columns.get(field.name, [0.5] * count), field.type) for field in schema],
        schema=schema,
    )


def write(table, wanted: TopicRange, attempt: str, data: pa.Table | None = None) -> Written:
    data = rows(wanted) if data is None else data
    folder = Path(table.location.removeprefix("file://")) / "data" / attempt
    folder.mkdir(parents=True)
    path = folder / f"{wanted.start}.parquet"
    pq.write_table(data, path)
    return Written(msgspec.structs.replace(wanted, records=data.num_rows), [f"file://{path}"])


def put(table, wanted: TopicRange, data: pa.Table | None = None):
    """Commit a range, with files of this attempt."""
    attempt = uuid.uuid4().hex
    return commit_range(
        table, wanted, lambda: write(table, wanted, attempt, data), attempt=attempt, job="test"
    )


def compact(table) -> None:
    """Write all rows anew, as programs do that know nothing of ledgers."""
    loaded = table.load()
    loaded.overwrite(loaded.scan().to_arrow())


class _DeleteManifestWriter(ManifestWriterV2):
    """pyiceberg reads marks of deletion, and does not write them."""

    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


def mark_deleted(table, position: int) -> None:
    """Mark a row of each file as deleted, as Spark and others do that merge on read."""
    loaded = table.load()
    before, io = loaded.current_snapshot(), loaded.io
    snapshot_id, folder = loaded.metadata.new_snapshot_id(), f"{table.location}/metadata"
    sequence = loaded.metadata.next_sequence_number()
    names = [each.file.file_path for each in loaded.scan().plan_files()]
    marks = pa.table({"file_path": names, "pos": [position] * len(names)})
    marks = marks.cast(
        pa.schema(
            [
                pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
                pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
            ]
        )
    )
    path = f"{folder}/{snapshot_id}-deletes.parquet"
    pq.write_table(marks, path.removeprefix("file://"))
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(marks),
        file_size_in_bytes=1,
    )
    manifest = io.new_output(f"{folder}/{snapshot_id}-m0.avro")
    with _DeleteManifestWriter(
        loaded.spec(), loaded.schema(), manifest, snapshot_id, "deflate"
    ) as writer:
        writer.add(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=deletes
            )
        )
    listing = f"{folder}/snap-{snapshot_id}.avro"
    with write_manifest_list(
        2, io.new_output(listing), snapshot_id, before.snapshot_id, sequence, "deflate"
    ) as manifests:
        manifests.add_manifests([*before.manifests(io), writer.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=before.snapshot_id,
        sequence_number=sequence,
        timestamp_ms=before.timestamp_ms + 1,
        manifest_list=listing,
        summary=Summary(Operation.DELETE),
        schema_id=loaded.schema().schema_id,
    )
    updates = (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id),
    )
    loaded.catalog.commit_table(loaded, (), updates)


def values(table) -> list[int]:
    return sorted(table.load().scan().to_arrow()["value"].to_pylist())


def all_of(end: int) -> list[int]:
    return list(range(end * RECORDS))
