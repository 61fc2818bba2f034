"""Frames: how requests and answers are cut into bytes, checked on every byte.

A frame is a prefix of 32 bytes, a header (msgpack, see `messages`) and a body (raw bytes, such as
the RecordBatch of a Message). Integers are little endian.

    offset  bytes  field
         0      4  magic "MEMQ"
         4      1  version of this layout
         5      1  type: code of the request; an answer has the code of its request
         6      2  flags
         8      8  correlation id
        16      4  header length
        20      4  body length
        24      4  CRC32C of the body; 0 when it is empty
        28      4  CRC32C of bytes 0 to 28 and the header

Two checksums, because they serve two masters. The head's belongs to the connection: it is made new
for each hop. The body's belongs to the Message: its producer computes it once, the broker checks it
and stores it in the Batch, and readers check it again, so that nothing between the two ends can
damage a Message unseen.

How `FrameReader` receives, made for `asyncio.BufferedProtocol`:

- Small things go through a scratch buffer, which all connections of one event loop share: one
  `recv` takes in many small frames. Complete frames are copied out of it; the incomplete rest is
  copied to a buffer of the reader's own. So a reader holds nothing of the scratch between calls,
  and an idle connection holds no memory.
- When the head of a frame is complete, its checksum holds and its body is not all there, the body's
  final memory is allocated, and a long rest of it is received straight into that. A little more is
  allocated after it, so that the next frame's head comes along.
- A length is compared with its limit before a byte is allocated for it.
- Each byte is copied at most twice and looked at a fixed number of times, however it is cut.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from memq.core.checksum import crc32c
from memq.errors import (
    CorruptDataError,
    MemqError,
    MessageTooLargeError,
    ProtocolError,
    UnavailableError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Flat bytes; `pyarrow.Buffer` serves as well."""

MAGIC = b"MEMQ"
FRAME_VERSION = 1
PREFIX_BYTES = 32

RESPONSE = 1
"""Flag: this frame answers the request of its correlation id."""
ERROR = 2
"""Flag: the answer is an `ErrorAnswer`."""
ONEWAY = 4
"""Flag: the sender wants no answer."""
_ALL_FLAGS = RESPONSE | ERROR | ONEWAY

SCRATCH_BYTES = 128 << 10
"""Size of the scratch. A larger one takes more small frames a `recv`, but more of each large body
comes through it and is copied; measured at 4 KiB, 64 KiB and 1 MiB, this is the best of both."""

HEAD_BYTES = 4 << 10
"""After a body that was received directly the next frame is likely to have one too: no more than
its head is then taken through the scratch, which saves copying the beginning of the body."""

SLICE_BYTES = 384 << 10
"""A larger body is received in slices of this size: its CRC32C is made while the processor's caches
still hold it, in 20 µs a MiB instead of 35."""

DIRECT_BYTES = 16 << 10
"""A rest of a body this long is received into its final memory; a shorter one comes through the
scratch, since copying it costs less than a `recv` of its own."""

_START = MAGIC + bytes([FRAME_VERSION])
_HEAD = struct.Struct("<5sBHQIII")
_PREFIX = struct.Struct("<5sBHQIIII")
_CRC = struct.Struct("<I")
_HEADER_LENGTH = struct.Struct("<I")
_HEADER_LENGTH_AT = 16
_NOTHING = memoryview(bytearray())
_HTTP_REQUESTS = (b"GET /", b"HEAD ", b"POST ", b"PUT /")
_TLS = b"\x16\x03"  # how a handshake begins


class Frame(msgspec.Struct, gc=False):
    """A complete frame whose checksums hold.

    Attributes:
        type: code of the request.
        flags: `RESPONSE`, `ERROR`, `ONEWAY`.
        correlation_id: pairs an answer with its request.
        header: msgpack.
        body: raw bytes, not to be written to.
        body_crc: CRC32C of the body.
    """

    type: int
    flags: int
    correlation_id: int
    header: bytes
    body: bytes | memoryview
    body_crc: int


def size_bytes(body: Buffer) -> int:
    """Size of a body; `len` of a memoryview counts its items."""
    return body.nbytes if isinstance(body, memoryview) else len(body)


def encode_frame(
    type: int,  # noqa: A002 - the field's name in the layout
    correlation_id: int,
    header: bytes,
    body: Buffer = b"",
    *,
    flags: int = 0,
    body_crc: int | None = None,
) -> list[Buffer]:
    """Make the buffers of one frame, to be sent in order. The body is not copied.

    Args:
        type: code of the request.
        correlation_id: pairs an answer with its request.
        header: msgpack.
        body: raw bytes.
        flags: `RESPONSE`, `ERROR`, `ONEWAY`.
        body_crc: CRC32C of the body where it is known; computed when None.

    Raises:
        MessageTooLargeError: header or body do not fit the 32 bits of their length.
    """
    length = size_bytes(body) if body else 0
    if body_crc is None:
        body_crc = crc32c(body) if length else 0
    try:
        head = _HEAD.pack(_START, type, flags, correlation_id, len(header), length, body_crc)
    except struct.error as exc:
        raise MessageTooLargeError(
            f"a frame with a header of {len(header)} and a body of {length} bytes does not fit; "
            "each must be less than 4 GiB"
        ) from exc
    first = b"".join((head, _CRC.pack(crc32c(header, crc32c(head))), header))
    return [first, body] if length else [first]


def _allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


class FrameReader:
    """Cuts received bytes into frames.

    Call `get_buffer`, put bytes at its beginning, call `buffer_updated` with their number; or
    call `feed`. After an error the reader stays broken and raises the like again; frames
    before the error in the same read are dropped with it, and count as never received.

    Args:
        max_header_bytes: longest header accepted.
        max_body_bytes: longest body accepted. Both limits may be changed between reads: a server
            keeps them at `HANDSHAKE_MAX_HEADER_BYTES` and 0 until the handshake is done.
        allocate: gives the memory of a body that does not come in one piece, a writable memoryview
            of at least that many bytes. What is beyond takes in the beginning of the next frame,
            which saves a `recv` for each large frame: `HEAD_BYTES` are enough. It may refuse with a
            `MemqError`. Memory from `pyarrow.allocate_buffer` is aligned, and not zeroed first:
            half the work at 1 MiB.
        scratch: where small frames are received; readers may share one when the calls of
            `get_buffer` and `buffer_updated` of different readers do not interleave.

    Attributes:
        read_ahead: set it to False to be at a boundary when a large body is complete, so that no
            further body is begun.
    """

    def __init__(
        self,
        *,
        max_header_bytes: int,
        max_body_bytes: int,
        allocate: Callable[[int], memoryview] = _allocate,
        scratch: memoryview | None = None,
    ) -> None:
        self.max_header_bytes = max_header_bytes
        self.max_body_bytes = max_body_bytes
        self.read_ahead = True
        self._allocate = allocate
        self._scratch = _allocate(SCRATCH_BYTES) if scratch is None else scratch
        self._head = bytearray()  # an incomplete prefix and header
        self._frame: Frame | None = None  # a frame whose body is being received,
        self._memory = _NOTHING  # the memory that was allocated for that body,
        self._body = _NOTHING  # the part of it that is the body,
        self._filled = 0  # how many bytes of it have come,
        self._crc = 0  # and the CRC32C of those
        self._expect_body = False  # whether the last frame's body was received directly
        self._error: MemqError | None = None

    def __repr__(self) -> str:
        if self._error is not None:
            state = f"broken: {self._error}"
        elif self._frame is not None:
            state = f"{self._filled} of {len(self._body)} bytes of a body"
        else:
            state = f"{len(self._head)} bytes of a head" if self._head else "at a frame boundary"
        return f"<FrameReader {state}>"

    @property
    def at_boundary(self) -> bool:
        """True when no frame has been received in part."""
        return self._frame is None and not self._head

    @property
    def expects_body(self) -> bool:
        """True in a large body, and when the next frame probably has one, as the last one had."""
        if self._frame is None:
            return self._expect_body
        return len(self._body) - self._filled >= DIRECT_BYTES

    @property
    def incoming(self) -> Frame | None:
        """The frame whose body is being received, or is to be allocated; it has none yet."""
        return self._frame

    @property
    def buffered_bytes(self) -> int:
        """Memory held for an incomplete frame: what came of its head, and its whole body."""
        return len(self._head) + len(self._body)

    def get_buffer(self) -> memoryview:
        """Return where to put the next bytes, from its beginning; good for one `buffer_updated`."""
        filled, left = self._filled, len(self._body) - self._filled
        if left >= 2 * SLICE_BYTES:
            return self._body[filled : filled + SLICE_BYTES]
        if left >= DIRECT_BYTES:
            return (self._memory if self.read_ahead else self._body)[filled:]
        if self._expect_body and self._frame is None:
            return self._scratch[:HEAD_BYTES]
        return self._scratch

    def buffer_updated(self, count: int) -> list[Frame]:
        """Return the frames that were completed by `count` bytes put into `get_buffer()`.

        Raises:
            ProtocolError: these are not frames of this protocol.
            UnsupportedVersionError: they are frames of another version.
            MessageTooLargeError: a length exceeds its limit.
            CorruptDataError: a checksum does not hold.
            UnavailableError: there is no memory for a body.
        """
        if self._error is not None:
            raise type(self._error)(str(self._error))
        try:
            return self._take(count)
        except MemqError as exc:
            self._break(exc)
            raise

    def feed(self, data: Buffer) -> list[Frame]:
        """Return the frames that were completed by these bytes; raises as `buffer_updated` does."""
        if self._error is not None:
            raise type(self._error)(str(self._error))
        try:
            return self._cut(memoryview(data).cast("B"))
        except MemqError as exc:
            self._break(exc)
            raise

    def _break(self, error: MemqError) -> None:
        # A copy: the traceback of the error holds the body, and this reader.
        self._error = type(error)(str(error))
        self._forget()

    def _forget(self) -> None:
        self._head = bytearray()
        self._frame, self._filled, self._crc = None, 0, 0
        self._memory = self._body = _NOTHING

    def _take(self, count: int) -> list[Frame]:
        """Take in `count` bytes that were put into `get_buffer()`."""
        start, missing = self._filled, len(self._body) - self._filled
        self._expect_body = missing >= DIRECT_BYTES
        if not self._expect_body:
            return self._cut(self._scratch[:count])
        stop = start + count
        memory = self._memory
        frames = self._count_body(self._body[start:stop])
        if count > missing:
            frames += self._cut(memory[start + missing : stop])
        return frames

    def _cut(self, view: memoryview) -> list[Frame]:
        frames: list[Frame] = []
        begun = self._frame is not None or self._head
        position = self._resume(view, frames) if begun else 0
        while (opened := self._open(view, position)) is not None:
            frame, length = opened
            body_at = position + PREFIX_BYTES + len(frame.header)
            position = body_at + length
            if position > len(view):
                self._begin_body(frame, length)
                self._fill_body(view[body_at:])
                return frames
            if length:
                frame.body = view[body_at:position].tobytes()
            _check_body(frame, crc32c(frame.body))
            frames.append(frame)
        self._head += view[position:]
        return frames

    def _open(self, view: memoryview, position: int) -> tuple[Frame, int] | None:
        """Return the frame at `position`, still without body, and the length of its body.

        None when its head is not complete.
        """
        header_at = position + PREFIX_BYTES
        if header_at > len(view):
            _check_start(view[position : position + len(_START)].tobytes())
            return None
        (start, code, flags, correlation_id, header_length, body_length, body_crc, head_crc) = (
            _PREFIX.unpack_from(view, position)
        )
        if start != _START:
            _check_start(start)
        if header_length > self.max_header_bytes or body_length > self.max_body_bytes:
            raise self._too_large(header_length, body_length)
        body_at = header_at + header_length
        if body_at > len(view):
            return None
        header = view[header_at:body_at].tobytes()
        if crc32c(header, crc32c(view[position : header_at - _CRC.size])) != head_crc:
            raise CorruptDataError("a frame's head does not match its CRC32C; it was damaged")
        if flags > _ALL_FLAGS:
            raise ProtocolError(f"frame with unknown flags {flags:#x}; known are {_ALL_FLAGS:#x}")
        return Frame(code, flags, correlation_id, header, b"", body_crc), body_length

    def _resume(self, view: memoryview, frames: list[Frame]) -> int:
        """Continue the incomplete frame; how many bytes of `view` it took."""
        taken = 0 if self._frame is not None else self._resume_head(view)
        if self._frame is None:
            return taken
        part = view[taken : taken + len(self._body) - self._filled]
        frames += self._fill_body(part)
        return taken + len(part)

    def _resume_head(self, view: memoryview) -> int:
        """Continue the incomplete head, at its end begin the body; how many bytes it took."""
        head = self._head
        taken = 0
        while (opened := self._open(memoryview(head), 0)) is None and taken < len(view):
            wanted = PREFIX_BYTES
            if len(head) >= PREFIX_BYTES:
                wanted += _HEADER_LENGTH.unpack_from(head, _HEADER_LENGTH_AT)[0]
            part = view[taken : taken + wanted - len(head)]
            head += part
            taken += len(part)
        if opened is not None:
            self._head = bytearray()
            self._begin_body(*opened)
        return taken

    def _begin_body(self, frame: Frame, length: int) -> None:
        self._frame = frame
        try:
            self._memory = self._allocate(length).cast("B") if length else _NOTHING
        except MemoryError as exc:
            raise UnavailableError(f"no memory for a body of {length} bytes") from exc
        self._body = self._memory[:length]

    def _fill_body(self, part: memoryview) -> list[Frame]:
        self._body[self._filled : self._filled + len(part)] = part
        return self._count_body(part)

    def _count_body(self, part: memoryview) -> list[Frame]:
        """Take note that `part` has been put into the body; the frame, when that completes it."""
        self._crc = crc32c(part, self._crc)
        self._filled += len(part)
        frame = self._frame
        if frame is None or self._filled < len(self._body):
            return []
        frame.body = self._body
        _check_body(frame, self._crc)
        self._forget()
        return [frame]

    def _too_large(self, header_length: int, body_length: int) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"frame with a header of {header_length} and a body of {body_length} bytes; the limits "
            f"here are {self.max_header_bytes} and {self.max_body_bytes}: send less at a time"
        )


def _check_start(start: bytes) -> None:
    """Refuse what cannot be the beginning of a frame."""
    if _START.startswith(start):
        return
    if start.startswith(MAGIC):
        raise UnsupportedVersionError(
            f"frame of version {start[4]}; this side reads {FRAME_VERSION}: upgrade the older side"
        )
    if start.startswith(b"HTTP"):
        raise ProtocolError(
            "HTTP is spoken here, so this looks like a broker's admin port; use the broker's port"
        )
    if _TLS.startswith(start[:2]):
        raise ProtocolError(
            "this looks like TLS, and a plain listener: use the port of a TLS listener, or leave "
            "out `ca`"
        )
    if any(each.startswith(start) for each in _HTTP_REQUESTS):
        raise ProtocolError("this looks like HTTP, which a broker speaks at its admin_port")
    raise ProtocolError(f"not a MemQ frame: it starts with {start!r}, not {MAGIC!r}")


def _check_body(frame: Frame, crc: int) -> None:
    if crc != frame.body_crc:
        raise CorruptDataError(
            f"the body of request {frame.correlation_id} has CRC32C {crc:#010x}, its frame says "
            f"{frame.body_crc:#010x}; it was damaged"
        )
