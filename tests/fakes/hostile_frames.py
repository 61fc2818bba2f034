"""Hostile frames: real requests, damaged with intent, by someone who can compute a checksum.

A frame is *lethal* when the broker must end the connection over it: framing and checksums that do
not hold, lengths beyond the limits, rules of the conversation broken. All others fail, or even
succeed, alone, and the connection lives: those get an answer.
"""

from __future__ import annotations

import copy
import typing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.checksum import crc32c
from memq.core.format.schema import DEFAULT_SCHEMA, schema_id, serialize_schema
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.core.wire.frame import ONEWAY, PREFIX_BYTES, RESPONSE, encode_frame
from tests.unit.core.format.test_hostile import EXTREMES, NESTED, damaged, sound_messages

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

TOPICS = {"h0": DEFAULT_SCHEMA, "h1": NESTED}
"""Topics that hostile clients may write to and delete."""
GOOD_TOPIC = "good"
"""Topic of the good client, which others may only read: there is no access control to keep them."""
LETHAL = {
    "bytes flipped": 4,
    "random bytes": 4,
    "cut short": 4,
    "huge length": 2,
    "body checksum": 2,
    "answer flag": 1,
    "second handshake": 1,
    "id 0": 1,
    "id in use": 1,
    "one way": 1,
    "hoard": 1,
}
"""Kinds of lethal frames, with how often each comes."""
CLOSING = ("huge length", "body checksum", "answer flag", "second handshake", "id 0", "one way")

LONGEST_HEADER = 60_000  # a longer one than the broker takes is lethal

_CODES = {each.request: code for code, each in m.REQUESTS.items()}
_NAMES = ("h0", "h0", "h0", "h1", "h2", "", "no such", "../h0", "h0/../good", "\0", "é" * 120, "_")
_TEXTS = (
    *_NAMES,
    "x" * 1_000,
    "file:///etc/passwd",
    "file:///tmp/../etc/passwd",
    "file://" + "/a" * 3_000,
    "🙂",
)
_WRONG = (None, "x", -1, 1.5, b"\xff", [], {}, [[[[]]]], {"a": {}}, True, float("nan"))
_CONFIG = msgspec.to_builtins(TopicConfig.create("h0"))
_SLOW_WAIT_MS = 200  # longer long polls are asked for only where no answer is awaited


def hostile_topics() -> list[TopicConfig]:
    """The topics of hostile clients, as they are before anybody has altered them."""
    return [
        TopicConfig.create(
            name,
            batch_age="7ms",
            dedup_window="1m",  # one in four Messages is of a new producer, which takes about 1 KiB
            schema=None if schema is DEFAULT_SCHEMA else serialize_schema(schema),
        )
        for name, schema in TOPICS.items()
    ]


class Shot(NamedTuple):
    """One hostile frame.

    Attributes:
        kind: what is hostile about it.
        data: its bytes.
        correlation_id: of the frame; meaningless in a lethal one.
        answered: an answer must come soon.
        closes: the broker must end the connection at once. (Other lethal frames may leave it
            waiting for more.)
    """

    kind: str
    data: bytes
    correlation_id: int = 0
    answered: bool = True
    closes: bool = False


class Arsenal:
    """Makes hostile frames.

    Args:
        rng: decides all of it.
        uris: of some objects of the good client.
    """

    def __init__(self, rng: random.Random, uris: list[str]) -> None:
        self._rng = rng
        self._uris = uris or ["file:///nothing"]
        self._next_id = 1
        self._messages = {
            topic: [body for body, of in sound_messages() if of.equals(schema)]
            for topic, schema in TOPICS.items()
        }
        self._schema_ids = {
            topic: schema_id(serialize_schema(schema)) for topic, schema in TOPICS.items()
        }
        self._requests: list[tuple[int, Callable[[], m.Struct]]] = [
            (30, self._write),
            (6, self._metadata),
            (2, self._create_topic),
            (2, lambda: m.AlterTopic(topic=self._name(), options={"batch_age": "7ms"})),
            (6, self._fetch_notifications),
            (6, lambda: m.FetchOffsets(topic=self._any_topic(), at_ms=rng.choice((None, 5)))),
            (4, self._fetch_lag),
            (6, lambda: m.FetchWatermark(topic=self._any_topic())),
            (4, self._fetch_batch),
            (1, self._commit_offsets),
            (4, lambda: m.FetchCommitted(group="g", topic=self._any_topic())),
            (4, self._heartbeat),
            (2, lambda: m.LeaveGroup(group="g", topic=self._name(), member_id="m1")),
            (2, self._list_groups),
            (1, lambda: m.DeleteGroup(group="g", topic=self._name())),
        ]
        self._rare = lambda: m.DeleteTopic(topic=rng.choice(("h0", "h1", "no such")))

    def shot(self) -> Shot:
        """A frame that fails alone, or succeeds."""
        kind = self._rng.choices(
            ("sound", "field", "header bytes", "body", "unknown type"), (4, 10, 4, 6, 1)
        )[0]
        if kind == "body":
            return self._hostile_body()
        request = self._request()
        code, header = _CODES[type(request)], msgspec.msgpack.encode(request)
        if kind == "unknown type":
            code = self._rng.choice([code for code in range(256) if code not in m.REQUESTS])
        elif kind == "field":
            header = self._with_hostile_fields(request)
        elif kind == "header bytes":
            header = self._hostile_bytes(header)
        body = self._body_of(request) if self._rng.random() < 0.7 else b""
        answered = not isinstance(request, m.FetchNotifications) or kind == "sound"
        name = f"{kind}: {type(request).__name__}"
        return Shot(name, self._frame(code, header, body), self._next_id, answered)

    def read(self) -> Shot:
        """A sound request for as much as there is, by somebody who will not read it."""
        rng = self._rng
        position = m.PartitionOffset(0, 0)
        request = rng.choice(
            (
                m.FetchNotifications(topic=GOOD_TOPIC, positions=[position], max_bytes=2**40),
                m.FetchNotifications(
                    topic=GOOD_TOPIC, positions=[position], max_wait_ms=rng.choice((0, 60_000))
                ),
                m.FetchBatch(topic=GOOD_TOPIC, uri=rng.choice(self._uris), start=0, length=4 << 20),
                m.Metadata(),
                m.ListGroups(),
                m.FetchOffsets(topic=GOOD_TOPIC, at_ms=5),
                m.FetchLag(topic=GOOD_TOPIC, positions=[position] * 4_000),
            )
        )
        header = msgspec.msgpack.encode(request)
        name = f"unread: {type(request).__name__}"
        return Shot(name, self._frame(_CODES[type(request)], header), self._next_id, answered=False)

    def lethal(self) -> Shot:
        """A frame over which the broker must end the connection."""
        rng = self._rng
        kind = rng.choices(list(LETHAL), list(LETHAL.values()))[0]
        request = self._request()
        code, header = _CODES[type(request)], msgspec.msgpack.encode(request)
        data = bytearray(self._frame(code, header, self._body_of(request)))
        match kind:
            case "bytes flipped":
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
            case "random bytes":
                data = bytearray(rng.randbytes(rng.randint(PREFIX_BYTES, 400)))
            case "cut short":
                del data[rng.randint(1, len(data) - 1) :]
            case "huge length":
                place = rng.choice((16, 20))  # of header and body length
                data[place : place + 4] = rng.choice((2**31, 2**32 - 1, 70 << 20)).to_bytes(
                    4, "little"
                )
            case "body checksum":
                body = rng.choice(self._messages["h0"])
                header = msgspec.msgpack.encode(self._write())
                wrong = rng.getrandbits(32)
                data = bytearray(b"".join(encode_frame(10, 1, header, body, body_crc=wrong)))
            case "answer flag":
                data = bytearray(self._frame(code, header, b"", flags=RESPONSE))
            case "second handshake":
                data = bytearray(self._frame(1, msgspec.msgpack.encode(m.Handshake(versions=[1]))))
            case "id 0":
                data = bytearray(b"".join(encode_frame(code, 0, header)))
            case "id in use":
                wait = m.FetchNotifications(
                    topic=GOOD_TOPIC, positions=[m.PartitionOffset(0, 0)], max_wait_ms=0
                )
                one = self._frame(20, msgspec.msgpack.encode(wait))
                data = bytearray(one + one)
            case "one way":
                data = bytearray(self._frame(2, b"\x80", b"", flags=ONEWAY))
            case "hoard":
                data = self._hoard()
        return Shot(kind, bytes(data), answered=False, closes=kind in CLOSING)

    # -- requests ---------------------------------------------------------------------------

    def _request(self) -> m.Struct:
        if self._rng.random() < 0.000_2:
            return self._rare()
        weights = [weight for weight, _ in self._requests]
        _, make = self._rng.choices(self._requests, weights)[0]
        return make()

    def _name(self) -> str:
        return self._rng.choice(_NAMES)

    def _any_topic(self) -> str:
        return self._rng.choice((GOOD_TOPIC, "h0", "h1", self._name()))

    def _write(self) -> m.Write:
        rng = self._rng
        topic = rng.choice(list(TOPICS))
        return m.Write(
            topic=topic,
            write_partition=rng.choice((0, 0, 0, 1, -1, 2**31)),
            producer_id=rng.choice(("p1", "p2", "p3", f"p{rng.random()}")),
            epoch=rng.choice((0, 0, 0, 1, 5)),
            sequence=rng.choice((rng.randrange(1_000), self._next_id, 2**62)),
            first_unsettled=0,
            acks=rng.choice((-1, 0, 1)),
            schema_id=self._schema_ids[topic],
            records=20,
            min_timestamp_us=0,
            max_timestamp_us=2**62,
        )

    def _create_topic(self) -> m.CreateTopic:
        return m.CreateTopic(config=self._rng.choice(hostile_topics()))

    def _fetch_notifications(self) -> m.FetchNotifications:
        rng = self._rng
        return m.FetchNotifications(
            topic=self._any_topic(),
            positions=[m.PartitionOffset(rng.choice((0, 0, 1, -1)), rng.choice((0, 3, 10**6)))],
            max_entries=rng.choice((1, 500, 0, -1)),
            max_bytes=rng.choice((0, 1 << 20, 2**40)),
            max_wait_ms=rng.choice((0, 0, 0, _SLOW_WAIT_MS)),
        )

    def _metadata(self) -> m.Metadata:
        rng = self._rng
        return m.Metadata(
            topics=rng.choice((None, [GOOD_TOPIC], [self._name()], ["h0"] * 100, ["h0"] * 5_000)),
            after=rng.choice(("", "", "h0", "\0")),
        )

    def _list_groups(self) -> m.ListGroups:
        rng = self._rng
        return m.ListGroups(
            topic=rng.choice((None, "h0")),
            from_topic=rng.choice(("", "", "h0", "~")),
            after_group=rng.choice(("", "g", "\0")),
        )

    def _fetch_lag(self) -> m.FetchLag:
        rng = self._rng
        positions = [
            m.PartitionOffset(rng.choice((0, 0, 0, 1, -1, 2**31)), rng.choice((0, 3, -1, 2**62)))
            for _ in range(rng.choice((0, 1, 5)))
        ]
        return m.FetchLag(topic=self._any_topic(), positions=positions * rng.choice((1, 1, 1_000)))

    def _fetch_batch(self) -> m.FetchBatch:
        rng = self._rng
        return m.FetchBatch(
            topic=rng.choice((GOOD_TOPIC, "h0")),
            uri=rng.choice((*self._uris, *_TEXTS)),
            start=rng.choice((0, 0, 100, -1, 2**40)),
            length=rng.choice((1, 500, 4_000, 4 << 20, 0, -1, 2**31)),
        )

    def _commit_offsets(self) -> m.CommitOffsets:
        rng = self._rng
        return m.CommitOffsets(
            group=rng.choice(("g", "g2", *_NAMES)),
            topic=rng.choice(("h0", "h1", self._name())),
            member_id=rng.choice(("", "m1")),
            offsets=[m.PartitionOffset(rng.choice((0, 1)), rng.choice((0, 1, -1, 2**62)))],
            committer=rng.choice(("", "c1", f"c{rng.random()}")),
            sequence=rng.choice((0, 1, self._next_id, 2**62, -1)),
            heartbeat=rng.choice((0, 1, self._next_id)),
        )

    def _heartbeat(self) -> m.GroupHeartbeat:
        rng = self._rng
        return m.GroupHeartbeat(
            group=rng.choice(("g", "g2", *_NAMES)),
            topic=self._any_topic(),
            member_id=rng.choice(("m1", "m2", f"m{rng.random()}", "")),
            sequence=rng.choice((1, self._next_id)),
            owned=rng.choice(([], [0], [0, 0], [-1], list(range(300)))),
            session_timeout_ms=rng.choice((10_000, 1_000, 0, -1, 2**62)),
        )

    # -- hostility --------------------------------------------------------------------------

    def _with_hostile_fields(self, request: m.Struct) -> bytes:
        """The header with some fields extreme, of the wrong type, missing, or too many."""
        rng = self._rng
        content = msgspec.to_builtins(request, builtin_types=(bytes,))
        types = {field.name: field.type for field in msgspec.structs.fields(type(request))}
        for name in rng.sample(list(types), min(len(types), rng.choice((1, 1, 2)))):
            match rng.randrange(8):
                case 0:
                    content.pop(name, None)
                case 1:
                    content[name] = self._wrong()
                case 2:
                    content[f"{name}x"] = self._wrong()
                case _:
                    content[name] = self._extreme(types[name])
        if isinstance(request, m.CreateTopic) and isinstance(content.get("config"), dict):
            config = content["config"]
            config[rng.choice(list(_CONFIG))] = rng.choice((self._wrong(), *EXTREMES[:8], -5, "h2"))
            config["batch_age_ms"] = rng.choice((7, 0, 10**12))  # nothing is to be open for long
            config["write_partitions"] = rng.choice((1, 2, 0, 257))  # 256 would be allowed,
            config["read_partitions"] = rng.choice((1, 3, 0, 2**40))  # and take a GiB of disk
        try:
            return msgspec.msgpack.encode(content)[:LONGEST_HEADER]
        except OverflowError:  # an integer that msgpack has no room for
            return b"\xc1"

    def _extreme(self, kind: object) -> object:
        """A value of a field's type that hardly anybody has thought of."""
        rng = self._rng
        inner = typing.get_args(kind)
        if inner and typing.get_origin(kind) is list:
            return [self._extreme(inner[0]) for _ in range(rng.choice((0, 1, 3, 300)))]
        if inner and typing.get_origin(kind) is not dict:  # a union with None
            return self._extreme(inner[0])
        plain = {
            int: lambda: rng.choice((*EXTREMES, -1, -(2**31), -(2**63))),
            str: lambda: rng.choice(_TEXTS),
            bytes: lambda: rng.randbytes(rng.choice((0, 8, 400))),
            m.PartitionOffset: lambda: [self._extreme(int), self._extreme(int)],
            dict[str, str]: lambda: {rng.choice(_TEXTS): rng.choice(_TEXTS) for _ in range(3)},
        }
        return plain.get(kind, self._wrong)()

    def _wrong(self) -> object:
        return copy.deepcopy(self._rng.choice(_WRONG))

    def _hostile_bytes(self, header: bytes) -> bytes:
        """A header that is no longer the msgpack it was."""
        rng = self._rng
        match rng.randrange(5):
            case 0:
                return rng.randbytes(rng.randrange(100))
            case 1:  # nested deeper than any stack
                level = rng.choice((b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"))
                return (level * rng.choice((50, 20_000)))[:LONGEST_HEADER]
            case 2:  # lengths of strings, lists and maps that are not there
                return header[:1] + rng.choice((b"\xdb", b"\xdd", b"\xdf", b"\xc6")) + b"\xff" * 4
            case _:
                data = bytearray(header)
                for _ in range(rng.choice((1, 1, 2, 5))):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                return bytes(data)

    def _hostile_body(self) -> Shot:
        """A Write whose body is no sound Message of the topic, though its checksum is right."""
        rng = self._rng
        request = self._write()
        sound = rng.choice(self._messages[request.topic])
        body = rng.choice(
            (
                lambda: damaged(rng, sound),
                lambda: damaged(rng, sound),
                lambda: damaged(rng, sound),
                lambda: sound[: rng.randrange(len(sound))],
                lambda: sound + sound,
                lambda: rng.randbytes(rng.randrange(2_000)),
                lambda: bytes(rng.choice((8, 100_000))),
                lambda: rng.choice(self._messages["h1" if request.topic == "h0" else "h0"]),
                lambda: b"",
            )
        )()
        return Shot("body", self._frame(10, msgspec.msgpack.encode(request), body), self._next_id)

    def _hoard(self) -> bytearray:
        """The beginning of a body that will never end, to make the broker keep memory for it."""
        header = msgspec.msgpack.encode(self._write())
        size = self._rng.choice((100_000, 100_000, 1 << 20, 1 << 20, 1 << 20, 60 << 20))
        whole = self._frame(10, header, bytes(16))
        prefix = bytearray(whole[: len(whole) - 16])
        prefix[20:24] = size.to_bytes(4, "little")
        return _with_head_checksum(prefix) + bytes(self._rng.choice((0, 5_000, 90_000)))

    def _body_of(self, request: m.Struct) -> bytes:
        if isinstance(request, m.Write):
            return self._rng.choice(self._messages[request.topic])
        return self._rng.randbytes(40) if self._rng.random() < 0.1 else b""

    def _frame(self, code: int, header: bytes, body: bytes = b"", flags: int = 0) -> bytes:
        self._next_id += 1
        return b"".join(encode_frame(code, self._next_id, header, body, flags=flags))


def _with_head_checksum(data: bytearray) -> bytearray:
    """A prefix and header that were changed, with the checksum that is right for them."""
    check = crc32c(data[PREFIX_BYTES:], crc32c(data[: PREFIX_BYTES - 4]))
    data[PREFIX_BYTES - 4 : PREFIX_BYTES] = check.to_bytes(4, "little")
    return data
