"""The topics of a stream: which there are, and whether a checkpoint goes on in them.

Rule 1. Which topics a pattern matches is asked once for each micro-batch, when its end is chosen. A
    topic that the stream has not read before is read from its earliest offset on, as new read
    partitions are: what was published to it before the stream came to know it is read as well.
Rule 2. A topic goes on only as the incarnation that the checkpoint names. One that was deleted and
    recreated stops the stream, also between two micro-batches.
Rule 3. A topic that is in the checkpoint and is gone stops the stream, for what it still had can
    never be read. With failOnDataLoss=false it is left out from then on. A broker may not know yet
    of a topic that another one told of, so it is asked for by name before that.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memq.core.format.schema import deserialize_schema
from memq.errors import DataLossError, TopicRecreatedError
from memq.spark.checkpoint import StreamPositions, TopicPosition, decode_topics, encode_topics
from memq.spark.topic import GO_ON
from memq.spark.topic_stream import TopicStream
from memq.spark.topics import SparkTopics, check_agrees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memq.spark.options import ReadOptions

log = logging.getLogger("memq.spark")

Positions = dict[str, StreamPositions]
"""By topic and read partition."""


class StreamTopics:
    """The topics of a stream.

    Args:
        options: of the read.
        first: name of a topic, and its schema serialized; that of others must agree.
        columns: that are read of them.

    Attributes:
        streams: the topics by name, as they were looked up last.
    """

    def __init__(
        self, options: ReadOptions, first: tuple[str, bytes], columns: Sequence[str]
    ) -> None:
        self.streams: dict[str, TopicStream] = {}
        self._options = options
        self._first = first
        self._columns = columns

    def __repr__(self) -> str:
        return f"<StreamTopics {list(self.streams.values())}>"

    @cached_property
    def _topics(self) -> SparkTopics:
        return SparkTopics(self._options)

    def close(self) -> None:
        """Close the connections."""
        if "_topics" in self.__dict__:
            self._topics.close()

    def look_up(self, *, again: bool = True) -> None:
        """Find the topics that are to be read now; those that are named are found once for all.

        Args:
            again: also when they were looked up before.

        Raises:
            SchemaMismatchError: one that is new has other columns than the others.
            MemqError: there is no such topic, or the brokers failed.
        """
        if self.streams and not (again and self._options.subscribe_pattern):
            return
        streams: dict[str, TopicStream] = {}
        for name, info in self._topics.look_up().items():
            known = self.streams.get(name)
            if known is None or known.incarnation != info.incarnation:
                self._check_columns(name, info.schemas[info.schema_id])
                known = self._stream(name, info.incarnation)
            streams[name] = known
        self.streams = streams

    def decode(self, offset: Mapping[str, Any]) -> Positions:
        """Positions from the checkpoint, if they are positions in the topics that there are.

        Raises:
            TopicRecreatedError: a topic was recreated since.
            DataLossError: a topic is gone, and must not be passed over.
            CorruptDataError: they are of another source.
            MemqError: the brokers failed.
        """
        names = {each.incarnation: name for name, each in self.streams.items()}
        found: Positions = {}
        for name, position in decode_topics(offset, names, self._options.topic).items():
            if not name:
                raise TopicRecreatedError(
                    f"the checkpoint is of one topic, in incarnation {position.incarnation}, and "
                    f"none of the {self._options.subject} has that now. {GO_ON}"
                )
            if name not in self.streams and not self._recover(name, position):
                continue
            present = self.streams[name].incarnation
            if position.incarnation != present:
                raise TopicRecreatedError(
                    f"topic {name!r} was deleted and recreated: "
                    f"{present} and {position.incarnation} are two topics of that name. "
                    f"{GO_ON}"
                )
            found[name] = position.partitions
        return found

    def encode(self, positions: Mapping[str, StreamPositions]) -> dict[str, Any]:
        """Positions as a checkpoint has them."""
        topics = {
            name: TopicPosition(self.streams[name].incarnation, each)
            for name, each in positions.items()
        }
        return encode_topics(topics, self._options.topic)

    def _stream(self, name: str, incarnation: str) -> TopicStream:
        options = self._options.of_topic(name, incarnation)
        return TopicStream(self._topics.topic(options), options)

    def _check_columns(self, name: str, schema: bytes) -> None:
        first, known = self._first
        if name != first and self._options.view == "records":
            mine, other = deserialize_schema(known), deserialize_schema(schema)
            check_agrees(first, mine, name, other, self._columns)

    def _recover(self, name: str, position: TopicPosition) -> bool:
        """Whether a topic is to be read that the stream has read, and that was not found now.

        Raises:
            DataLossError: it is gone, and must not be passed over.
            MemqError: the brokers failed.
        """
        if self._options.covers(name):
            stream = self._stream(name, position.incarnation)
            if stream.exists():
                self.streams[name] = stream
                return True
        message = (
            f"the checkpoint is of topic {name!r} (incarnation {position.incarnation}) as well, "
            f"which is not among the {self._options.subject} of this stream any more: it was "
            "deleted, or the options name other topics"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{message}. Begin with a new checkpoint, or set failOnDataLoss to false to read "
                "on without it"
            )
        log.warning("MemQ: %s: reading on without it, as failOnDataLoss is false", message)
        return False
