"""What brokers say to each other through one compacted topic of Kafka.

A record's key is a JSON list that begins with its kind, so that it can be read in a terminal, and a
record without a value takes back what its key stood for:

    ["topic", TOPIC]                            how many read partitions a topic of the queue has
    ["bases", TOPIC]                            offsets of what Kafka has at 0, of a restored topic
    ["owner", TOPIC, WRITE_PARTITION, N, OWNER] the Nth claim to a write partition
    ["offset", TOPIC, GROUP, READ_PARTITION]    a group's next offset
    ["held", TOPIC, GROUP]                      what the members of a group may hold
    ["times", BROKER]                           how far time has come at a broker

Theory of operation, of claims
------------------------------
A write partition belongs to the maker of its latest claim, a transactional id. Kafka has no "write
this if nobody else has", but the order of its log decides as well: of two claims of one number the
first in the log counts, for every reader and for ever, and a claim with a number that is not above
the latest one counts for nothing. So the next owner first makes sure that the owner of
claim N can publish no more, writes claim N + 1, and reads on until it sees it: then it is the
owner, unless somebody else's N + 1 came first. That holds after compaction too. It keeps the order,
and the last record of each key, which names its owner; claim N is taken back only by the records
that come with claim N + 1.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from memq.core.clock import SavedTimes
from memq.core.decoding import UNDECODABLE
from memq.core.queue import Holding
from memq.core.units import counted
from memq.errors import ClosedError, ConfigError, MemqError
from memq.queue.kafka.client import NewRecord, Place
from memq.queue.kafka.followed import SEEN_S, Followed, lost
from memq.runtime.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from memq.queue.kafka.client import KafkaClient, KafkaRecord, OnFailure
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

FOLLOW_AGAIN = Backoff(0.5, 30.0)
_SETTINGS = {
    "cleanup.policy": "compact",
    # What is not compacted yet is read by each broker that starts.
    "segment.ms": "3600000",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.after.max.ms": str((1 << 63) - 1),  # whatever clocks show
}

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_encode = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(list[Any]).decode
_decode_number = msgspec.json.Decoder(int).decode
_decode_numbers = msgspec.json.Decoder(list[int]).decode
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
        bases: of each restored topic: offsets of what Kafka has at 0, by read partition.
        times: how far time has come, by broker.
    """

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.bases: dict[str, list[int]] = {}
        self.times: dict[str, SavedTimes] = {}
        self._claims: dict[str, dict[int, Claim]] = {}  # of each topic, as are the next
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}
        self._held: dict[str, dict[str, dict[str, Holding]]] = {}

    def __repr__(self) -> str:
        return f"<KafkaState [{len(self.topics)} topics]>"

    def claim(self, topic: str, write_partition: int) -> Claim:
        """Return the latest claim to a write partition."""
        return self._claims.get(topic, {}).get(write_partition, Claim())

    def owners(self) -> dict[str, None]:
        """List all that have the latest claim to something."""
        claims = (claim for of_topic in self._claims.values() for claim in of_topic.values())
        return {claim.owner: None for claim in claims if claim.owner}

    def claimed_by(self, owners: Collection[str]) -> Iterator[tuple[str, int]]:
        """Yield the topics and write partitions to which these have the latest claim."""
        for topic, claims in self._claims.items():
            for write_partition, claim in claims.items():
                if claim.owner in owners:
                    yield topic, write_partition

    def offsets(self, topic: str, group: str) -> dict[int, int]:
        """Return a group's next offsets."""
        return dict(sorted(self._offsets.get(topic, {}).get(group, {}).items()))

    def groups(self, topic: str) -> list[str]:
        """Groups with offsets, sorted."""
        return sorted(self._offsets.get(topic, {}))

    def held(self, topic: str) -> Mapping[str, dict[str, Holding]]:
        """Return what the members of each group may hold."""
        return self._held.get(topic, {})

    def read(self, record: KafkaRecord) -> str | None:
        """Take over the next record. One that is not ours changes nothing, and is told.

        Returns:
            The topic that is gone, if it says so.
        """
        try:
            return self._apply(_decode_key(record.key or b""), record.value)
        except (*UNDECODABLE, TypeError, ValueError) as exc:
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
        if topic in self.bases:
            yield StateRecord(_encode(["bases", topic]), None)
        yield StateRecord(_encode(["topic", topic]), None)

    def next_claim(self, topic: str, write_partition: int, owner: str) -> Iterator[StateRecord]:
        """Records that claim a write partition for an owner, and take back the claim before."""
        latest = self.claim(topic, write_partition)
        claim = Claim(latest.number + 1, owner)
        yield StateRecord(_owner_key(topic, write_partition, claim), b"true")
        if latest.number:
            yield StateRecord(_owner_key(topic, write_partition, latest), None)

    def _apply(self, key: list[Any], value: bytes | None) -> str | None:
        match key:
            case ["topic", str(topic)]:
                if value is None:
                    for of_topics in (self.topics, self._claims, self._offsets, self._held):
                        of_topics.pop(topic, None)
                    return topic
                self.topics[topic] = _decode_number(value)
            case ["bases", str(topic)]:
                _set(self.bases, topic, None if value is None else _decode_numbers(value))
            case ["owner", str(topic), int(write_partition), int(number), str(owner)]:
                claims = self._claims.setdefault(topic, {})
                if value is not None and number > claims.get(write_partition, Claim()).number:
                    claims[write_partition] = Claim(number, owner)
            case ["offset", str(topic), str(group), int(partition)]:
                offset = None if value is None else _decode_number(value)
                self._set_offset(self._offsets.setdefault(topic, {}), group, partition, offset)
            case ["held", str(topic), str(group)]:
                held = {} if value is None else _decode_held(value)
                _set(self._held.setdefault(topic, {}), group, held or None)
            case ["times", str(broker)]:
                _set(self.times, broker, None if value is None else _decode_times(value))
            case _:
                raise ValueError("no such kind of record")
        return None

    @staticmethod
    def _set_offset(
        groups: dict[str, dict[int, int]], group: str, partition: int, offset: int | None
    ) -> None:
        offsets = groups.setdefault(group, {})
        _set(offsets, partition, offset)
        if not offsets:
            del groups[group]


def _set(values: dict[_Key, _Value], key: _Key, value: _Value | None) -> None:
    """Set a value, or remove it."""
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def topic_record(topic: str, partitions: int) -> StateRecord:
    """Make the record that says that a topic of the queue exists."""
    return StateRecord(_encode(["topic", topic]), _encode(partitions))


def bases_record(topic: str, bases: Sequence[int]) -> StateRecord:
    """Make the record that says which offsets stand at Kafka's 0, by read partition."""
    return StateRecord(_encode(["bases", topic]), _encode(bases))


def offset_records(topic: str, group: str, offsets: Mapping[int, int | None]) -> list[StateRecord]:
    """Make the records of a group's next offsets; None for one that is forgotten."""
    return [
        StateRecord(
            _encode(["offset", topic, group, partition]),
            None if offset is None else _encode(offset),
        )
        for partition, offset in offsets.items()
    ]


def held_record(topic: str, group: str, holdings: Mapping[str, Holding]) -> StateRecord:
    """Make the record of what the members of a group may hold now."""
    value = _encode(holdings) if holdings else None
    return StateRecord(_encode(["held", topic, group]), value)


def times_record(broker: str, times: SavedTimes) -> StateRecord:
    """Make the record of how far time has come at a broker."""
    return StateRecord(_encode(["times", broker]), _encode(times))


def _owner_key(topic: str, write_partition: int, claim: Claim) -> bytes:
    return _encode(["owner", topic, write_partition, *claim])


class StateTopic(Followed):
    """The topic, as one broker reads it from its start on.

    Args:
        client: of Kafka.
        cluster_id: of the cluster whose topic it is.
        on_forgotten: told of each topic of the queue that is said to be gone.
        on_read: called when something was read.
        on_failure: told that Kafka has lost what was said.
        runtime: chance, and the time for records.

    Attributes:
        state: all that was said, up to where it was read.
    """

    def __init__(
        self,
        client: KafkaClient,
        cluster_id: str,
        *,
        on_forgotten: Callable[[str], None],
        on_read: Callable[[], None],
        on_failure: OnFailure,
        runtime: Runtime,
    ) -> None:
        super().__init__(client, Place(f"{cluster_id}.memq-state", 0), 0)
        self._on_forgotten = on_forgotten
        self._on_read = on_read
        self._on_failure = on_failure
        self._runtime = runtime
        self._failures = 0  # to follow it, one after the other
        self._written = 0  # one past the last record that was written here
        self._looking: asyncio.Task[None] | None = None
        self.state = KafkaState()

    async def start(self) -> None:
        """Make it where there is none, and read it, but for what an open transaction hides.

        Raises:
            ConfigError: somebody else made it, with more than one partition.
        """
        partitions = await self._client.create_topic(self.place.topic, 1, _SETTINGS)
        if partitions != 1:
            raise ConfigError(
                f"topic {self.place.topic} of Kafka has {counted(partitions, 'partition')}, not 1: "
                "memq did not make it; choose another cluster_id"
            )
        bounds = (await self._client.bounds([self.place]))[0]
        self.reached = bounds.start
        self._client.follow(self.place, bounds.start, self)
        await self.see(bounds._replace(written=bounds.stable), SEEN_S)

    async def see_all(self) -> None:
        """See all that was said up to now, by whichever broker.

        Raises:
            QueueError: Kafka does not show it.
            DataLossError: Kafka has less of it than it had.
        """
        end = max(self.reached, self._written)
        bounds = (await self._client.bounds([self.place]))[0]
        if bounds.written < end and self.error is None:
            error = lost(self.place, end, bounds)
            super().failed(error)
            self._on_failure("what brokers have said", error)
        await self.see(bounds, SEEN_S)

    def note_written(self, end: int) -> None:
        """Note that this was written here; it may be read a little later."""
        self._written = max(self._written, end)

    def new_records(self, records: Iterable[StateRecord]) -> list[NewRecord]:
        """Return these records as they are written to it."""
        now_ms = self._runtime.wall_ms()
        return [NewRecord(self.place, each.value, each.key, now_ms) for each in records]

    def read(self, records: Sequence[KafkaRecord], reached: int) -> None:
        """Take over what was said."""
        for record in self.unread(records):
            gone = self.state.read(record)
            if gone is not None:
                self._on_forgotten(gone)
        self._failures = 0
        super().read(records, reached)
        self._on_read()

    def failed(self, error: MemqError) -> None:
        """Follow it again a little later: Kafka may only have to come to itself."""
        if isinstance(error, ClosedError):
            super().failed(error)
            if self._looking is not None:
                self._looking.cancel()
            return
        again_s = FOLLOW_AGAIN.equal_jitter_s(self._failures, self._runtime.random)
        self._failures += 1
        log.error("%s cannot be followed, again in %.1f s: %s", self.place, again_s, error)
        asyncio.get_running_loop().call_later(again_s, self._follow_again)

    def _follow_again(self) -> None:
        if self.error is None:
            self._client.follow(self.place, self.reached, self)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Learn whether there is nothing to follow any more."""
        try:
            await self.see_all()
        except MemqError as exc:
            log.warning("%s is not read: %s", self.place, exc)
