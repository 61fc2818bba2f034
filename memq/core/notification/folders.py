"""The folders of the embedded queue: topics that appear and vanish as a whole, and group offsets.

    <directory>/lock                            held by the process that has the queue open
    <directory>/topics/<topic>/topic.json       number of partitions, sizes of pages
    <directory>/topics/<topic>/<partition>/     the partition's big array
    <directory>/topics/<topic>/groups/<group>.json   {"<partition>": <next offset>, ...}
    <directory>/moving/                         topics that are being made or removed

A topic is made under `moving` and renamed into `topics`, and removed the other way round, so a
crash leaves it there or not, never half. What is found under `moving` is removed at the next start.

Group offsets are a file for each group, and not fronts of the arrays, because a commit sets
several partitions at once and must hold for all of them or none.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import msgspec

from memq.core.files import explain, replace_durably, sync_folder
from memq.errors import ConfigError, CorruptDataError, QueueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FORMAT_VERSION = 1
_GROUP_SUFFIX = ".json"


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


class TopicFolders:
    """The files of one queue. Methods block, and belong to one thread at a time for each topic.

    Args:
        directory: of the queue.
    """

    def __init__(self, directory: Path) -> None:
        self._topics = directory / "topics"
        self._moving = directory / "moving"

    def __repr__(self) -> str:
        return f"<TopicFolders {self._topics}>"

    def load(self) -> dict[str, TopicFile]:
        """Make the folders if there are none, remove what was left moving, and find the topics.

        Raises:
            CorruptDataError: a topic's file cannot be understood.
            ConfigError: it is of another version.
            QueueError: the file system refused.
        """
        with _errors("open", self._topics):
            for folder in (self._topics, self._moving):
                folder.mkdir(exist_ok=True)
            sync_folder(self._topics.parent)
            for leftover in self._moving.iterdir():
                shutil.rmtree(leftover)
            return {folder.name: _load(folder) for folder in self._topics.iterdir()}

    def create(self, topic: str, file: TopicFile) -> None:
        """Make a topic with empty partitions, durably.

        Raises:
            QueueError: the file system refused; there is no such topic.
        """
        new = self._moving / topic
        with _errors("create topic", self._topics / topic):
            if new.exists():
                shutil.rmtree(new)
            for name in ("groups", *map(str, range(file.partitions))):
                (new / name).mkdir(parents=True)
            replace_durably(new / "topic.json", msgspec.json.encode(file))
            new.rename(self._topics / topic)
            sync_folder(self._topics)

    def remove(self, topic: str) -> None:
        """Remove a topic and all that belongs to it, durably.

        Raises:
            QueueError: the file system refused.
        """
        old = self._moving / topic
        with _errors("delete topic", self._topics / topic):
            if old.exists():
                shutil.rmtree(old)
            (self._topics / topic).rename(old)
            sync_folder(self._topics)
            shutil.rmtree(old)

    def partition(self, topic: str, number: int) -> Path:
        """The folder of a partition's array."""
        return self._topics / topic / str(number)

    def groups(self, topic: str) -> list[str]:
        """Groups with stored offsets, sorted.

        Raises:
            QueueError: the file system refused.
        """
        folder = self._topics / topic / "groups"
        with _errors("list", folder):
            return sorted(file.stem for file in folder.iterdir() if file.suffix == _GROUP_SUFFIX)

    def offsets(self, topic: str, group: str) -> dict[int, int]:
        """A group's stored offsets; none when it has stored none.

        Raises:
            CorruptDataError: the file cannot be understood.
            QueueError: the file system refused.
        """
        file = self._group_file(topic, group)
        try:
            with _errors("read", file):
                return msgspec.json.decode(file.read_bytes(), type=dict[int, int])
        except msgspec.MsgspecError as exc:
            raise CorruptDataError(
                f"{file} is damaged ({exc}): restore it, or delete the group and set its offsets"
            ) from exc
        except QueueError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return {}
            raise

    def store_offsets(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Set some of a group's offsets, durably; the others stay.

        Raises:
            CorruptDataError: the offsets that should stay cannot be read.
            QueueError: the file system refused; the offsets are as they were.
        """
        merged = self.offsets(topic, group) | dict(offsets)
        file = self._group_file(topic, group)
        with _errors("write", file):
            replace_durably(file, msgspec.json.encode(dict(sorted(merged.items()))))

    def remove_offsets(self, topic: str, group: str) -> None:
        """Forget a group's offsets, durably.

        Raises:
            QueueError: the file system refused.
        """
        file = self._group_file(topic, group)
        with _errors("delete", file):
            file.unlink(missing_ok=True)
            sync_folder(file.parent)

    def _group_file(self, topic: str, group: str) -> Path:
        return self._topics / topic / "groups" / (group + _GROUP_SUFFIX)


def _load(folder: Path) -> TopicFile:
    path = folder / "topic.json"
    try:
        file = msgspec.json.decode(path.read_bytes(), type=TopicFile)
    except msgspec.MsgspecError as exc:
        raise CorruptDataError(f"{path} is damaged ({exc}); restore it from a copy") from exc
    if file.format != FORMAT_VERSION:
        raise ConfigError(f"{path} has format {file.format}; this version reads {FORMAT_VERSION}")
    return file


@contextlib.contextmanager
def _errors(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise QueueError(f"cannot {doing} {path}: {explain(exc)}") from exc
