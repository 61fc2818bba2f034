"""What brokers say to each other through one compacted topic of Kafka.

A record's key is a JSON list that begins with its kind, so that it can be read in a terminal, and a
record without a value takes back what its key stood for:

    ["topic", TOPIC]                            how many read partitions a topic of the queue has
    ["owner", TOPIC, WRITE_PARTITION, N, OWNER] the Nth claim to a write partition
    ["offset", TOPIC, GROUP, READ_PARTITION]    a group's next offset
    ["held", TOPIC, GROUP]                      what the members of a group may hold
    ["times", BROKER]                           how far time has come at a broker

Theory of operation, of claims
------------------------------
A write partition belongs to whoever made its latest claim, a transactional id. Kafka has no "write
this if nobody else has", but the order of its log decides as well: of two claims of one number the
first in the log counts, for every reader and for ever, and a claim with a number that is not above
the latest one counts for nothing. So who wants to be the next owner makes sure that the owner of
claim N can publish no more, writes claim N + 1, and reads on until it sees it: then it is the
owner, unless somebody else's N + 1 came first. That holds after compaction too. It keeps the order,
and the last record of each key, which names its owner; claim N is taken back only by the records
beside claim N + 1.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from memq.core.clock import SavedTimes
from memq.core.decoding import UNDECODABLE
from memq.core.queue import Holding

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from memq.queue.kafka.client import Record

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(list[Any]).decode
_decode_number = msgspec.json.Decoder(int).decode
_decode_held = msgspec.json.Decoder(dict[str, Holding]).decode
_decode_times = msgspec.json.Decoder(SavedTimes).decode


class Claim(NamedTuple):
    """The latest claim to a write partition.

    Attributes:
        number: it counts up with each.
        owner: transactional id; empty when its owner has let go, or there never was one.
    """

    number: int = 0
    owner: str = ""


class StateRecord(NamedTuple):
    """A record of the topic: what its key says is so from now on, or is so no more."""

    key: bytes
    value: bytes | None


class KafkaState:
    """All that the topic says, up to where it was read.

    Attributes:
        topics: read partitions of each topic of the queue.
        times: how far time has come, by broker.
    """

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.times: dict[str, SavedTimes] = {}
        self._claims: dict[str, dict[int, Claim]] = {}  # of each topic, as are the next
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}
        self._held: dict[str, dict[str, dict[str, Holding]]] = {}

    def __repr__(self) -> str:
        return f"<KafkaState [{len(self.topics)} topics]>"

    def claim(self, topic: str, write_partition: int) -> Claim:
        """The latest claim to a write partition."""
        return self._claims.get(topic, {}).get(write_partition, Claim())

    def owners(self) -> dict[str, None]:
        """All that have the latest claim to something."""
        claims = (claim for of_topic in self._claims.values() for claim in of_topic.values())
        return {claim.owner: None for claim in claims if claim.owner}

    def claimed_by(self, owners: Collection[str]) -> Iterator[tuple[str, int]]:
        """What these have the latest claim to: topics and write partitions."""
        for topic, claims in self._claims.items():
            for write_partition, claim in claims.items():
                if claim.owner in owners:
                    yield topic, write_partition

    def offsets(self, topic: str, group: str) -> dict[int, int]:
        """A group's next offsets."""
        return dict(sorted(self._offsets.get(topic, {}).get(group, {}).items()))

    def groups(self, topic: str) -> list[str]:
        """Groups with offsets, sorted."""
        return sorted(self._offsets.get(topic, {}))

    def held(self, topic: str, group: str) -> dict[str, Holding]:
        """What the members of a group may hold."""
        return dict(self._held.get(topic, {}).get(group, {}))

    def holders(self, topic: str) -> list[str]:
        """Groups of which something is held, sorted."""
        return sorted(self._held.get(topic, {}))

    def read(self, record: Record) -> str | None:
        """Take over the next record. One that is not ours changes nothing, and is told.

        Returns:
            The topic that is gone, if it says so.
        """
        try:
            kind, *names = _decode_key(record.key or b"")
            apply = _KINDS[kind]
            apply(self, *names, record.value)
            if kind == "topic" and record.value is None:
                return str(names[0])
        except (*UNDECODABLE, KeyError, TypeError, ValueError) as exc:
            log.error(  # noqa: TRY400 - where it stands is what matters
                "the record at offset %d of the state topic is not of this version of memq, and "
                "changes nothing: %r (%s)",
                record.offset,
                (record.key or b"")[:200],
                exc,
            )
        return None

    def forget(self, topic: str) -> Iterator[StateRecord]:
        """Records that take back all that is said about a topic, itself at the end."""
        for write_partition, claim in self._claims.get(topic, {}).items():
            yield StateRecord(_owner_key(topic, write_partition, claim), None)
        for group, offsets in self._offsets.get(topic, {}).items():
            for partition in offsets:
                yield StateRecord(_encode(["offset", topic, group, partition]), None)
        for group in self._held.get(topic, {}):
            yield StateRecord(_encode(["held", topic, group]), None)
        yield StateRecord(_encode(["topic", topic]), None)

    def next_claim(self, topic: str, write_partition: int, owner: str) -> Iterator[StateRecord]:
        """Records that claim a write partition for an owner, and take back the claim before."""
        latest = self.claim(topic, write_partition)
        claim = Claim(latest.number + 1, owner)
        yield StateRecord(_owner_key(topic, write_partition, claim), b"true")
        if latest.number:
            yield StateRecord(_owner_key(topic, write_partition, latest), None)

    # -- kinds of records -------------------------------------------------------------------

    def _read_topic(self, topic: str, value: bytes | None) -> None:
        if value is not None:
            self.topics[topic] = _decode_number(value)
            return
        for of_topics in (self.topics, self._claims, self._offsets, self._held):
            of_topics.pop(topic, None)

    def _read_owner(
        self, topic: str, write_partition: int, number: int, owner: str, value: bytes | None
    ) -> None:
        claims = self._claims.setdefault(topic, {})
        if value is not None and number > claims.get(write_partition, Claim()).number:
            claims[write_partition] = Claim(number, owner)

    def _read_offset(self, topic: str, group: str, partition: int, value: bytes | None) -> None:
        groups = self._offsets.setdefault(topic, {})
        if value is not None:
            groups.setdefault(group, {})[partition] = _decode_number(value)
            return
        offsets = groups.get(group, {})
        offsets.pop(partition, None)
        if not offsets:
            groups.pop(group, None)

    def _read_held(self, topic: str, group: str, value: bytes | None) -> None:
        groups = self._held.setdefault(topic, {})
        if value is not None:
            groups[group] = _decode_held(value)
        else:
            groups.pop(group, None)

    def _read_times(self, broker: str, value: bytes | None) -> None:
        if value is not None:
            self.times[broker] = _decode_times(value)
        else:
            self.times.pop(broker, None)


_KINDS: dict[str, Callable[..., None]] = {
    "topic": KafkaState._read_topic,  # noqa: SLF001 - its own
    "owner": KafkaState._read_owner,  # noqa: SLF001
    "offset": KafkaState._read_offset,  # noqa: SLF001
    "held": KafkaState._read_held,  # noqa: SLF001
    "times": KafkaState._read_times,  # noqa: SLF001
}


def topic_record(topic: str, partitions: int) -> StateRecord:
    """A topic of the queue is there."""
    return StateRecord(_encode(["topic", topic]), _encode(partitions))


def offset_records(topic: str, group: str, offsets: Mapping[int, int | None]) -> list[StateRecord]:
    """A group's next offsets; None for one that is forgotten."""
    return [
        StateRecord(
            _encode(["offset", topic, group, partition]),
            None if offset is None else _encode(offset),
        )
        for partition, offset in offsets.items()
    ]


def held_record(topic: str, group: str, holdings: Mapping[str, Holding]) -> StateRecord:
    """What the members of a group may hold now."""
    value = _encode(holdings) if holdings else None
    return StateRecord(_encode(["held", topic, group]), value)


def times_record(broker: str, times: SavedTimes) -> StateRecord:
    """How far time has come at a broker."""
    return StateRecord(_encode(["times", broker]), _encode(times))


def _owner_key(topic: str, write_partition: int, claim: Claim) -> bytes:
    return _encode(["owner", topic, write_partition, *claim])
