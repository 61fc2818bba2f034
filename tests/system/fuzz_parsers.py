"""Fuzzes the parsers of what comes from the network or from storage.

    python -m tests.system.fuzz_parsers TARGET --seconds 60

A parser gives something or raises a `MemqError`: no other error, not for over a second, and not
with more than `MEMORY_BYTES`. Seeds are what the product encodes. Where atheris is installed,
coverage steers the changes, and what fails is stored as `crash-…`; else they are random.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import random
import resource
import struct
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

atheris: Any = importlib.util.find_spec("atheris") and importlib.import_module("atheris")
with atheris.instrument_imports(include=["memq"]) if atheris else contextlib.nullcontext():
    from memq.core.checksum import crc32c
    from memq.core.decoding import UNDECODABLE
    from memq.core.format.index import BatchMetadata, IndexEntry, decode_index, encode_index
    from memq.core.format.message import open_message
    from memq.core.format.schema import deserialize_schema, layout_of, serialize_schema
    from memq.core.manifest import decode_manifest, encode_manifest
    from memq.core.notification import decode_notification, encode_notification
    from memq.core.wire import messages as m
    from memq.core.wire.connection import ROUTES, decode_error, encode_header
    from memq.core.wire.frame import PREFIX_BYTES, FrameReader, encode_frame
    from memq.errors import MemqError
    from tests.unit.core.format.test_hostile import damage, sound_messages
    from tests.unit.core.test_manifest import MANIFEST
    from tests.unit.reading.batches import Sent, notify, records, seal

LONGEST_BYTES = 64 << 10  # of an input, as of a request's header
MEMORY_BYTES = 256 << 20  # 4,000 times that

MESSAGES = sound_messages()
SCHEMAS = [serialize_schema(schema) for _, schema in MESSAGES]
ALTER = m.AlterTopic(topic="t", options={"a": "b"}, schema=b"x")
ENDS = m.FetchNotificationsAnswer(ends=[m.PartitionOffset(0, 1)])
INDEX = encode_index(
    [IndexEntry("producer", 1, 2, 424, 800, 20, 5, 6, 7)] * 2, BatchMetadata("b", "t", 0, 1)
)
NOTIFICATION = encode_notification(notify(seal(Sent("p", 0, records(b"v")))))


def read_frames(data: bytes) -> None:
    """Feed a reader in two pieces; the head's checksum is made right, or else nothing passes."""
    whole = bytearray(data)
    if len(whole) > PREFIX_BYTES:
        header = whole[PREFIX_BYTES:][: struct.unpack_from("<I", whole, 16)[0]]
        head_crc = crc32c(header, crc32c(whole[: PREFIX_BYTES - 4]))
        struct.pack_into("<I", whole, PREFIX_BYTES - 4, head_crc)
    cut = sum(whole[:PREFIX_BYTES]) % (len(whole) + 1)
    reader = FrameReader(max_header_bytes=4 << 10, max_body_bytes=LONGEST_BYTES)
    for piece in (whole[:cut], whole[cut:]):
        reader.feed(piece)


def read_headers(data: bytes) -> None:
    """Decode as each request and each answer."""
    for route in ROUTES.values():
        for decode in (route.decode_request, route.decode_answer, decode_error):
            with contextlib.suppress(*UNDECODABLE):  # which connections catch
                decode(data)


def read_message(data: bytes) -> None:
    """Decode as a Message of each schema."""
    for schema in (MESSAGES[0][1], MESSAGES[-1][1]):
        with contextlib.suppress(MemqError):
            open_message(data, schema, max_decoded_bytes=4 << 20)


TARGETS: dict[str, tuple[Any, list[bytes]]] = {
    "frame": (read_frames, [b"".join(map(bytes, encode_frame(1, 1, b"\x80", b"body")))]),
    "header": (read_headers, [encode_header(ALTER), encode_header(ENDS)]),
    "message": (read_message, [body for body, _ in MESSAGES]),
    "schema": (lambda data: layout_of(deserialize_schema(data)), SCHEMAS),
    "index": (decode_index, [INDEX]),
    "notification": (decode_notification, [NOTIFICATION]),
    "manifest": (decode_manifest, [encode_manifest(MANIFEST)]),
}


def check(parse: Any, data: bytes) -> None:
    """Parse, and see that it does not take long."""
    began = time.process_time()
    with contextlib.suppress(MemqError):
        parse(data)
    assert time.process_time() - began < 1


def changed(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes to what a hostile sender would."""
    copy = bytearray(data.ljust(32, b"\0"))
    for _ in range(rng.choice((1, 1, 2, 5))):
        damage(rng, copy, len(copy))
    return bytes(copy)


def mutate(data: bytes, longest: int, seed: int) -> bytes:
    """Change an input for atheris: half of them by its own ways."""
    own = changed(data, random.Random(seed))[:longest]
    return own if seed % 2 else bytes(atheris.Mutate(data, longest))


def main() -> None:
    """Fuzz one target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    parse, seeds = TARGETS[given.target]
    pa.set_memory_pool(pa.system_memory_pool())  # others reserve more than they use
    for seed in seeds:
        parse(seed)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES,) * 2)
    if atheris:
        folder = Path(tempfile.mkdtemp())
        for number, seed in enumerate(seeds):
            (folder / str(number)).write_bytes(seed)
        limits = f"-max_total_time={given.seconds} -max_len={LONGEST_BYTES} -rss_limit_mb=0"
        flags = [sys.argv[0], *limits.split(), str(folder)]
        atheris.Setup(flags, partial(check, parse), custom_mutator=mutate)
        atheris.Fuzz()  # ends the process
    end, rng = time.monotonic() + given.seconds, random.Random()
    while time.monotonic() < end:
        data = changed(rng.choice(seeds), rng)
        try:
            check(parse, data)
        except BaseException as exc:
            exc.add_note(f"input: {data.hex()}")
            raise


if __name__ == "__main__":
    main()
