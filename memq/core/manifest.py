"""The result manifest: what a job says about one range of offsets that it has finished.

Theory of operation
-------------------
A job that turns a range of one read partition into files writes one manifest for it, last. So a
manifest says two things: its files are complete, and what went into them. Who asked for the range
compares the manifest with what was planned (`check_manifest`); an auditor compares its counts and
its CRC sum with what the Notifications of the same range say. Because a range of offsets names the
same Batches for ever, a job that is run again writes the same counts.

It is JSON on several lines, for people to read.
"""

from __future__ import annotations

import msgspec

from memq.errors import CorruptDataError, DataLossError

MANIFEST_VERSION = 1
_CRC_MODULUS = 2**64


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What went into the files of one range of one read partition.

    Attributes:
        version: of this format.
        job: name of the job, as it also reports what it consumed.
        topic: the topic.
        partition: read partition.
        start: first offset of the range.
        end: one past its last offset.
        batches: Batches in the range.
        messages: Messages that were read, those repeated or skipped left out.
        records: LogMessages that were written to the files.
        bytes: size of the range's objects in storage.
        repeats: Messages dropped because the range, or what is before it, holds them already.
        skipped_messages: damaged Messages that were left out; 0 unless the job may skip them.
        crc_sum: sum of the CRC32C of the Messages read, modulo 2**64.
        output: folder that holds the files.
        files: their names in it, sorted.
        started_ms: when the job began, milliseconds since 1970 UTC.
        finished_ms: when all was written.
    """

    version: int = MANIFEST_VERSION
    job: str
    topic: str
    partition: int
    start: int
    end: int
    batches: int
    messages: int
    records: int
    bytes: int
    repeats: int = 0
    skipped_messages: int = 0
    crc_sum: int
    output: str
    files: list[str]
    started_ms: int
    finished_ms: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """The JSON of a manifest, indented, with a line end."""
    return msgspec.json.format(_encoder.encode(manifest), indent=2) + b"\n"


def decode_manifest(payload: bytes) -> Manifest:
    """A manifest from its JSON.

    Raises:
        CorruptDataError: it is not a manifest, is of a version that this reader does not know, or
            has numbers that make no sense.
    """
    try:
        manifest = _decoder.decode(payload)
    except msgspec.MsgspecError as exc:
        raise CorruptDataError(f"not a manifest: {exc}: {payload[:80]!r}") from exc
    if manifest.version != MANIFEST_VERSION:
        raise CorruptDataError(
            f"manifest of version {manifest.version}; this reader knows {MANIFEST_VERSION}: "
            "upgrade memq"
        )
    counts = {name: value for name, value in _numbers(manifest).items() if value < 0}
    if counts or manifest.end < manifest.start or manifest.crc_sum >= _CRC_MODULUS:
        raise CorruptDataError(f"manifest with numbers that make no sense: {payload[:400]!r}")
    return manifest


def check_manifest(manifest: Manifest, *, topic: str, partition: int, start: int, end: int) -> None:
    """Make sure that a manifest is of the range that was planned.

    Raises:
        DataLossError: it is not; the message names each difference.
    """
    planned = {"topic": topic, "partition": partition, "start": start, "end": end}
    differences = [
        f"{name} is {getattr(manifest, name)!r}, planned was {value!r}"
        for name, value in planned.items()
        if getattr(manifest, name) != value
    ]
    if differences:
        raise DataLossError(
            f"the manifest of job {manifest.job!r} is not of the range planned: "
            + "; ".join(differences)
        )


def _numbers(manifest: Manifest) -> dict[str, int]:
    """All of its numbers by name."""
    return {
        name: value
        for name, value in msgspec.structs.asdict(manifest).items()
        if isinstance(value, int)
    }
