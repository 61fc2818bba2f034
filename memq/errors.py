"""Every error that MemQ raises on purpose.

There is one root, `MemqError`. A leaf has a stable `code`, which is what travels on the wire and
what scripts should match, and `retriable`, which says whether the same call may succeed later
without a change by the caller. A message names the value, the limit and the way out.
"""

from __future__ import annotations

from typing import ClassVar


class MemqError(Exception):
    """Root of all MemQ errors; on the wire, an unexpected failure.

    Attributes:
        code: stable machine-readable name of the error.
        retriable: True when the same call may succeed later with nothing changed.
    """

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False


# -- what the caller asked for is wrong -----------------------------------------------------


class ConfigError(MemqError):
    """A configuration value or option is unknown, malformed or out of its limits."""

    code = "config"


class InvalidRequestError(MemqError):
    """A request has a bad name, range, field or combination."""

    code = "invalid_request"


class UnknownTopicError(MemqError):
    """The topic does not exist; create it with `memq topic create`."""

    code = "unknown_topic"


class TopicExistsError(MemqError):
    """The topic exists already."""

    code = "topic_exists"


class TopicRecreatedError(MemqError):
    """The topic was deleted and recreated; what the client knows of it is stale."""

    code = "topic_recreated"


class UnknownGroupError(MemqError):
    """The topic has no such consumer group."""

    code = "unknown_group"


class LimitReachedError(MemqError):
    """A limit is reached; the message names it and the way out."""

    code = "limit_reached"


class SchemaMismatchError(MemqError):
    """Rows, a table or a Message do not have the topic's schema."""

    code = "schema_mismatch"


class MessageTooLargeError(MemqError):
    """A LogMessage, Message, item or frame is larger than the named limit."""

    code = "message_too_large"


class OffsetOutOfRangeError(MemqError):
    """An offset or range is not retained."""

    code = "offset_out_of_range"


class UnauthorizedError(MemqError):
    """The broker or a service refused the credentials or the operation."""

    code = "unauthorized"


class ForbiddenError(MemqError):
    """No rule allows this principal to do that; the message names both, and the way out."""

    code = "forbidden"


class TlsError(UnauthorizedError):
    """TLS failed: one side does not accept the other's certificate, or does not speak TLS."""

    code = "tls"


# -- bytes that are not what they claim to be -----------------------------------------------


class ProtocolError(MemqError):
    """The peer broke the wire protocol; the connection is closed."""

    code = "protocol"


class UnsupportedVersionError(ProtocolError):
    """The peer speaks no protocol version that this side speaks."""

    code = "unsupported_version"


class CorruptDataError(MemqError):
    """Stored or received bytes have a wrong checksum, length or structure."""

    code = "corrupt_data"


# -- producing ------------------------------------------------------------------------------


class ProducerFencedError(MemqError):
    """A newer epoch of the producer id is writing; stop."""

    code = "producer_fenced"


class SequenceConflictError(MemqError):
    """A sequence was resent with other content, or after the deduplication window."""

    code = "sequence_conflict"


class SequenceGapError(MemqError):
    """An ordered topic missed an earlier sequence; resend in order."""

    code = "sequence_gap"
    retriable = True


class DeliveryTimeoutError(MemqError):
    """A Message was not acked by its deadline; it may be stored."""

    code = "delivery_timeout"


class BufferFullError(MemqError):
    """The producer's memory stayed full; slow down or raise `buffer_bytes`."""

    code = "buffer_full"
    retriable = True


class ClosedError(MemqError):
    """The client, queue or broker has been closed."""

    code = "closed"


# -- where and when -------------------------------------------------------------------------


class NotHostedError(MemqError):
    """This broker does not host the topic or write partition.

    Attributes:
        address: `host:port` of the broker that does.
    """

    code = "not_hosted"
    retriable = True

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class UnavailableError(MemqError):
    """Broker, storage or queue is starting, draining, full or unreachable."""

    code = "unavailable"
    retriable = True


class RequestTimeoutError(MemqError):
    """No answer came within the deadline of the call."""

    code = "timeout"
    retriable = True


class NotOwnerError(MemqError):
    """A group member commits for a partition that another member owns now."""

    code = "not_owner"


# -- storage and queue ----------------------------------------------------------------------


class StorageError(MemqError):
    """The storage failed an operation; the message names key and cause.

    Attributes:
        refused: the storage has answered, and does not let us do this.
    """

    code = "storage"
    retriable = True
    refused = False


class ObjectNotFoundError(MemqError):
    """The object was removed by retention, or lost."""

    code = "object_not_found"


class QueueError(MemqError):
    """The notification queue failed an operation; nothing was published."""

    code = "queue"
    retriable = True


class PublishUncertainError(QueueError):
    """A publish may or may not have taken effect; fence and read back."""

    code = "publish_uncertain"


class QueueFailedError(QueueError):
    """An earlier flush of the queue failed; close and reopen it."""

    code = "queue_failed"
    retriable = False


class FencedError(QueueError):
    """Another owner publishes for this write partition; nothing was published."""

    code = "fenced"
    retriable = False


# -- coordination ---------------------------------------------------------------------------


class SessionLostError(MemqError):
    """The session with the coordination service, with its ephemerals, is over; open another.

    The call that raises it changed nothing.
    """

    code = "session_lost"


class ChangeUncertainError(MemqError):
    """A change got no answer and may have happened; read back."""

    code = "change_uncertain"


class NoNodeError(MemqError):
    """The node does not exist."""

    code = "no_node"


class NodeExistsError(MemqError):
    """The node exists already."""

    code = "node_exists"


class NodeNotEmptyError(MemqError):
    """A node with children cannot be deleted."""

    code = "node_not_empty"


class VersionConflictError(MemqError):
    """The node has another version than expected; read it again."""

    code = "version_conflict"


# -- tables ---------------------------------------------------------------------------------


class RangeConflictError(MemqError):
    """A table already has a part of a range, so it cannot take the range whole."""

    code = "range_conflict"


class TableConflictError(MemqError):
    """A commit was refused since the table changed, or its outcome is unknown; check the table."""

    code = "table_conflict"
    retriable = True


# -- whole data directories -----------------------------------------------------------------


class LockedError(MemqError):
    """Another process holds the lock on this data directory."""

    code = "locked"


class DataLossError(MemqError):
    """Acked or requested data is gone or damaged; the message names it."""

    code = "data_loss"


def _leaves(cls: type[MemqError]) -> list[type[MemqError]]:
    found = [cls]
    for sub in cls.__subclasses__():
        found.extend(_leaves(sub))
    return found


_BY_CODE: dict[str, type[MemqError]] = {cls.code: cls for cls in _leaves(MemqError)}


def from_code(code: str, message: str, address: str = "") -> MemqError:
    """Make the error that a peer named by `code`; an unknown code becomes the root, keeping its
    text.
    """
    cls = _BY_CODE.get(code, MemqError)
    if cls is NotHostedError:
        return NotHostedError(message, address)
    return cls(message if code in _BY_CODE else f"{code}: {message}")
