"""Every format that MemQ stores or sends: how today's code writes an example, and reads it.

A file of `files/` is `NAME.N`: the bytes of an example as some version wrote them, which no later
change may make unreadable. `NAME.N.json` is what was read from it then. When a format gains a
field, its example has other bytes; `python -m tests.golden` adds those as the next number, and
never touches what is there.
"""

import json
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memq.core.access.document import AccessDocument, decode_document, encode_document
from memq.core.access.rules import Rule
from memq.core.access.users import User
from memq.core.features import ActiveLevel
from memq.core.governor import nodes
from memq.core.governor.topics import Topic
from memq.core.manifest import Manifest, decode_manifest, encode_manifest
from memq.core.notification import Notification, decode_notification, encode_notification
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.core.wire.frame import RESPONSE, FrameReader, encode_frame

FILES = Path(__file__).parent / "files"
CORRELATION_ID = 7
WRITE = 10
BODY = b"123456789"  # with which implementations of CRC32C are checked

CONFIG = TopicConfig.create("clicks", batch_age="1s", retention="3d", read_partitions=2)
USER = User(name="ann", salt=b"s" * 32, stored_key=b"k" * 32, server_key=b"v" * 32)
RULE = Rule(principal="User:ann", operation="read", type="topic", name="cl", prefixed=True)
GIVEN: dict[Any, Any] = {TopicConfig: CONFIG, User: USER, Rule: RULE}
"""Examples of types whose values must make sense together."""


class Format(NamedTuple):
    """An example as today's code writes it, and how it reads what any version wrote."""

    example: bytes
    read: Callable[[bytes], Any]


def example(kind: Any) -> Any:
    """A value of a type; the same each time."""
    if kind in GIVEN:
        return GIVEN[kind]
    plain = {int: 3, float: 1.5, bool: True, str: "x", bytes: b"b", types.NoneType: None}
    if kind in plain:
        return plain[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    makers: dict[Any, Callable[[], Any]] = {
        typing.Annotated: lambda: example(kind.__origin__),
        typing.Literal: lambda: arguments[0],
        list: lambda: [example(arguments[0])],
        tuple: lambda: (example(arguments[0]),),
        dict: lambda: {example(arguments[0]): example(arguments[1])},
        typing.Union: lambda: example(arguments[0]),
        types.UnionType: lambda: example(arguments[0]),
    }
    return makers.get(origin, lambda: filled(kind))()


def filled(struct: type[msgspec.Struct], **fixed: Any) -> Any:
    """A struct whose every field has a value, so that all of them are in the bytes."""
    fields = msgspec.structs.fields(struct)
    return struct(**{f.name: example(f.type) for f in fields if f.name not in fixed}, **fixed)


def formats() -> dict[str, Format]:
    """Each format by name."""
    found = {}
    for code, (request, answer, _) in m.REQUESTS.items():
        for part, struct, flags in (("request", request, 0), ("answer", answer, RESPONSE)):
            header = msgspec.msgpack.encode(filled(struct))
            body = BODY if (code, part) == (WRITE, "request") else b""
            frame = encode_frame(code, CORRELATION_ID, header, body, flags=flags)
            found[f"frame-{code}-{part}"] = Format(b"".join(frame), _reads_frame(struct))
    found["frame-error"] = Format(
        b"".join(encode_frame(WRITE, 1, msgspec.msgpack.encode(filled(m.ErrorAnswer)), flags=3)),
        _reads_frame(m.ErrorAnswer),
    )
    topic = filled(Topic, config=CONFIG)
    members = {
        nodes.CLUSTER: filled(nodes.ClusterNode),
        nodes.BROKERS: filled(
            nodes.BrokerNode, id="b", capacity=2.0, listeners={"in": "b:1"}, levels=(1, 2)
        ),
        nodes.MEMBERS: filled(
            nodes.BrokerNode, id="b", capacity=2.0, listeners={"in": "b:1"}, levels=(1, 2)
        ),
        nodes.TOPICS: topic,
        nodes.DOOMED: filled(nodes.DoomedNode, topic=topic),
        nodes.ASSIGNMENTS: filled(nodes.TopicAssignment),
        nodes.LOADS: filled(nodes.LoadsNode),
        nodes.FEATURES: ActiveLevel(2),
    }
    for folder, value in members.items():
        name = (folder.path or "/cluster").removeprefix("/")
        read = _reads_node(folder)
        found[f"zookeeper-{name}"] = Format(folder.encode(value), read)
    notification = filled(Notification, version=2)
    found["notification"] = Format(encode_notification(notification), decode_notification)
    document = filled(AccessDocument, version=1, users={"ann": USER}, quotas={})
    found["access"] = Format(encode_document(document), decode_document)
    manifest = filled(
        Manifest, version=2, start=3, end=5, files=["a"], left_out=[], skipped_messages=0,
        skipped_records=0, unnamed_messages=0, left_out_crc_sum=0,
    )  # fmt: skip
    found["manifest"] = Format(encode_manifest(manifest), decode_manifest)
    return found


def _reads_frame(struct: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        (frame,) = FrameReader(max_header_bytes=1 << 20, max_body_bytes=1 << 20).feed(data)
        header = msgspec.msgpack.decode(frame.header, type=struct)
        about = {"type": frame.type, "flags": frame.flags, "correlation_id": frame.correlation_id}
        return about | {"header": header, "body": bytes(frame.body), "body_crc": frame.body_crc}

    return read


def _reads_node(folder: nodes.Folder) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        value = msgspec.json.decode(data, type=folder.holds)
        return folder.decode(nodes._name_of(value) or "any", data)

    return read


def value_of(read: Callable[[bytes], Any], data: bytes) -> Any:
    """What is read from bytes, as JSON has it."""
    return json.loads(msgspec.json.encode(msgspec.to_builtins(read(data), str_keys=True)))


def versions(name: str) -> list[Path]:
    """The files of a format, the oldest first."""
    found = [path for path in FILES.glob(f"{name}.*") if path.suffix != ".json"]
    return sorted(found, key=lambda path: int(path.suffix[1:]))
