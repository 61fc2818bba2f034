"""Fuzzes the parsers of what comes from the network or from storage.

    python -m tests.system.fuzz_parsers TARGET --seconds 60

A parser gives something or raises a `MemqError`: no other error, not for over a second, and not
with more than `MEMORY_BYTES`. Seeds are what the product encodes. Where atheris is installed,
coverage steers the changes, and what fails is stored as `crash-…`; else they are random.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import importlib.util
import json
import random
import resource
import struct
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

atheris: Any = importlib.util.find_spec("atheris") and importlib.import_module("atheris")
with (
    atheris.instrument_imports(include=["memq", "scramp", "jwt"])
    if atheris
    else contextlib.nullcontext()
):
    from memq.broker.access_control import AccessControl
    from memq.broker.access_handlers import AccessHandlers
    from memq.broker.authentication import Login
    from memq.broker.config import BrokerConfig
    from memq.broker.tokens import Tokens
    from memq.core.access.document import AccessDocument, decode_document, encode_document
    from memq.core.access.rules import Question, Rule, Rules
    from memq.core.access.users import MECHANISM, User
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
    from memq.errors import MemqError, UnauthorizedError, UnavailableError
    from memq.runtime.system import SYSTEM
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
ISSUER = {"issuer": "https://issuer.example", "audience": "memq", "prefix": "k8s:"}
CONTROL = AccessControl(
    BrokerConfig.create({"authentication": "required", "oidc": {"k8s": ISSUER}}),
    Tokens((), ""),
    SYSTEM,
)
USER = User(name="ann", salt=bytes(32), stored_key=bytes(32), server_key=bytes(32))
RULE = Rule(principal="User:ann", operation="read", type="topic", name="click", host="10.0.0.0/8")
DOCUMENT = AccessDocument(secret=bytes(32), users={"ann": USER}, rules=(RULE,))
CONTROL.adopt(DOCUMENT)
ASKED = [
    m.PutUser(user=USER, replace=True),
    m.DeleteUser(name="ann"),
    m.AlterRules(add=[RULE], remove=[RULE]),
    m.CheckAccess(
        principal="User:ann", host="10.0.0.1", operation="read", type="topic", name="click"
    ),
]
STEPS = b"n,,n=ann,r=fyko\0c=biws,r=NONCE,p=" + base64.b64encode(bytes(32))
PARTS = (
    {"alg": "ES256", "kid": "k1"},
    {"iss": ISSUER["issuer"], "aud": "memq", "sub": "web", "exp": 1e9},
    {},
)
TOKEN = b".".join(base64.urlsafe_b64encode(json.dumps(each).encode()) for each in PARTS)


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
    for kind in (m.Handshake, m.HandshakeAnswer):
        with contextlib.suppress(*UNDECODABLE):
            msgspec.msgpack.decode(data, type=kind)


def log_in(data: bytes) -> None:
    """Log in with two steps, with the broker's nonce in the second."""
    login = Login(CONTROL)
    first, _, last = data.partition(b"\0")
    answer, _ = login.step(m.Authenticate(mechanism=MECHANISM, data=first))
    nonce = answer.data.split(b",")[0].removeprefix(b"r=")
    with contextlib.suppress(UnauthorizedError):  # nobody can guess the proof
        login.step(m.Authenticate(mechanism=MECHANISM, data=last.replace(b"NONCE", nonce)))


def show_token(data: bytes) -> None:
    """Show it as a token of an issuer whose keys are not known."""
    with contextlib.suppress(UnavailableError):
        CONTROL.issuers.identify(data.decode(errors="replace"))


class Store:
    """Makes another document of users and rules, and looks whether that can be used."""

    async def change(self, edit: Any) -> AccessDocument:
        """Change it, and forget that."""
        changed = decode_document(encode_document(edit(DOCUMENT)))
        Rules(changed.rules, ()).decide("User:ann", "10.0.0.1", Question("read", "topic", "click"))
        return changed


def ask_for_access(data: bytes) -> None:
    """Take as each request about users and rules, and carry it out."""
    handlers = AccessHandlers(CONTROL, Store())
    carry_out = {
        m.PutUser: handlers.put_user,
        m.DeleteUser: handlers.delete_user,
        m.AlterRules: handlers.alter_rules,
        m.CheckAccess: handlers.check_access,
    }
    for route in ROUTES.values():
        try:
            request = route.decode_request(data)
        except UNDECODABLE:  # which connections catch
            continue
        if type(request) in carry_out:
            with contextlib.suppress(MemqError, StopIteration):
                carry_out[type(request)](request).send(None)  # nothing in it waits


def read_message(data: bytes) -> None:
    """Decode as a Message of each schema."""
    for schema in (MESSAGES[0][1], MESSAGES[-1][1]):
        with contextlib.suppress(MemqError):
            open_message(data, schema, max_decoded_bytes=4 << 20)


TARGETS: dict[str, tuple[Any, list[bytes]]] = {
    "frame": (read_frames, [b"".join(map(bytes, encode_frame(1, 1, b"\x80", b"body")))]),
    "header": (read_headers, [encode_header(each) for each in (ALTER, ENDS, *ASKED)]),
    "login": (log_in, [STEPS]),
    "token": (show_token, [TOKEN]),
    "access": (ask_for_access, [encode_header(each) for each in ASKED]),
    "users": (decode_document, [encode_document(DOCUMENT)]),
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
