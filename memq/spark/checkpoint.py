"""Where a stream stands, and how a checkpoint has it.

The position in a topic is JSON: `{"incarnation": I, "partitions": {"0": {"from": F, "next": N}}}`.
In read partition 0 the stream began at F and reads on at N. The offsets are those of incarnation I
of the topic, and mean nothing in another one. A stream that reports to the audit also keeps how far
it has `told` it.

A stream of the option `topic` keeps just that, a stream of several topics has one for each:
`{"topics": {"clicks": {"incarnation": …}, …}}`. Both read both: an incarnation says which topic it
is of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memq.core.topic import check_incarnation
from memq.errors import CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping


class StreamPosition(NamedTuple):
    """Where a stream stands in a read partition.

    Attributes:
        began: its first offset.
        next: the offset at which it reads on.
        told: up to where it has reported to the audit; None where it does not.
    """

    began: int
    next: int
    told: int | None = None


StreamPositions = dict[int, StreamPosition]
"""By read partition."""


class TopicPosition(NamedTuple):
    """Where a stream stands in a topic.

    Attributes:
        incarnation: of the topic.
        partitions: by read partition.
    """

    incarnation: str
    partitions: StreamPositions


def decode_checkpoint(offset: Mapping[str, Any]) -> TopicPosition:
    """What a checkpoint says of one topic.

    Raises:
        CorruptDataError: it was written by something else.
    """
    try:
        check_incarnation(offset["incarnation"])
        positions = {
            int(partition): StreamPosition(
                int(each["from"]), int(each["next"]), *map(int, _optional(each, "told"))
            )
            for partition, each in offset["partitions"].items()
        }
        return TopicPosition(offset["incarnation"], positions)
    except (TypeError, KeyError, ValueError, AttributeError, InvalidRequestError) as exc:
        raise _foreign(offset) from exc


def encode_checkpoint(incarnation: str, positions: StreamPositions) -> dict[str, Any]:
    """What to write into a checkpoint; Spark compares it as text, so it is sorted."""
    return {
        "incarnation": incarnation,
        "partitions": {
            str(partition): {"from": began, "next": following}
            | ({} if told is None else {"told": told})
            for partition, (began, following, told) in sorted(positions.items())
        },
    }


def decode_topics(
    offset: Mapping[str, Any], names: Mapping[str, str], one: str
) -> dict[str, TopicPosition]:
    """What a checkpoint says of all topics, by name.

    Args:
        offset: from the checkpoint.
        names: of the topics that are read, by incarnation.
        one: name of a topic that stands in the checkpoint without it and is none of these; empty
            for streams of several, in which it cannot be known.

    Raises:
        CorruptDataError: it was written by something else.
    """
    if "topics" not in offset:
        position = decode_checkpoint(offset)
        return {names.get(position.incarnation, one): position}
    try:
        return {str(name): decode_checkpoint(each) for name, each in offset["topics"].items()}
    except AttributeError as exc:
        raise _foreign(offset) from exc


def encode_topics(topics: Mapping[str, TopicPosition], one: str) -> dict[str, Any]:
    """What to write into a checkpoint.

    Args:
        topics: where the stream stands, by name.
        one: the topic of a stream that reads only one; empty for others.
    """
    if one:
        return encode_checkpoint(*topics[one])
    return {"topics": {name: encode_checkpoint(*each) for name, each in sorted(topics.items())}}


def _optional(each: Mapping[str, Any], name: str) -> list[Any]:
    return [each[name]] if name in each else []


def _foreign(offset: Any) -> CorruptDataError:
    return CorruptDataError(
        f"the checkpoint says {offset!r}, which is not a position of a memq stream; it may "
        "belong to another source"
    )
