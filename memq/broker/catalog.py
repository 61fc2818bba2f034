"""The topics of a broker that is its own Governor, kept as one small file per topic.

A file is written to a temporary name, synced and renamed, so that a crash leaves the old or the new
text and never half of one. It holds the configuration and every schema that the topic has had, for
Messages with an older schema may still be on their way.

Theory of operation
-------------------
A topic exists from when its file `<name>.json` is durable until it is renamed. What else belongs to
it, notifications and objects, is made before and removed after, which takes several steps that a
crash or a full disk may part. So there is a second file, `<name>.<topic_id>.doomed`, which says
that whatever there is of this topic id is to be removed:

1. To create: `announce` (the doomed file), make what belongs to the topic, `save` (its own file),
   `forget` (the doomed file). Up to the third step nothing exists; after it, the doomed file means
   nothing. A maker that gives up in between calls `doom`.
2. To delete: `delete` (its own file becomes the doomed file), remove what belongs to it, `forget`.
3. To remove what is doomed: `withdraw` (its own file, should a creation have failed after it), and
   only then what belongs to it.

`doomed` names what is left to remove, after a crash as well. A topic id never comes back, so
removing it late, or again, harms no later topic of the same name.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.governor.topics import Topic, unknown_topic
from memq.errors import CorruptDataError, QueueError
from memq.runtime.files import explain, make_folders, replace_durably, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


__all__ = ["Catalog", "Topic"]

log = logging.getLogger(__name__)

_DOOMED = ".doomed"


class Catalog:
    """Topics by name, in memory and on disk. A file that does not hold a topic costs only that one.

    Attributes:
        damaged: why a name is not to be had, for every file that cannot be understood.

    Raises:
        QueueError: the disk refused.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            make_folders(directory)
            # A broker that changed names may have died before that was durable. What is shown, or
            # acted on, from here on is so.
            for folder in (directory.parent, directory):
                sync_folder(folder)
        except OSError as exc:
            raise QueueError(f"cannot make {directory}: {explain(exc)}") from exc
        self._topics: dict[str, Topic] = {}
        self.damaged: dict[str, CorruptDataError] = {}
        for path in sorted(directory.glob("*.json")):
            try:
                self._topics[path.stem] = _load(path)
            except CorruptDataError as exc:
                self.damaged[path.stem] = exc
        for path in directory.glob("*.tmp"):  # a crash left it half written
            path.unlink()
        self._doomed: dict[str, Topic] = {}
        for topic in _load_doomed(directory):
            if topic.name in self.damaged:
                continue  # what cannot be read may be this very topic_id
            if self._is_live(topic):
                self._doomed_path(topic).unlink()  # it was announced, and then it was made
            else:
                self._doomed[topic.topic_id] = topic

    def __repr__(self) -> str:
        return f"<Catalog [{len(self._topics)} topics] {self._directory}>"

    def names(self) -> list[str]:
        """Return the topics' names, sorted."""
        return sorted(self._topics)

    def get(self, name: str) -> Topic:
        """Return one topic.

        Raises:
            UnknownTopicError: there is none of that name.
            CorruptDataError: its file is damaged.
        """
        if name in self.damaged:
            raise CorruptDataError(str(self.damaged[name]))
        try:
            return self._topics[name]
        except KeyError:
            raise unknown_topic(name, self._topics) from None

    def __contains__(self, name: str) -> bool:
        return name in self._topics or name in self.damaged

    def save(self, topic: Topic) -> None:
        """Add a topic, or replace it, durably.

        Raises:
            QueueError: the disk refused; what was there is there.
        """
        path = self._path(topic.name)
        with _errors("write", topic, path):
            try:
                replace_durably(path, _text(topic))
            except OSError:
                if (old := self._topics.get(topic.name)) is not None:
                    with contextlib.suppress(OSError):  # the first error is told
                        replace_durably(path, _text(old))
                raise
        self._topics[topic.name] = topic
        self.damaged.pop(topic.name, None)

    def delete(self, name: str) -> None:
        """End a topic, durably. Its own file becomes the doomed one.

        Raises:
            UnknownTopicError: there is none of that name.
            QueueError: the disk refused; the topic is there.
        """
        topic = self.get(name)
        path = self._path(name)
        with _errors("delete", topic, path):
            path.rename(self._doomed_path(topic))
            try:
                sync_folder(self._directory)
            except OSError:
                with contextlib.suppress(OSError):  # the first error is told
                    self._doomed_path(topic).rename(path)
                    sync_folder(self._directory)
                raise
        del self._topics[name]

    # -- what is to be removed --------------------------------------------------------------

    def announce(self, topic: Topic) -> None:
        """Note, durably, that what there is of a topic is to be removed unless it comes to exist.

        Raises:
            QueueError: the disk refused.
        """
        path = self._doomed_path(topic)
        with _errors("write", topic, path):
            replace_durably(path, _text(topic))

    def doom(self, topic: Topic) -> None:
        """Learn that the announced topic will not exist."""
        self._doomed[topic.topic_id] = topic

    def doomed(self) -> list[Topic]:
        """Topics of which something may be left to remove."""
        return list(self._doomed.values())

    def withdraw(self, topic: Topic) -> None:
        """See to it, durably, that a doomed topic has no file of its own, before more is removed.

        There is one when its creation failed after the file was written: at a start that finds the
        file the topic exists.

        Raises:
            QueueError: the disk refused.
        """
        path = self._path(topic.name)
        with _errors("remove", topic, path):
            if topic.name in self._topics:
                return
            if path.exists() and _load(path).topic_id == topic.topic_id:
                path.unlink()
            sync_folder(self._directory)  # an attempt before this one may have removed it

    def forget(self, topic: Topic) -> None:
        """Note that nothing is left to remove, or that the topic exists.

        Raises:
            QueueError: the disk refused; it is found again at the next start.
        """
        path = self._doomed_path(topic)
        self._doomed.pop(topic.topic_id, None)
        with _errors("remove", topic, path):
            path.unlink(missing_ok=True)

    def _is_live(self, topic: Topic) -> bool:
        live = self._topics.get(topic.name)
        return live is not None and live.topic_id == topic.topic_id

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _doomed_path(self, topic: Topic) -> Path:
        return self._directory / f"{topic.queue_topic}{_DOOMED}"


def _text(topic: Topic) -> bytes:
    return msgspec.json.format(msgspec.json.encode(topic), indent=2)


@contextlib.contextmanager
def _errors(doing: str, topic: Topic, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise QueueError(f"cannot {doing} topic {topic.name!r} at {path}: {explain(exc)}") from exc


def _load(path: Path) -> Topic:
    try:
        topic = msgspec.json.decode(path.read_bytes(), type=Topic)
    except (*UNDECODABLE, OSError) as exc:
        raise CorruptDataError(
            f"{path} does not hold a topic ({exc}): restore it from a copy, or stop the broker and "
            "run `memq restore`"
        ) from exc
    if path.suffix == ".json" and topic.name != path.stem:
        raise CorruptDataError(f"{path} holds the topic {topic.name!r}: rename it, or move it away")
    return topic


def _load_doomed(directory: Path) -> list[Topic]:
    """Topics to be removed; what cannot be understood removes nothing."""
    doomed = []
    for path in sorted(directory.glob(f"*{_DOOMED}")):
        try:
            doomed.append(_load(path))
        except CorruptDataError as exc:
            log.warning("deleted topic not removed, its file is damaged: %s", exc)
    return doomed
