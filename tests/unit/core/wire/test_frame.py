import struct
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.wire import frame as frame_module
from memq.core.wire.frame import HEAD_BYTES, ONEWAY, FrameReader, encode_frame
from memq.errors import (
    CorruptDataError,
    MemqError,
    MessageTooLargeError,
    ProtocolError,
    UnavailableError,
    UnsupportedVersionError,
)
from tests.unit.core.wire.builders import content, encoded_frames

MAX_HEADER, MAX_BODY = 4_096, 100_000


def reader(**options):
    limits = {"max_header_bytes": MAX_HEADER, "max_body_bytes": MAX_BODY}
    return FrameReader(**(limits | options))


def join(*args, **options):
    return b"".join(encode_frame(*args, **options))


def slow_crc32c(data):
    """CRC32C from its definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def prefix(*, magic=b"MEMQ", version=1, flags=0, header=b"", body=0, body_crc=0):
    """A prefix with a good head CRC, whatever else is wrong; `header` may be a mere length."""
    length, rest = (header, b"") if isinstance(header, int) else (len(header), header)
    head = struct.pack("<4sBBHQIII", magic, version, 10, flags, 1, length, body, body_crc)
    return head + struct.pack("<I", slow_crc32c(head + rest)) + rest


def noted(sizes, beyond=0):
    """An allocation that notes what was asked for, and gives so many bytes more."""

    def allocate(size):
        sizes.append(size)
        return memoryview(bytearray(size + beyond))

    return allocate


def pump(target, data, cuts):
    """Give data to a reader as asyncio does, no read going past a cut; yields after each read."""
    position = 0
    for cut in [*sorted(cuts), len(data)]:
        while position < cut:
            buffer = target.get_buffer()
            count = min(len(buffer), cut - position)
            buffer[:count] = data[position : position + count]
            position += count
            yield target.buffer_updated(count)


# -- layout ---------------------------------------------------------------------------------


def test_layout():
    """Every field stands where the documentation says, in little endian."""
    data = join(0x0A, 0x0102030405060708, b"head", b"123456789", flags=ONEWAY)

    assert data[:8] == b"MEMQ\x01\x0a\x04\x00"
    assert data[8:16] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert data[16:24] == b"\x04\0\0\0\x09\0\0\0"
    assert data[24:28] == bytes.fromhex("839206e3")
    assert struct.unpack_from("<I", data, 28)[0] == slow_crc32c(data[:28] + b"head")
    assert data[32:] == b"head123456789"


def test_known_body_crc_is_not_computed_again():
    """A body CRC that is given travels on as it is, so that old damage is still noticed."""
    [frame] = reader().feed(join(1, 1, b"h", b"body", body_crc=slow_crc32c(b"body")))
    assert frame.body_crc == slow_crc32c(b"body")

    with pytest.raises(CorruptDataError, match="0x00000005"):
        reader().feed(join(1, 1, b"h", b"body", body_crc=5))


def test_body_of_4_gib_does_not_fit():
    """A body whose length needs more than 32 bits is refused by the sender."""

    class Huge(bytes):
        def __len__(self):
            return 1 << 32

    with pytest.raises(MessageTooLargeError, match="4294967296"):
        encode_frame(1, 1, b"", Huge(), body_crc=0)


# -- cutting --------------------------------------------------------------------------------


@given(st.lists(encoded_frames(), max_size=6), st.data())
def test_any_cuts_give_the_same_frames(frames, data):
    """However the bytes are cut, `feed` and `buffer_updated` give the same frames.

    So it is with any room behind a body, into which the next frame may begin.
    """
    stream = b"".join(encoded for encoded, _ in frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    scratch = memoryview(bytearray(data.draw(st.integers(1, 300))))
    room = data.draw(st.sampled_from([0, 1, 20, 40, 500, HEAD_BYTES]))
    fed, pumped = reader(), reader(scratch=scratch, allocate=noted([], room))

    bounds = [0, *sorted(cuts), len(stream)]
    by_feed = [frame for start, end in pairwise(bounds) for frame in fed.feed(stream[start:end])]
    with pytest.MonkeyPatch.context() as patch:  # a larger body comes in slices
        patch.setattr(frame_module, "SLICE_BYTES", data.draw(st.sampled_from([9_000, 50_000])))
        by_pump = [frame for frames in pump(pumped, stream, cuts) for frame in frames]

    expected = [told for _, told in frames]
    assert [content(frame) for frame in by_feed] == expected
    assert [content(frame) for frame in by_pump] == expected
    assert fed.at_boundary
    assert pumped.at_boundary


@given(st.lists(st.lists(encoded_frames(), max_size=3), min_size=2, max_size=4), st.data())
def test_readers_share_a_scratch(streams, data):
    """Readers that take turns on one scratch do not disturb each other or keep any of it."""
    scratch = memoryview(bytearray(100))
    pumps, got = [], [[] for _ in streams]
    for frames in streams:
        stream = b"".join(encoded for encoded, _ in frames)
        cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
        pumps.append(pump(reader(scratch=scratch), stream, cuts))

    turns = data.draw(st.lists(st.integers(0, len(streams) - 1), max_size=60))
    for turn in [*turns, *(i for i in range(len(streams)) for _ in range(3_000))]:
        got[turn] += next(pumps[turn], [])
        scratch[:] = b"\xaa" * len(scratch)

    expected = [[told for _, told in frames] for frames in streams]
    assert [[content(frame) for frame in frames] for frames in got] == expected


# -- damage ---------------------------------------------------------------------------------


def test_every_bit_flip_is_detected():
    """No frame with one flipped bit passes, whichever bit it is."""
    encoded = join(10, 7, b"header", b"body")
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        target = reader()
        # A longer header waits for its bytes; they come from what follows.
        with pytest.raises(MemqError):
            assert target.feed(damaged + bytes(MAX_HEADER)) == [], f"bit {bit}"


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"GET / HTTP/1.1\r\n", ProtocolError, "HTTP, which a broker speaks at its admin"),
        (b"MEMX", ProtocolError, "b'MEMX', not b'MEMQ'"),
        (prefix(magic=b"memq"), ProtocolError, "not a MemQ frame: it starts with b'm"),
        (prefix(version=2), UnsupportedVersionError, "version 2; this side reads 1"),
        (prefix(version=2)[:5], UnsupportedVersionError, "version 2"),
        (prefix(flags=8), ProtocolError, "unknown flags 0x8"),
        (prefix(flags=0x8001), ProtocolError, "unknown flags 0x8001"),
        (prefix(header=MAX_HEADER + 1), MessageTooLargeError, "4097"),
        (prefix(header=0xFFFFFFFF), MessageTooLargeError, "4294967295"),
        (prefix(body=MAX_BODY + 1), MessageTooLargeError, "100001"),
        (prefix(body=0xFFFFFFFF), MessageTooLargeError, "4294967295"),
        (prefix()[:-4] + b"\0\0\0\0", CorruptDataError, "head"),
        (prefix(header=b"header")[:-1] + b"!", CorruptDataError, "head"),
        (prefix(body_crc=1), CorruptDataError, "body of request 1"),
        (prefix(body=4, body_crc=1) + b"body", CorruptDataError, "body of request 1"),
    ],
)
@pytest.mark.parametrize("step", [1, 1_000])
def test_bad_frames_are_refused(data, error, text, step):
    """Each kind of bad frame raises its error, which names the value, at once or drop by drop.

    It costs no memory, unless the body is wrong; and the reader raises it again, whatever comes.
    """
    asked = []
    target = reader(allocate=noted(asked))
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    with pytest.raises(error, match=text) as caught:
        deque(map(target.feed, pieces), maxlen=0)
    assert type(caught.value) is error
    assert not asked or "body" in text
    with pytest.raises(error) as again:
        target.feed(join(1, 1, b"h"))
    assert str(again.value) == str(caught.value)
    assert target.buffered_bytes == 0


def test_longest_frame_passes():
    """Header and body of exactly the limits are accepted."""
    [frame] = reader().feed(join(1, 1, bytes(MAX_HEADER), bytes(MAX_BODY)))

    assert (len(frame.header), len(frame.body)) == (MAX_HEADER, MAX_BODY)


def test_memory_is_taken_once_the_head_is_whole():
    """Not before its checksum can be compared."""
    asked = []
    target = reader(allocate=noted(asked))
    target.feed(prefix(body=MAX_BODY, header=b"header")[:-1])
    assert asked == []
    target.feed(b"r")
    assert asked == [MAX_BODY]


def test_memory_may_be_refused():
    """An error of `allocate` passes through; no memory at all is `UnavailableError`."""

    def refuse(size):
        raise UnavailableError(f"no room for {size}")

    def fail(size):
        raise MemoryError

    for allocate, text in ((refuse, "no room for 20000"), (fail, "no memory .* 20000")):
        with pytest.raises(UnavailableError, match=text):
            reader(allocate=allocate).feed(prefix(body=20_000))


def test_without_reading_ahead_a_complete_body_ends_at_a_boundary():
    """With `read_ahead` off no byte of the next frame is taken in, whatever room there is."""
    target = reader(allocate=noted([], 4_096))
    head, _ = encode_frame(10, 1, b"h", bytes(60_000))
    target.feed(head)
    assert len(target.get_buffer()) == 64_096
    target.read_ahead = False
    assert len(target.get_buffer()) == 60_000
