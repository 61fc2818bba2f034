"""Objects by key below the storage's present root: what readers are told, and what is missing.

A notification holds the complete URI that its object had when it was published, and stays as it is.
What lasts of it is the *key*: it names one object for ever, while the root that it lies below is
wherever the operator has moved, copied or mounted it to. So the broker itself goes by the key alone
(`key_of_uri`), and readers of notifications are told the URI of the key below the present root.

For the usual notification that costs a look at its bytes: one that names the present root already
is passed on untouched. Of any other the field `uri` alone is decoded and replaced, in a thread.

*What is missing.* With a wrong root each Batch reads as lost, one after the other. So the start
looks for the objects of the newest and of the oldest notification of each read partition, and says
at once what it does not find. What can be read is served all the same.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.notification import decode_notification
from memq.core.units import counted
from memq.errors import InvalidRequestError, MemqError, ObjectNotFoundError
from memq.storage.keys import KEY_PARTS, key_of_uri

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from memq.core.governor.topics import Topic
    from memq.core.queue import NotificationQueue, QueueEntry
    from memq.storage.handler import StorageHandler

MAX_LOOKED_FOR = 1_000  # objects; they take some tenths of a second
LOOK_TIMEOUT_S = 10.0  # a storage that hangs must not keep the broker from serving
MAX_MISSING_NAMED = 100  # objects that /status names one by one

_PROBE = "root"
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class ObjectRoot:
    """The root below which a storage has its objects now.

    Args:
        storage: of the broker.

    Attributes:
        uri: of the root, with a '/' at its end.
    """

    def __init__(self, storage: StorageHandler) -> None:
        self._storage = storage
        self.uri = storage.uri(_PROBE).removesuffix(_PROBE)
        # Within a JSON string a quote has a backslash before it: only the field begins like this.
        # A key must be all that follows the root, for an earlier root may lie within this one.
        mark = re.escape(b'"uri":' + _encode(self.uri)[:-1])
        self._is_named = re.compile(mark + rb'(?:[^/"]+/){%d}[^/"]+"' % (KEY_PARTS - 1)).search

    def __repr__(self) -> str:
        return f"<ObjectRoot {self.uri}>"

    async def served(self, entries: list[QueueEntry]) -> list[QueueEntry]:
        """Give entries as they are to be told: each names its object below this root."""
        if all(map(self._is_named, [entry.payload for entry in entries])):
            return entries
        # A page of large notifications takes tens of milliseconds.
        return await asyncio.to_thread(
            lambda: [entry._replace(payload=self.present(entry.payload)) for entry in entries]
        )

    def present(self, payload: bytes) -> bytes:
        """Return a notification with the present URI of its object, and nothing else changed.

        What is no notification of a Batch stays as it is: its reader says what is wrong.
        """
        if self._is_named(payload):
            return payload
        try:
            fields = _decode_fields(payload)
            key = key_of_uri(_decode_text(fields["uri"]))
        except (*UNDECODABLE, KeyError, InvalidRequestError):
            return payload
        fields["uri"] = msgspec.Raw(_encode(self.uri + key))
        return _encode(fields)

    def are_there(self, keys: list[str]) -> list[bool]:
        """Tell whether each object is there, up to the first that the storage cannot tell of.

        It blocks. The storage is not asked about those after it: each could take long.
        """
        found: list[bool] = []
        for key in keys:
            try:
                self._storage.get_range(key, 0, 1)
            except ObjectNotFoundError:
                found.append(False)
            except MemqError:
                break
            else:
                found.append(True)
        return found


class MissingObject(NamedTuple):
    """A retained notification whose object is not below the present root.

    Attributes:
        topic: its topic.
        partition: read partition.
        offset: of the notification.
        key: of the object.
        uri: that the object had when it was published.
    """

    topic: str
    partition: int
    offset: int
    key: str
    uri: str


class Presence(NamedTuple):
    """What was found of the objects that were looked for.

    Attributes:
        root: below which they were looked for.
        looked_for: of how many notifications.
        missing: those whose objects are not there.
        unknown: of how many more the storage could not tell.
    """

    root: str = ""
    looked_for: int = 0
    missing: tuple[MissingObject, ...] = ()
    unknown: int = 0

    def warning(self) -> str:
        """Say what is missing, if anything; the likely reason, and the way out."""
        first = self.missing[0]
        return (
            f"no object below {self.root} for {len(self.missing)} of "
            f"{counted(self.looked_for, 'notification')} looked at, such as offset {first.offset} "
            f"of {first.topic}/{first.partition} (stored as {first.uri}): was the data directory "
            "moved without its objects, or does `storage` name another place? Put the objects "
            "there, or stop the broker and set `storage` to where they are; until then readers of "
            "them get DataLossError"
        )

    def reasons(self) -> list[str]:
        """Why the broker is not ready: nothing of what it was looked for is there."""
        return [self.warning()] if self.missing and len(self.missing) == self.looked_for else []


async def look_for_objects(
    root: ObjectRoot, topics: Sequence[Topic], queue: NotificationQueue, executor: Executor
) -> Presence:
    """Look for the objects of the newest and of the oldest notification of each read partition.

    At most `MAX_LOOKED_FOR`, the newest first.
    """
    ends = (await _ends(topics, queue))[:MAX_LOOKED_FOR]
    named = [each for end in ends if (each := await _named(*end, queue)) is not None]
    looking = asyncio.get_running_loop().run_in_executor(
        executor, root.are_there, [each.key for each in named]
    )
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            found = await looking
    except TimeoutError:
        found = []
    missing = [each for each, there in zip(named, found, strict=False) if not there]
    return Presence(root.uri, len(found), tuple(missing), len(named) - len(found))


async def _ends(topics: Sequence[Topic], queue: NotificationQueue) -> list[tuple[Topic, int, int]]:
    """Topic, read partition and offset of the newest notifications, then of the oldest ones."""
    newest: list[tuple[Topic, int, int]] = []
    oldest: list[tuple[Topic, int, int]] = []
    for topic in topics:
        for partition in range(topic.config.read_partitions):
            try:
                start, end = await queue.offsets(topic.queue_topic, partition)
            except MemqError:  # a topic that was deleted meanwhile
                continue
            if start < end:
                newest.append((topic, partition, end - 1))
            if start < end - 1:
                oldest.append((topic, partition, start))
    return newest + oldest


async def _named(
    topic: Topic, partition: int, offset: int, queue: NotificationQueue
) -> MissingObject | None:
    """Return the object that a notification names; None when it is damaged."""
    try:
        entries = await queue.fetch(
            topic.queue_topic, partition, offset, max_entries=1, max_bytes=1
        )
        uri = decode_notification(entries[0].payload).uri
        return MissingObject(topic.name, partition, offset, key_of_uri(uri), uri)
    except MemqError:
        return None
