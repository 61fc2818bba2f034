"""The folders of the embedded queue: topics that appear and vanish as a whole, and group offsets.

    <directory>/lock                            held by the process that has the queue open
    <directory>/times.json                      how far time has come (`memq.core.clock`)
    <directory>/topics/<topic>/topic.json       number of partitions, sizes of pages
    <directory>/topics/<topic>/<partition>/     the partition's big array
    <directory>/topics/<topic>/groups/<group>.json   {"<partition>": <next offset>, ...}
    <directory>/topics/<topic>/members/<group>.json  what members may hold:
                                                {"<member>": [<session timeout>, [<partition>, …]]}
    <directory>/moving/                         topics that are being made or removed

A topic is made under `moving` and renamed into `topics`, and removed the other way round, so a
crash leaves it there or not, never half. What is found under `moving` is removed at the next start.

All that belongs to a topic is there from its making on. So what is missing was lost, and a topic
that misses something is not opened: its offsets would start over. Other topics do not suffer.

Group offsets are a file for each group, and not fronts of the arrays, because a commit sets
several partitions at once and must hold for all of them or none. What members hold is a file of its
own, since it changes when members come and go and not with each commit.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from memq.bigqueue.files import translated
from memq.core.checksum import crc32c
from memq.core.clock import SavedTimes
from memq.core.decoding import UNDECODABLE
from memq.core.queue import Holding, check_group_count
from memq.errors import ConfigError, CorruptDataError, QueueError
from memq.queue.embedded.read_partition import make_partition
from memq.runtime.files import replace_durably, sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_Content = TypeVar("_Content")

FORMAT_VERSION = 2
_GROUP_SUFFIX = ".json"

_log = logging.getLogger("memq.queue")


class TopicFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `topic.json` says.

    Attributes:
        format: version of the layout.
        partitions: read partitions.
        page_bytes: of their arrays.
        index_page_items: of their arrays.
    """

    format: int = FORMAT_VERSION
    partitions: int
    page_bytes: int
    index_page_items: int


class _TimesFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `times.json` says; the CRC32C is of both numbers as they stand there."""

    running_ms: int
    wall_ms: int
    crc32c: int


class TopicFolders:
    """The files of one queue. Methods block, and belong to one thread at a time for each topic.

    Args:
        directory: of the queue.
    """

    def __init__(self, directory: Path) -> None:
        self._times = directory / "times.json"
        self._topics = directory / "topics"
        self._moving = directory / "moving"

    def __repr__(self) -> str:
        return f"<TopicFolders {self._topics}>"

    def load(self) -> dict[str, TopicFile | CorruptDataError]:
        """Make the folders if there are none, remove what was left moving, and find the topics.

        For a topic that is damaged or not whole the value says so. What is no folder is no topic.

        Raises:
            ConfigError: a topic is of another version.
            QueueError: the file system refused.
        """
        with translated("open", self._topics):
            for folder in (self._topics, self._moving):
                folder.mkdir(exist_ok=True)
            # A process that made, moved or removed something may have died before that was durable.
            # What is shown, or acted on, from here on is so.
            queue = self._topics.parent
            for folder in (queue.parent, queue, self._topics, self._moving):
                sync_folder(folder)
            for leftover in self._moving.iterdir():
                _remove(leftover)
            return {
                folder.name: _load(folder) for folder in self._topics.iterdir() if folder.is_dir()
            }

    def make(
        self,
        topic: str,
        file: TopicFile,
        firsts: Sequence[int] = (),
        groups: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
        *,
        beside: bool = False,
    ) -> Path:
        """Make a topic with empty partitions, durably, which is not there before `show`.

        It may take seconds, and may run in parallel with methods for other topics.

        Args:
            topic: the topic.
            file: its sizes.
            firsts: the first offset of each partition; without, they begin at 0.
            groups: offsets of groups.
            beside: leave a topic that is there as it is, until it is moved away before `show`.

        Returns:
            Its folder until then, with one for each partition.

        Raises:
            QueueError: the file system refused.
        """
        new = self._moving / topic
        with translated("create topic", self._topics / topic):
            if not beside:
                self.remove(topic)  # what an attempt that failed has left
            elif new.exists():
                shutil.rmtree(new)
            for name in ("groups", "members"):
                (new / name).mkdir(parents=True)
            for number in range(file.partitions):
                make_partition(
                    new / str(number),
                    page_bytes=file.page_bytes,
                    index_page_items=file.index_page_items,
                    first=firsts[number] if firsts else 0,
                )
            for group, offsets in groups.items():
                _write(new / "groups" / (group + _GROUP_SUFFIX), offsets)
            replace_durably(new / "topic.json", msgspec.json.encode(file))
        return new

    def show(self, topic: str) -> None:
        """Let a topic be there that is made; raises as `make`."""
        with translated("create topic", self._topics / topic):
            (self._moving / topic).rename(self._topics / topic)
            sync_folder(self._topics)

    def remove(self, topic: str) -> None:
        """Remove a topic and all that belongs to it, durably; what is gone is fine.

        Raises:
            QueueError: the file system refused.
        """
        here, old = self._topics / topic, self._moving / topic
        with translated("delete topic", here):
            if here.exists():  # else an attempt that failed has moved it
                if old.exists():
                    shutil.rmtree(old)
                here.rename(old)
            sync_folder(self._topics)
            if old.exists():
                shutil.rmtree(old)

    def partition(self, topic: str, number: int) -> Path:
        """Return the folder of a partition's array."""
        return self._topics / topic / str(number)

    def groups(self, topic: str) -> list[str]:
        """Groups with stored offsets, sorted.

        Raises:
            QueueError: the file system refused; as do the next ones.
        """
        return self._names(topic, "groups")

    def offsets(self, topic: str, group: str) -> dict[int, int]:
        """Return a group's stored offsets; none when it has stored none.

        Raises:
            CorruptDataError: the file cannot be understood.
        """
        return self._read(self._file(topic, "groups", group), dict[int, int])

    def committed_end(self, topic: str, partition: int) -> int:
        """Return the furthest offset that a group has committed: those before it were handed out.

        A group whose file cannot be understood is left out; reading its offsets tells of it.
        """
        furthest = 0
        for group in self.groups(topic):
            with contextlib.suppress(CorruptDataError):
                furthest = max(furthest, self.offsets(topic, group).get(partition, 0))
        return furthest

    def store_offsets(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Set some of a group's offsets, durably; the others stay.

        Raises:
            CorruptDataError: the offsets that should stay cannot be read.
            LimitReachedError: the group is new and there are as many as there may be.
        """
        merged = self.offsets(topic, group) | dict(offsets)
        file = self._file(topic, "groups", group)
        if not file.exists():
            check_group_count(topic, group, len(self.groups(topic)))
        _write(file, merged)

    def remove_offsets(self, topic: str, group: str) -> None:
        """Forget a group's offsets, durably."""
        _write(self._file(topic, "groups", group), {})

    def holdings(self, topic: str) -> dict[str, dict[str, Holding] | None]:
        """Read what the members of each group may hold; None where the file is unreadable."""
        found: dict[str, dict[str, Holding] | None] = {}
        for group in self._names(topic, "members"):
            try:
                found[group] = self._read(self._file(topic, "members", group), dict[str, Holding])
            except CorruptDataError:
                found[group] = None
        return found

    def store_holdings(self, topic: str, group: str, holdings: Mapping[str, Holding]) -> None:
        """Store what the members of a group may hold, durably."""
        _write(self._file(topic, "members", group), holdings)

    def times(self) -> SavedTimes:
        """Read the last saved times; zeros when they are not known.

        Raises:
            QueueError: the file system refused.
        """
        try:
            with translated("read", self._times):
                found = msgspec.json.decode(self._times.read_bytes(), type=_TimesFile)
            times = SavedTimes(found.running_ms, found.wall_ms)
            if found.crc32c == _crc_of(times):
                return times
            cause = "its checksum does not match"
        except UNDECODABLE as exc:
            cause = str(exc)
        except QueueError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return SavedTimes(0, 0)
            raise
        # Times that are too early make what is kept be kept for longer, and nothing else.
        _log.error("%s is damaged (%s): times go on from the newest entry", self._times, cause)
        return SavedTimes(0, 0)

    def store_times(self, times: SavedTimes) -> None:
        """Keep how far time has come, durably.

        Raises:
            QueueError: the file system refused; what was stored before is kept.
        """
        file = _TimesFile(**times._asdict(), crc32c=_crc_of(times))
        with translated("write", self._times):
            replace_durably(self._times, msgspec.json.encode(file))

    def _file(self, topic: str, kind: str, group: str) -> Path:
        return self._topics / topic / kind / (group + _GROUP_SUFFIX)

    def _names(self, topic: str, kind: str) -> list[str]:
        folder = self._topics / topic / kind
        with translated("list", folder):
            return sorted(file.stem for file in folder.iterdir() if file.suffix == _GROUP_SUFFIX)

    def _read(self, file: Path, kind: type[_Content]) -> _Content:
        """Read a group's file; empty when there is none."""
        try:
            with translated("read", file):
                return msgspec.json.decode(file.read_bytes(), type=kind)
        except UNDECODABLE as exc:
            raise CorruptDataError(
                f"{file} is damaged ({exc}): restore it, or delete the group "
                "(`memq group delete GROUP TOPIC`) and set its offsets (`memq group reset-offsets`)"
            ) from exc
        except QueueError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return kind()
            raise


def _write(file: Path, content: Mapping[Any, Any]) -> None:
    """Give a group's file new content; where that is nothing, remove it."""
    with translated("write", file):
        if content:
            replace_durably(file, msgspec.json.encode(dict(sorted(content.items()))))
        else:
            file.unlink(missing_ok=True)
            sync_folder(file.parent)


def _crc_of(times: SavedTimes) -> int:
    return crc32c(b"%d %d" % times)


def _load(folder: Path) -> TopicFile | CorruptDataError:
    path = folder / "topic.json"
    way_out = "restore it from a copy, or run `memq restore`"
    try:
        file = msgspec.json.decode(path.read_bytes(), type=TopicFile)
    except (*UNDECODABLE, OSError) as exc:
        return CorruptDataError(f"{path} is damaged ({exc}); {way_out}")
    if file.format != FORMAT_VERSION:
        raise ConfigError(f"{path} has format {file.format}; this version reads {FORMAT_VERSION}")
    for name in ("groups", "members", *map(str, range(file.partitions))):
        if not (folder / name).is_dir():
            return CorruptDataError(f"{folder / name} is missing; {way_out}")
    for name in ("groups", "members"):  # no power cut may take back what is shown from now on
        sync_folder(folder / name)
    return file


def _remove(leftover: Path) -> None:
    if leftover.is_dir():
        shutil.rmtree(leftover)
    else:
        leftover.unlink()
