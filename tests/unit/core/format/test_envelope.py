"""Each number in an envelope, damaged on purpose."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.format.envelope import _fields, _vector, check_record_batch, read_envelope
from memq.core.format.message import encode_message
from memq.core.format.schema import layout_of
from memq.errors import CorruptDataError, MemqError, MessageTooLargeError, SchemaMismatchError

BATCH = pa.record_batch({"a": pa.array([b"x" * 100, None]), "n": pa.nulls(2)})
LIMIT = 1 << 20


class Patient:
    """A sound Message and the positions of its numbers, to be damaged one at a time."""

    def __init__(self, compression: str | None = None) -> None:
        self.data = bytearray(encode_message(BATCH, compression))
        envelope = read_envelope(memoryview(self.data))
        metadata = envelope.metadata
        self.message = struct.unpack_from("<I", metadata)[0] + 8
        self.header = envelope.header + 8
        self.body = envelope.body_start
        message_fields = [at + 8 for at in _fields(metadata, self.message - 8, 4)]
        self.version, self.kind, self.header_offset, self.body_length = message_fields
        batch_fields = _fields(metadata, envelope.header, 5)
        self.records = batch_fields[0] + 8
        self.nodes = _vector(metadata, batch_fields[1])[1] + 8
        self.buffers = _vector(metadata, batch_fields[2])[1] + 8
        self.vtable = self.header - self.read("<i", self.header)

    def read(self, code: str, position: int) -> int:
        return struct.unpack_from(code, self.data, position)[0]

    def write(self, code: str, position: int, value: int):
        struct.pack_into(code, self.data, position, value)
        return self

    def check(self, limit: int = LIMIT) -> None:
        check_record_batch(memoryview(self.data), layout_of(BATCH.schema), limit)


@pytest.mark.parametrize(
    ("field", "code", "value", "match"),
    [
        ("version", "<H", 3, "metadata version 4"),
        ("body_length", "<q", -8, "claims"),
        ("body_length", "<q", 2**62, "claims"),
        ("body_length", "<q", 12, "claims"),
        ("header_offset", "<I", 2**31, "outside itself"),
        ("header", "<i", 2**30, "no vtable"),
        ("header", "<i", -(2**30), "outside itself"),
        ("vtable", "<H", 2, "no vtable"),
        ("records", "<q", 0, "0 records"),
        ("records", "<q", -1, "-1 records"),
        ("nodes", "<q", -1, "impossible length"),
        ("nodes", "<q", 0, "impossible length"),  # fewer values than nulls
        ("buffers", "<q", -8, "outside its body"),
        ("buffers", "<q", 2**40, "outside its body"),
    ],
)
def test_a_number_that_cannot_be_is_corrupt(field, code, value, match) -> None:
    """Each number that Arrow would trust is looked at first."""
    patient = Patient()
    with pytest.raises(CorruptDataError, match=match):
        patient.write(code, getattr(patient, field), value).check()


def test_the_prefix_must_be_a_continuation_and_a_length() -> None:
    """The legacy format without marker, a length of 0 and one that is not aligned are refused."""
    for code, position, value in (("<i", 0, 8), ("<i", 4, 0), ("<i", 4, -8), ("<i", 4, 13)):
        with pytest.raises(CorruptDataError, match="do not begin an Arrow message"):
            Patient().write(code, position, value).check()


def test_a_message_without_a_header_is_corrupt() -> None:
    """A Message table may leave out any field; without a header it is of no use."""
    for slot in (1, 2):
        patient = Patient()
        vtable = patient.message - patient.read("<i", patient.message)
        with pytest.raises(CorruptDataError, match="no header"):
            patient.write("<H", vtable + 4 + 2 * slot, 0).check()


@pytest.mark.parametrize("part", ["nodes", "buffers"])
@pytest.mark.parametrize("change", [-1, 1])
def test_one_node_or_buffer_too_many_or_too_few_does_not_fit(part, change) -> None:
    """The counts are those of the schema exactly."""
    patient = Patient()
    count_at = getattr(patient, part) - 4
    with pytest.raises(SchemaMismatchError, match="field nodes"):
        patient.write("<I", count_at, patient.read("<I", count_at) + change).check()


def test_a_column_that_claims_too_many_values_is_too_large() -> None:
    """A null column takes no bytes, so only this bound stops it."""
    patient = Patient()
    null_column = patient.nodes + 16
    patient.write("<q", null_column, 2**60).write("<q", null_column + 8, 2**60)
    with pytest.raises(MessageTooLargeError, match=str(2**60)):
        patient.check()
    with pytest.raises(MessageTooLargeError, match=f"the limit, as for bytes, is {LIMIT}"):
        patient.write("<q", patient.records, 2**62).check()


def test_a_claim_of_gigabytes_is_refused_before_they_are_allocated() -> None:
    """The declared size alone decides."""
    patient = Patient("zstd")
    values = patient.body + patient.read("<q", patient.buffers + 32)
    for claim in (LIMIT, 2**40, 2**63 - 1):
        with pytest.raises(MessageTooLargeError, match="decodes to"):
            patient.write("<q", values, claim).check()
    for claim in (-2, -(2**63)):
        with pytest.raises(CorruptDataError, match=f"declares {claim}"):
            patient.write("<q", values, claim).check()


def test_a_compressed_buffer_has_room_for_its_size() -> None:
    """A length below 8 cannot hold the declared size; one at the very end cannot be read."""
    patient = Patient("zstd")
    patient.write("<q", patient.buffers + 32 + 8, 4)
    with pytest.raises(CorruptDataError, match="compressed buffer of 4 bytes"):
        patient.check()
    patient.write("<q", patient.buffers + 32, len(patient.data) - patient.body - 4)
    with pytest.raises(CorruptDataError, match="outside itself"):
        patient.check()


def test_buffers_that_overlap_are_refused() -> None:
    """Thousands of columns could be one long buffer, which is decompressed for each."""
    for compression in (None, "zstd"):
        patient = Patient(compression)
        for buffer in range(3):
            at = patient.buffers + 16 * buffer
            patient.write("<q", at, 0).write("<q", at + 8, len(patient.data) - patient.body)
        with pytest.raises(CorruptDataError, match="overlap"):
            patient.check()


def test_a_message_has_no_metadata_of_its_own() -> None:
    """Arrow would copy what its references lead to, and each may lead to the same."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH.schema) as writer:
        writer.write_batch(BATCH, custom_metadata={"a": "b"})
    stream = memoryview(sink.getvalue()).cast("B")
    start = read_envelope(stream).length
    with pytest.raises(CorruptDataError, match="metadata of its own"):
        check_record_batch(stream[start:-8], layout_of(BATCH.schema), LIMIT)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (BATCH.schema, "kind 1"),
        (pa.record_batch({"a": pa.array(["too long to inline"], pa.string_view())}), "buffers"),
    ],
)
def test_what_is_no_record_batch_of_this_layout_does_not_fit(message, match) -> None:
    """Another kind of message, or one with variadic buffers."""
    with pytest.raises(SchemaMismatchError, match=match):
        check_record_batch(memoryview(message.serialize()), layout_of(BATCH.schema), LIMIT)


@given(
    place=st.integers(0, len(Patient().data) - 1), byte=st.integers(0, 255), extra=st.integers(0, 9)
)
def test_the_template_changes_no_verdict(place, byte, extra) -> None:
    """A damaged envelope gets the same verdict as where it is parsed in full."""
    damaged = bytearray(bytes(Patient().data) + bytes(extra))
    damaged[place] = byte
    layout = layout_of(BATCH.schema)
    assert layout.template is not None
    assert verdict(damaged, layout) == verdict(damaged, layout._replace(template=None))


def verdict(data, layout) -> tuple | None:
    """How a check ends."""
    try:
        check_record_batch(memoryview(data), layout, LIMIT)
    except MemqError as exc:
        return type(exc), str(exc)
    return None
