"""The envelope of an Arrow message, read with nothing but bounds-checked integer reads.

Theory of operation. Arrow checks a message only while it decodes it, and decoding a compressed
buffer begins by allocating the size that the buffer *declares*. A few hostile bytes could so claim
gigabytes. This module therefore reads the envelope first, allocates nothing that depends on what
it reads, and looks at every number that Arrow is going to trust:

- the message ends exactly where its bytes end, and is one RecordBatch;
- it has as many field nodes and buffers as the schema asks for, no more and no fewer;
- lengths and null counts are no larger than they can be, buffers lie inside the body and do not add
  up to more than it;
- columns that may have no nulls claim none (Arrow then looks for none, or refuses the claim);
- what all buffers decode to, summed, is within the limit of the caller;
- no part of a flatbuffer stands for many: tables and texts may be referred to from many places, and
  Arrow makes a copy for each.

What is left to Arrow's own full validation, which runs next, is what is *in* the buffers: offsets,
validity bits, UTF-8.

Layout (all integers little endian, as in the Arrow columnar format, version 5 metadata):

    0   int32   0xFFFFFFFF, the continuation marker
    4   int32   length of the metadata, a multiple of 8
    8   bytes   metadata: a flatbuffer whose root is the table Message
    ..  bytes   body, bodyLength bytes, a multiple of 8

A flatbuffer table starts with an int32 that points back to its vtable: uint16 size of the vtable,
uint16 size of the table, then one uint16 per field, its offset in the table (0 or beyond the end of
the vtable: the field has its default). Tables and vectors are reached through uint32 offsets from
where the offset stands. A vector is a uint32 count and its elements. `struct.unpack_from` refuses
positions beyond the end; positions before the start are refused here, as they would count from the
end in Python.
"""

from __future__ import annotations

import operator
import struct
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from memq.core.units import counted
from memq.errors import CorruptDataError, MessageTooLargeError, SchemaMismatchError

BytesLike = bytes | bytearray | memoryview | Any
"""What is taken as bytes: an object with the buffer protocol, `pyarrow.Buffer` among them."""

ARROW_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    NotImplementedError,
    OSError,
    EOFError,
    OverflowError,
    pa.lib.ArrowCapacityError,
    pa.lib.ArrowSerializationError,
)
"""What Arrow raises on input that does not hold. Want of memory is not among them: no input that
passes the checks here causes it, so it must not be taken for a fault of the input.
"""

ALIGNMENT = 8  # of every Arrow message; keeps all buffers of a Batch aligned without a copy
CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + b"\0\0\0\0"
PREFIX_BYTES = 8  # continuation marker and metadata length

SCHEMA_MESSAGE = 1  # Message.header_type, from the union MessageHeader of Arrow's Message.fbs
RECORD_BATCH_MESSAGE = 3
_METADATA_V5 = 4  # enum MetadataVersion; written by every Arrow since 1.0 (2020)
_NOT_COMPRESSED = -1  # declared size of a buffer that was left as it is

# Fields of the tables that are read, in the order of their slots.
_MESSAGE_FIELDS = 5  # version, header_type, header, bodyLength, custom_metadata
_BATCH_FIELDS = 5  # length, nodes, buffers, compression, variadicBufferCounts
_SCHEMA_FIELDS = 3  # endianness, fields, custom_metadata; what follows is not copied
_FIELD_FIELDS = 7  # name, nullable, type_type, type, dictionary, children, custom_metadata
_PAIR_FIELDS = 2  # key, value
_TIMESTAMP_FIELDS = 2  # unit, timezone
_TIMESTAMP = 10  # Field.type_type, from the union Type of Arrow's Schema.fbs
_PART_BYTES = 12  # least size of a reference and of the table behind it
_VTABLE_HEADER_BYTES = 4  # its own size, and the size of its table

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_PREFIX = struct.Struct("<4si")
_OFFSETS = tuple(struct.Struct(f"<{count}H") for count in range(_FIELD_FIELDS + 1))


class Envelope(NamedTuple):
    """Where the parts of one message lie.

    Attributes:
        kind: `Message.header_type`.
        header: position of the header table in `metadata`.
        metadata: the flatbuffer.
        body_start: position of the body, counted from the start of the message.
        body_length_at: position of its length, counted likewise; 0 when it is left out.
        body_length: length of the body in bytes.
    """

    kind: int
    header: int
    metadata: memoryview
    body_start: int
    body_length_at: int
    body_length: int

    @property
    def length(self) -> int:
        """Length of the whole message in bytes."""
        return self.body_start + self.body_length


class EnvelopeLayout(NamedTuple):
    """What every RecordBatch of one schema has.

    Attributes:
        nodes: its field nodes, ready to unpack: length and null count of each.
        buffers: its buffers, ready to unpack: offset and length of each.
        required: the columns that may have no nulls: position of the null count among the numbers
            of the nodes, and name.
        template: of those that Arrow writes here, not compressed; None where they have no body.
    """

    nodes: struct.Struct
    buffers: struct.Struct
    required: tuple[tuple[int, str], ...]
    template: Template | None = None


class _NumberOffsets(NamedTuple):
    """Byte offsets of the numbers of a RecordBatch message, counted from its start.

    Attributes:
        body_length: of the length of the body; 0 when it is left out because there is none.
        body_start: where the body begins.
        records: of the number of rows.
        nodes: of the first field node.
        buffers: of the first buffer.
        compressed: whether buffers are compressed.
    """

    body_length: int
    body_start: int
    records: int
    nodes: int
    buffers: int
    compressed: bool


class Template(NamedTuple):
    """An envelope without its numbers: one that equals it needs no parsing.

    Arrow lays out the RecordBatches of one schema in the same way, so comparing some hundred bytes
    at once says where the numbers are, for a third of what parsing costs: a tenth of what a broker
    does for a Message of 64 KiB. It is never made of what clients send: they might lay tables over
    numbers, and mean something else with other numbers.

    Attributes:
        mask: ones where nothing but the expected may stand, as one little-endian integer.
        fixed: what stands there.
        at: where the numbers are.
    """

    mask: int
    fixed: int
    at: _NumberOffsets


def view_bytes(data: BytesLike) -> memoryview:
    """Return a view on the bytes of `data`, as unsigned bytes whatever its items are
    (`pyarrow.Buffer` has signed ones, which compare unequal to the same bytes).
    """
    return memoryview(data).cast("B")


def read_envelope(data: memoryview) -> Envelope:
    """Read the envelope of the message at the start of `data`; all of the message lies in `data`.

    Raises:
        CorruptDataError: these bytes are not a whole Arrow message.
    """
    try:
        return _read_envelope(data)
    except struct.error as exc:
        raise CorruptDataError(f"the Arrow envelope points outside itself: {exc}") from exc


def check_schema_message(data: memoryview) -> None:
    """Check that `data` is one schema message, which Arrow can decode in memory of about its size.

    Raises:
        CorruptDataError: it is not.
    """
    envelope = read_envelope(data)
    if envelope.kind != SCHEMA_MESSAGE or envelope.length != len(data):
        raise CorruptDataError(f"{len(data)} bytes are not one Arrow schema message")
    try:
        _check_copies(envelope.metadata, envelope.header)
    except struct.error as exc:
        raise CorruptDataError(f"the Arrow schema points outside itself: {exc}") from exc


def count_nodes_and_buffers(message: memoryview) -> tuple[int, int]:
    """Count the field nodes and buffers of a RecordBatch that we encoded ourselves."""
    envelope = read_envelope(message)
    _, nodes_at, buffers_at, _, _ = _fields(envelope.metadata, envelope.header, _BATCH_FIELDS)
    return _vector(envelope.metadata, nodes_at)[0], _vector(envelope.metadata, buffers_at)[0]


def check_record_batch(data: memoryview, layout: EnvelopeLayout, max_decoded_bytes: int) -> None:
    """Check that `data` is one RecordBatch of this layout, and nothing else.

    Raises:
        CorruptDataError: the envelope does not hold, or other bytes follow the message.
        SchemaMismatchError: it is not a RecordBatch of this layout.
        MessageTooLargeError: decoded it would be larger than `max_decoded_bytes`.
    """
    try:
        at = _find_by_template(data, layout) or _find(data, layout)
        _check_numbers(data, at, layout, max_decoded_bytes)
    except struct.error as exc:
        raise CorruptDataError(f"the RecordBatch table points outside itself: {exc}") from exc


def _read_envelope(data: memoryview) -> Envelope:
    marker, size = _PREFIX.unpack_from(data)
    if marker != CONTINUATION or size <= 0 or size % ALIGNMENT:
        raise CorruptDataError(
            f"bytes {bytes(data[:PREFIX_BYTES]).hex(' ')} do not begin an Arrow message"
        )
    body_start = PREFIX_BYTES + size
    metadata = data[PREFIX_BYTES:body_start]
    message = _U32.unpack_from(metadata)[0]
    version_at, kind_at, header_at, length_at, pairs_at = _fields(
        metadata, message, _MESSAGE_FIELDS
    )
    version = _U16.unpack_from(metadata, version_at)[0] if version_at else 0
    if version != _METADATA_V5:
        raise CorruptDataError(f"Arrow metadata version {version + 1} is not version 5")
    length = _I64.unpack_from(metadata, length_at)[0] if length_at else 0
    if length < 0 or length % ALIGNMENT or body_start + length > len(data):
        raise CorruptDataError(
            f"the Arrow message claims {size} + {length} bytes; {len(data) - PREFIX_BYTES} are left"
        )
    if not kind_at or not header_at:
        raise CorruptDataError("the Arrow message has no header")
    if pairs_at:  # no writer of ours has any, and Arrow would copy what they claim
        raise CorruptDataError("the Arrow message has metadata of its own, which none may have")
    kind = _U8.unpack_from(metadata, kind_at)[0]
    header = _target(metadata, header_at)
    length_at = length_at and PREFIX_BYTES + length_at
    return Envelope(kind, header, metadata, body_start, length_at, length)


def _check_copies(metadata: memoryview, schema: int) -> None:
    """Check that what Arrow will copy out of a schema is no more than what is there.

    Each table and text counts as often as it is met. Where none is shared, they cannot add up to
    more than the bytes of the flatbuffer.
    """
    _, fields_at, pairs_at = _fields(metadata, schema, _SCHEMA_FIELDS)
    fields = _references(metadata, fields_at)
    copied = len(fields) * _PART_BYTES + _pairs_size(metadata, pairs_at)
    while fields and copied <= len(metadata):
        name_at, _, kind_at, type_at, _, children_at, pairs_at = _fields(
            metadata, fields.pop(), _FIELD_FIELDS
        )
        children = _references(metadata, children_at)
        copied += len(children) * _PART_BYTES + _pairs_size(metadata, pairs_at)
        copied += _vector(metadata, name_at)[0]
        if kind_at and type_at and _U8.unpack_from(metadata, kind_at)[0] == _TIMESTAMP:
            _, zone_at = _fields(metadata, _target(metadata, type_at), _TIMESTAMP_FIELDS)
            copied += _vector(metadata, zone_at)[0]
        fields += children
    if copied > len(metadata):
        raise CorruptDataError("parts of the Arrow schema are used more than once")


def _pairs_size(metadata: memoryview, position: int) -> int:
    """Size of the pairs of key and value in a field."""
    size = 0
    for pair in _references(metadata, position):
        texts = _fields(metadata, pair, _PAIR_FIELDS)
        size += _PART_BYTES + sum(_vector(metadata, text)[0] for text in texts)
    return size


def _find(data: memoryview, layout: EnvelopeLayout) -> _NumberOffsets:
    """Find where the numbers of this RecordBatch stand."""
    envelope = read_envelope(data)
    if envelope.length != len(data):
        raise CorruptDataError(
            f"{len(data)} bytes were given, but the Arrow message in them has {envelope.length}"
        )
    if envelope.kind != RECORD_BATCH_MESSAGE:
        raise SchemaMismatchError(
            f"the Arrow message is of kind {envelope.kind}; "
            f"a Message is one RecordBatch (kind {RECORD_BATCH_MESSAGE})"
        )
    metadata = envelope.metadata
    length_at, nodes_at, buffers_at, compression_at, variadic_at = _fields(
        metadata, envelope.header, _BATCH_FIELDS
    )
    nodes, nodes_start = _vector(metadata, nodes_at)
    buffers, buffers_start = _vector(metadata, buffers_at)
    if nodes * 16 != layout.nodes.size or buffers * 16 != layout.buffers.size or variadic_at:
        raise SchemaMismatchError(
            f"the RecordBatch has {nodes} field nodes and {buffers} buffers; one of this schema "
            f"has {layout.nodes.size // 16} and {layout.buffers.size // 16}"
        )
    if not length_at:
        raise CorruptDataError("the RecordBatch has 0 records; a Message has at least one")
    return _NumberOffsets(
        body_length=envelope.body_length_at,
        body_start=envelope.body_start,
        records=PREFIX_BYTES + length_at,
        nodes=PREFIX_BYTES + nodes_start,
        buffers=PREFIX_BYTES + buffers_start,
        compressed=compression_at != 0,
    )


def template_of(data: memoryview, layout: EnvelopeLayout) -> Template | None:
    """Make the template of a RecordBatch that we encoded ourselves; None for one without a body."""
    at = _find(data, layout)
    if not at.body_length:
        return None
    head = bytearray(b"\xff") * at.body_start
    for start, size in (
        (at.body_length, _I64.size),
        (at.records, _I64.size),
        (at.nodes, layout.nodes.size),
        (at.buffers, layout.buffers.size),
    ):
        head[start : start + size] = bytes(size)
    mask = int.from_bytes(head, "little")
    return Template(mask, int.from_bytes(data[: at.body_start], "little") & mask, at)


def _find_by_template(data: memoryview, layout: EnvelopeLayout) -> _NumberOffsets | None:
    """Find the same, where a template differs from this RecordBatch in nothing but numbers."""
    template = layout.template
    if template is None:
        return None
    body_start = template.at.body_start
    if int.from_bytes(data[:body_start], "little") & template.mask != template.fixed:
        return None
    # What `read_envelope` would have found out of the length; if not so, it is to say it.
    body_length = _I64.unpack_from(data, template.at.body_length)[0]
    if body_start + body_length != len(data) or body_length % ALIGNMENT:
        return None
    return template.at


def _check_numbers(
    data: memoryview, at: _NumberOffsets, layout: EnvelopeLayout, max_decoded_bytes: int
) -> None:
    records = _I64.unpack_from(data, at.records)[0]
    nodes = layout.nodes.unpack_from(data, at.nodes)
    _check_nodes(records, nodes, max_decoded_bytes)
    for null_count, name in layout.required:
        if nodes[null_count]:
            raise SchemaMismatchError(f"column {name!r} must not have nulls")
    _check_buffers(data, at, layout.buffers, max_decoded_bytes)


def _check_nodes(records: int, nodes: tuple[int, ...], max_decoded_bytes: int) -> None:
    """Check the number of records and the field nodes, which are pairs of length, null count."""
    if records < 1:
        raise CorruptDataError(
            f"the RecordBatch has {counted(records, 'record')}; a Message has at least one"
        )
    lengths, null_counts = nodes[::2], nodes[1::2]
    if min(nodes) < 0 or any(map(operator.gt, null_counts, lengths)):
        raise CorruptDataError("a field node of the RecordBatch has an impossible length")
    # A null column takes no bytes however long it claims to be, so lengths have a bound as well.
    longest = max(records, *lengths)
    if longest > max_decoded_bytes:
        raise MessageTooLargeError(
            f"a column claims {longest} values; the limit, as for bytes, is {max_decoded_bytes}"
        )


def _check_buffers(
    data: memoryview, at: _NumberOffsets, layout: struct.Struct, max_decoded_bytes: int
) -> None:
    """Check where the buffers lie in the body: pairs of offset, length."""
    numbers = layout.unpack_from(data, at.buffers)
    offsets, lengths = numbers[::2], numbers[1::2]
    end = max(map(operator.add, offsets, lengths), default=0)
    size = len(data) - at.body_start
    if min(numbers, default=0) < 0 or end > size:
        raise CorruptDataError("a buffer of the RecordBatch lies outside its body")
    if sum(lengths) > size:  # thousands of them could be the same one, each slow to decompress
        raise CorruptDataError("buffers of the RecordBatch overlap")
    decoded = sum(
        map(_decoded_size, repeat(data[at.body_start :]), offsets, lengths)
        if at.compressed
        else lengths
    )
    if decoded > max_decoded_bytes:
        raise MessageTooLargeError(
            f"the RecordBatch decodes to {decoded} bytes; the limit is {max_decoded_bytes}"
        )


def _decoded_size(body: memoryview, offset: int, length: int) -> int:
    """Return the decoded size of a compressed buffer: its first eight bytes, or its own length."""
    if length == 0:
        return 0
    declared: int = _I64.unpack_from(body, offset)[0]
    if length < _I64.size or declared < _NOT_COMPRESSED:
        raise CorruptDataError(f"a compressed buffer of {length} bytes declares {declared}")
    return length - _I64.size if declared == _NOT_COMPRESSED else declared


def _fields(metadata: memoryview, table: int, count: int) -> list[int]:
    """Positions of the first `count` fields of a table; 0 for one that the table leaves out."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    size = _U16.unpack_from(metadata, vtable)[0] if vtable >= 0 else 0
    if size < _VTABLE_HEADER_BYTES:
        raise CorruptDataError("a table of the Arrow envelope has no vtable")
    present = min((size - _VTABLE_HEADER_BYTES) // _U16.size, count)
    offsets = _OFFSETS[present].unpack_from(metadata, vtable + _VTABLE_HEADER_BYTES)
    return [offset and table + offset for offset in offsets] + [0] * (count - present)


def _vector(metadata: memoryview, position: int) -> tuple[int, int]:
    """Count and position of the elements of the vector in a field; (0, 0) when left out."""
    if not position:
        return 0, 0
    vector = _target(metadata, position)
    return _U32.unpack_from(metadata, vector)[0], vector + _U32.size


def _references(metadata: memoryview, position: int) -> list[int]:
    """Positions of the tables that the vector in a field refers to; none when left out."""
    count, start = _vector(metadata, position)
    if count * _PART_BYTES > len(metadata):
        raise CorruptDataError(f"a vector of the Arrow envelope claims {count} elements")
    end = start + count * _U32.size
    return [_target(metadata, at) for at in range(start, end, _U32.size)]


def _target(metadata: memoryview, position: int) -> int:
    """Position that the reference at a position leads to."""
    target: int = position + _U32.unpack_from(metadata, position)[0]
    return target
