"""The result manifest: what a job says about one range of offsets that it has finished.

Theory of operation
-------------------
A job that turns a range of one read partition into files writes one manifest for it, last. So a
manifest says two things: its files are complete, and what went into them. The caller of the
job compares the manifest with what was planned (`check_manifest`), and its counts and its CRC sum
with what the Notifications of the same range say (`check_totals`). Because a range of offsets names
the same Batches forever, a job that is run again writes the same counts.

Messages of the range that are not in the files, as they could not be read, are counted and named:
with them the manifest says of every LogMessage of the range what became of it, and the same totals
must come out whether something was left out or not.

It is JSON on several lines, for people to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec

from memq.core.audit.reports import CRC_MODULUS
from memq.core.decoding import check_version, decode_stored
from memq.core.ranges import offsets_in_words
from memq.core.units import counted
from memq.errors import CorruptDataError, DataLossError, TopicRecreatedError

if TYPE_CHECKING:
    from memq.core.notification import Notification
    from memq.core.ranges import OffsetRange

MANIFEST_VERSION = 2

MAX_LEFT_OUT = 1_000
"""Runs of Messages that a manifest names, some 200 bytes each; those beyond are counted."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
CrcSum = Annotated[int, msgspec.Meta(ge=0)]

MAX_DESCRIBED = 5  # of them in a line of a log


class LeftOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Consecutive Messages of one Batch that are not in the files.

    Attributes:
        reason: "damaged"; "missing" when the object is gone.
        offset: of the Batch.
        write_partition: of the Messages.
        producer_id: who sent them.
        epoch: of the producer.
        first: first sequence.
        last: last sequence, included.
        records: LogMessages in them.
        crc_sum: sum of the CRC32C of the Messages, modulo 2**64.
    """

    reason: Literal["damaged", "missing"]
    offset: Count
    write_partition: Count
    producer_id: str
    epoch: Count
    first: Count
    last: Count
    records: Count
    crc_sum: CrcSum

    @property
    def messages(self) -> int:
        """Messages in the run."""
        return self.last - self.first + 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What went into the files of one range of one read partition, and what did not.

    Attributes:
        version: of this format.
        job: name of the job, as it also reports what it consumed.
        topic: the topic.
        topic_id: of the topic.
        partition: read partition.
        start: first offset of the range.
        end: one past its last offset.
        batches: Batches in the range.
        messages: Messages that were read, without the skipped ones.
        records: LogMessages that were written to the files.
        bytes: size of the range's objects in storage.
        skipped_messages: Messages left out because they are damaged or gone; 0 unless the job may
            skip them.
        skipped_records: LogMessages in them.
        left_out: the skipped Messages by name; the first `MAX_LEFT_OUT` runs of them.
        unnamed_messages: those that `left_out` has no room for.
        crc_sum: sum of the CRC32C of the Messages read, modulo 2**64.
        left_out_crc_sum: of the Messages left out, modulo 2**64.
        output: folder that holds the files.
        files: their names in it, sorted.
        started_ms: when the job began, milliseconds since 1970 UTC.
        finished_ms: when all was written.
    """

    version: int = MANIFEST_VERSION
    job: str
    topic: str
    topic_id: str
    partition: Count
    start: Count
    end: Count
    batches: Count
    messages: Count
    records: Count
    bytes: Count
    skipped_messages: Count = 0
    skipped_records: Count = 0
    left_out: list[LeftOut] = []
    unnamed_messages: Count = 0
    crc_sum: CrcSum
    left_out_crc_sum: CrcSum = 0
    output: str
    files: list[str]
    started_ms: Count
    finished_ms: Count


class Totals(NamedTuple):
    """What a range contains, as its Notifications or its manifest say.

    Attributes:
        batches: Batches.
        messages: Messages.
        records: LogMessages in them.
        bytes: size of the objects.
        crc_sum: sum of the CRC32C of the Messages, modulo 2**64.
    """

    batches: int = 0
    messages: int = 0
    records: int = 0
    bytes: int = 0
    crc_sum: int = 0

    def plus(self, notification: Notification) -> Totals:
        """Add one more Batch."""
        return Totals(
            self.batches + 1,
            self.messages + notification.messages,
            self.records + notification.records,
            self.bytes + notification.size_bytes,
            (self.crc_sum + sum(run.crc_sum for run in notification.producers)) % CRC_MODULUS,
        )


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest as JSON, indented, with a line end."""
    return msgspec.json.format(_encoder.encode(manifest), indent=2) + b"\n"


def decode_manifest(payload: bytes) -> Manifest:
    """Decode a manifest from its JSON.

    Raises:
        CorruptDataError: it is not a manifest, is of a version that this reader does not know, or
            has numbers that make no sense.
    """
    manifest = decode_stored(_decoder.decode, payload, "a manifest")
    check_version(manifest.version, MANIFEST_VERSION, "manifest")
    if not _makes_sense(manifest):
        raise CorruptDataError(f"manifest with numbers that make no sense: {payload[:400]!r}")
    return manifest


def check_manifest(manifest: Manifest, topic: str, planned: OffsetRange) -> None:
    """Make sure that a manifest is of the range that was planned.

    Raises:
        TopicRecreatedError: it is of another topic of that name.
        DataLossError: it is not; the message names each difference.
    """
    wanted = {"topic": topic} | planned._asdict()
    topic_id = wanted.pop("topic_id")
    differences = [
        f"{name} is {getattr(manifest, name)!r}, planned was {value!r}"
        for name, value in wanted.items()
        if getattr(manifest, name) != value
    ]
    if differences:
        raise DataLossError(
            f"the manifest of job {manifest.job!r} is not of the range planned: "
            + "; ".join(differences)
        )
    if manifest.topic_id != topic_id:
        raise TopicRecreatedError(
            f"topic {topic!r} was deleted and recreated: the manifest of job {manifest.job!r} is "
            f"of topic id {manifest.topic_id}, and {topic_id} was planned. Plan the range "
            "again"
        )


def check_totals(manifest: Manifest, published: Totals) -> None:
    """Make sure that a manifest accounts for all that its range contains, down to the LogMessage.

    Raises:
        DataLossError: naming each difference.
    """
    found = Totals(
        manifest.batches,
        manifest.messages + manifest.skipped_messages,
        manifest.records + manifest.skipped_records,
        manifest.bytes,
        (manifest.crc_sum + manifest.left_out_crc_sum) % CRC_MODULUS,
    )
    wrong = [
        f"{name}: {has} of {wants}"
        for name, has, wants in zip(Totals._fields, found, published, strict=True)
        if has != wants
    ]
    if wrong:
        raise DataLossError(
            f"job {manifest.job!r} does not account for all of {manifest.topic!r} partition "
            f"{manifest.partition}, {offsets_in_words(manifest.start, manifest.end)}: "
            + "; ".join(wrong)
        )


def describe_left_out(manifest: Manifest) -> str:
    """Describe what is not in the files, in one line; empty when nothing was left out."""
    if not manifest.left_out and not manifest.unnamed_messages:
        return ""
    named = ", ".join(
        f"{each.reason} at offset {each.offset}: {each.first}-{each.last} of producer "
        f"{each.producer_id!r} epoch {each.epoch} write partition {each.write_partition}"
        for each in manifest.left_out[:MAX_DESCRIBED]
    )
    described = sum(each.messages for each in manifest.left_out[:MAX_DESCRIBED])
    more = manifest.skipped_messages - described
    return (
        f"skipped {counted(manifest.skipped_messages, 'Message')} with "
        f"{counted(manifest.skipped_records, 'record')}: "
        + named
        + (f", and {counted(more, 'Message')} more" if more else "")
    )


def _makes_sense(manifest: Manifest) -> bool:
    """Tell whether what it names is what it counts."""
    crc_sums = (manifest.crc_sum, manifest.left_out_crc_sum)
    if manifest.end < manifest.start or max(crc_sums) >= CRC_MODULUS:
        return False
    left_out = manifest.left_out
    if any(it.messages < 1 or not manifest.start <= it.offset < manifest.end for it in left_out):
        return False
    messages = sum(each.messages for each in left_out)
    if messages + manifest.unnamed_messages != manifest.skipped_messages:
        return False
    records = sum(each.records for each in left_out)
    crc_sum = sum(each.crc_sum for each in left_out) % CRC_MODULUS
    return manifest.unnamed_messages > 0 or (
        (records, crc_sum) == (manifest.skipped_records, manifest.left_out_crc_sum)
    )
