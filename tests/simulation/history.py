"""What happened in a run, as plain data: one NamedTuple per kind of operation.

The simulation and `make chaos` record a `History`; `tests.simulation.checkers` judges it. Nothing
here knows a broker, a client or a clock.

*Time* is microseconds by one true clock, that of the observer: it never steps, and all processes
share it. What a process under test believes about the time is another thing, and named `…_ms`.

*Outcome*: `OK`, it took effect; `INFO`, nobody knows, it may take effect even later. An operation
whose process crashed is `INFO` and has no end.

*Key*: what has an order of its own, (topic, topic id, read partition). A *place* in it is
(offset, position): the offset of a Batch's notification, and the LogMessage's number in that Batch,
from 0. Offsets may have gaps.

*Values* name LogMessages. Each is hashable and sent once: the same value twice is the same
LogMessage, sent again under the same name (producer id, epoch, write partition, sequence).
"""

from collections.abc import Hashable
from itertools import chain
from typing import NamedTuple, get_args, get_type_hints

OK, INFO = "ok", "info"

NOWHERE = -1  # as partition or offset: the answer did not say

Value = Hashable


class Key(NamedTuple):
    """What has an order of its own."""

    topic: str
    topic_id: str
    partition: int


class Name(NamedTuple):
    """Which Message it is; each producer counts `sequence` from 0 in each write partition."""

    write_partition: int
    producer_id: str
    epoch: int
    sequence: int


# -- sending ------------------------------------------------------------------------------------


class Send(NamedTuple):
    """A Message was sent, with all retries of it until its outcome was told.

    A stable producer that was started again and sends the same Message is one more `Send` with the
    same name and values.

    Attributes:
        topic_id: to which the producer believed to send; empty when it cannot tell.
        values: of its LogMessages, in their order.
        acks: "all", "1" or "0".
        ordered: the topic has `ordering=producer`.
        max_in_flight: Messages that this producer may have on their way.
        partition: read partition that the ack named, or `NOWHERE`.
        offset: likewise.
        duplicate: the ack said that it had been published before.
        keys: of its LogMessages, where they are placed by key.
    """

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    topic: str
    topic_id: str
    name: Name
    values: tuple[Value, ...]
    acks: str = "all"
    ordered: bool = False
    max_in_flight: int = 5
    partition: int = NOWHERE
    offset: int = NOWHERE
    duplicate: bool = False
    keys: tuple[str, ...] = ()


class Durable(NamedTuple):
    """From this time on the object and the notification of a Batch survive any crash."""

    time_us: int
    topic: str
    topic_id: str
    partition: int
    offset: int


# -- reading ------------------------------------------------------------------------------------

ASSIGNED, GROUP, RANGE = "assigned", "group", "range"


class Asked(NamedTuple):
    """A range of offsets; `end` is one past its last."""

    partition: int
    start: int
    end: int


class Poll(NamedTuple):
    """LogMessages were handed out. The last four are parallel, in the order of handing out.

    Attributes:
        mode: `ASSIGNED` follows partitions that it chose itself; `GROUP`, such as it was granted;
            `RANGE` reads the ranges that were asked for, whole.
        group: its consumer group; empty for none.
        member: its id in that group; for an assigned reader, the reader's own name.
        asked: with `RANGE`, what was to be read.
    """

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    topic: str
    topic_id: str
    mode: str
    group: str
    member: str
    partitions: tuple[int, ...]
    offsets: tuple[int, ...]
    positions: tuple[int, ...]
    values: tuple[Value, ...]
    asked: tuple[Asked, ...] = ()


class Batch(NamedTuple):
    """A notification and its object as somebody found them; each is found often.

    Attributes:
        partition: read partition of the notification.
        timestamp_ms: of the notification, by the broker's clock.
        sealed_ms: when the broker sealed the Batch, by its clock.
        batch_id: which Batch the notification names.
        digest: of notification and object; empty when the object could not be read.
        findings: what is wrong with it: notification, index and data that disagree.
    """

    time_us: int
    topic: str
    topic_id: str
    partition: int
    offset: int
    timestamp_ms: int
    sealed_ms: int
    batch_id: str
    digest: bytes = b""
    findings: tuple[str, ...] = ()


class Offsets(NamedTuple):
    """Somebody asked which offsets a read partition holds: from `start` up to before `end`."""

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    topic: str
    topic_id: str
    partition: int
    start: int = 0
    end: int = 0


class Watermark(NamedTuple):
    """Somebody asked for the watermark of a read partition.

    Attributes:
        stored_through_ms: what was sealed earlier, by the brokers' clock, was published before the
            answer.
    """

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    topic: str
    topic_id: str
    partition: int
    stored_through_ms: int = 0


# -- groups -------------------------------------------------------------------------------------

GRANTED, RENEWED, RELEASED, SOUGHT = "granted", "renewed", "released", "sought"


class Assignment(NamedTuple):
    """What a reader knows of its partitions changed.

    Attributes:
        event: `GRANTED`: from now on the member may read and commit them. `RENEWED`: a heartbeat
            was answered, it holds them longer. `RELEASED`: it gave them up, or was told to be out.
            `SOUGHT`: it chose, or chose anew, where to read on; of an assigned reader as well.
        member: as in `Poll`.
        until_us: granted or renewed, when its session ends by the member's own reckoning: the
            sending of its last answered heartbeat and the session timeout.
    """

    process: str
    time_us: int
    event: str
    topic: str
    topic_id: str
    group: str
    member: str
    partitions: tuple[int, ...]
    until_us: int | None = None


class Commit(NamedTuple):
    """A group's offsets were stored, each the next to read.

    Attributes:
        offsets: (partition, offset) each.
    """

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    topic: str
    topic_id: str
    group: str
    member: str
    offsets: tuple[tuple[int, int], ...]


class Committed(NamedTuple):
    """A group's stored offsets were fetched; a partition without one is left out."""

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    topic: str
    topic_id: str
    group: str
    offsets: tuple[tuple[int, int], ...] = ()


# -- audits -------------------------------------------------------------------------------------

CLEAN, PARTLY, UNCLEAN = "clean", "partly judged", "not clean"


class Run(NamedTuple):
    """Sequences of one producer in one write partition, ends included."""

    write_partition: int
    producer_id: str
    epoch: int
    first: int
    last: int


class Audit(NamedTuple):
    """All of a topic was audited.

    Attributes:
        verdict: `CLEAN`, `PARTLY` (no fault found, but not all could be judged) or `UNCLEAN`.
        lost: what it calls lost or damaged.
        wrong: what else it complains of, in its words.
    """

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    topic: str
    topic_id: str
    verdict: str = ""
    lost: tuple[Run, ...] = ()
    wrong: tuple[str, ...] = ()


class Loss(NamedTuple):
    """A loss was planted: stored Messages were destroyed behind the system's back.

    Attributes:
        time_us: when it was done.
        offset: of the Batch, in `partition`.
        names: of the Messages in it.
    """

    time_us: int
    topic: str
    topic_id: str
    partition: int
    offset: int
    names: tuple[Name, ...]


# -- topics, retention, and what is left --------------------------------------------------------

CREATE, ALTER, DELETE = "create", "alter", "delete"


class TopicChange(NamedTuple):
    """A topic was created, altered or deleted.

    Attributes:
        topic_id: that was made or meant; empty when a create did not tell.
        retention_us: that it has from then on; None when that was not said.
    """

    process: str
    start_us: int
    end_us: int | None
    outcome: str
    action: str
    topic: str
    topic_id: str
    retention_us: int | None = None


class Removal(NamedTuple):
    """A notification or an object of a topic was removed, whoever did it (but a planted `Loss`).

    Attributes:
        what: "notification" or "object".
        published_us: when it had been published, by the true clock; None for an object that no
            notification ever named.
        begun_us: when its put was first asked for, likewise: it was sealed just before. Retention
            counts from there, however much later the put takes effect.
    """

    time_us: int
    what: str
    topic: str
    topic_id: str
    partition: int
    offset: int
    published_us: int | None
    begun_us: int = 0


class Left(NamedTuple):
    """An object, file or folder that is there at the end.

    Attributes:
        what: which kind of thing.
        topic_id: of the topic that it belongs to; empty for what belongs to none.
        written_us: when it was written.
        named: a notification that is held names it, or it is otherwise known and needed.
    """

    time_us: int
    what: str
    name: str
    topic: str
    topic_id: str
    written_us: int
    named: bool


# -- processes ----------------------------------------------------------------------------------

CRASHED, STARTED, STOPPED = "crashed", "started", "stopped"


class Life(NamedTuple):
    """A process crashed (at once, nothing of it runs on), started, or stopped in good order."""

    time_us: int
    process: str
    event: str
    detail: str = ""


class Memory(NamedTuple):
    """What a process held, and what it said it would hold at most; in bytes."""

    time_us: int
    process: str
    what: str
    used_bytes: int
    bound_bytes: int


class Call(NamedTuple):
    """A call of a client that promised to end by a time, whatever it does."""

    process: str
    start_us: int
    end_us: int | None
    deadline_us: int
    what: str


class ClockStep(NamedTuple):
    """The wall clock of a broker was set by so much; it may follow, sooner or later or not."""

    time_us: int
    by_ms: int


class Quiet(NamedTuple):
    """From this time on there are no more faults; what starts after `settled_us` must succeed."""

    time_us: int
    settled_us: int


class Drained(NamedTuple):
    """A reader was let read until the end of a topic that nobody wrote to any more."""

    time_us: int
    process: str
    topic: str
    topic_id: str


class History:
    """All operations of a run, by kind; each kind in the order of recording.

    Attributes:
        end_us: when the recording ended; operations without an end were open then, or crashed.
        clock_error_us: how far brokers' clocks may be from the true one while nobody steps them.
        clocks_differ_ms: how far those of two brokers of a cluster may be from each other.
    """

    sends: list[Send]
    durables: list[Durable]
    polls: list[Poll]
    batches: list[Batch]
    offsets: list[Offsets]
    watermarks: list[Watermark]
    assignments: list[Assignment]
    commits: list[Commit]
    committed: list[Committed]
    audits: list[Audit]
    losses: list[Loss]
    topics: list[TopicChange]
    removals: list[Removal]
    left: list[Left]
    lives: list[Life]
    memory: list[Memory]
    calls: list[Call]
    steps: list[ClockStep]
    quiet: list[Quiet]
    drained: list[Drained]

    def __init__(self, *operations: NamedTuple, end_us: int = 0) -> None:
        self.end_us = end_us
        self.clock_error_us = self.clocks_differ_ms = 0
        self._of_kind: dict[type, list] = {kind: [] for kind in _KINDS.values()}
        for name, kind in _KINDS.items():
            setattr(self, name, self._of_kind[kind])
        for operation in operations:
            self.add(operation)

    def __repr__(self) -> str:
        counts = [f"{len(getattr(self, name))} {name}" for name in _KINDS if getattr(self, name)]
        return f"<History {', '.join(counts) or 'empty'}>"

    def add(self, operation: NamedTuple) -> None:
        """Record an operation, once its outcome is known."""
        self._of_kind[type(operation)].append(operation)

    def operations(self) -> list[NamedTuple]:
        """All of them, kind by kind."""
        return list(chain.from_iterable(self._of_kind.values()))


_KINDS = {name: get_args(kind)[0] for name, kind in get_type_hints(History).items()}


def split(queue_topic: str) -> tuple[str, str]:
    """Name and topic id of the queue."""
    name, _, topic_id = queue_topic.rpartition(".")
    return name, topic_id
