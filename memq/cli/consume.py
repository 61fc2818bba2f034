"""`memq consume`: LogMessages become lines.

What a group has committed has been written: a Batch counts as done once all of it went to stdout
and was flushed. After an interruption the group goes on with the whole Batch, so that lines may
come again but are never missed. A group cannot come to rest within a Batch, which is why
--max-messages is refused there: it would be given the same Batch again and again.

Brokers or storage that do not answer are waited for, as long as --timeout allows. That is said once
on stderr, and once that it is over.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Literal

import click

from memq.cli.command import (
    Command,
    RangeType,
    RowType,
    check_reachable,
    connect_admin,
    connection_options,
    option,
)
from memq.cli.completion import GroupType, TopicType
from memq.cli.output import notice, write_whole
from memq.core.options import Option
from memq.core.units import DAY_MS
from memq.errors import (
    InvalidRequestError,
    MemqError,
    NotOwnerError,
    RequestTimeoutError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from memq import Consumer
    from memq.client.batch import Batch, Order
    from memq.client.consumer.fetcher import OnOutOfRange
    from memq.client.consumer.options import ConsumerArguments
    from memq.client.objects import ReadThrough
    from memq.core.ranges import OffsetRange
    from memq.core.wire.messages import PartitionOffsets

    Format = Literal["raw", "json"]

POLL_S = 0.2  # how long the end of what is to be read may go unnoticed
COMMIT_S = 1.0  # lines of this long may come again after a crash
OUTAGE_S = 10.0  # somebody at a terminal should learn of it; 4 MiB through a broker take less

TIMEOUT = Option(
    "duration",
    None,
    100,
    365 * DAY_MS,
    name="timeout",
    doc="End when nothing came for so long; without it, wait on, through outages as well.",
)


@click.command(
    cls=Command,
    epilog="""
memq consume clicks --from-beginning --exit-at-end
memq consume clicks --group reports --format json | jq .value
memq consume clicks --group reports --max-batches 10 --timeout 30s
memq consume clicks --range 0:100-200 > batches-100-to-199.txt
""",
)
@click.argument("topic", type=TopicType())
@option("--from-beginning", is_flag=True, help="Begin with what is retained, not with what comes.")
@option(
    "--group",
    type=GroupType(),
    help="Go on where this group has come to, and remember how far it gets.",
)
@option("--max-messages", type=click.IntRange(min=1), help="End after so many LogMessages.")
@option("--max-batches", type=click.IntRange(min=1), help="End after so many Batches.")
@option("--timeout", type=RowType(TIMEOUT), default=None, help=TIMEOUT.doc)
@option("--range", "wanted", type=RangeType(), help="Read exactly these Batches, and end.")
@option(
    "--format",
    "form",
    type=click.Choice(["raw", "json"]),
    default="raw",
    help="raw: each value and a newline; json: one object a line, with all there is to know.",
)
@option(
    "--on-out-of-range",
    type=click.Choice(["error", "earliest", "latest"]),
    default="error",
    help="Where to go on when retention has overtaken the reader: error ends, the others skip.",
)
@option("--exit-at-end", is_flag=True, help="End when all is read that there was at the start.")
@option(
    "--order",
    type=click.Choice(["none", "producer", "key"]),
    default="none",
    help="Of the LogMessages within each Batch.",
)
@option(
    "--read-through",
    type=click.Choice(["storage", "broker"]),
    default="storage",
    help="broker: for machines that cannot reach the storage.",
)
@connection_options
def consume(
    *,
    topic: str,
    from_beginning: bool,
    group: str | None,
    max_messages: int | None,
    max_batches: int | None,
    timeout: str | None,
    wanted: OffsetRange | None,
    form: Format,
    on_out_of_range: OnOutOfRange,
    exit_at_end: bool,
    order: Order,
    read_through: ReadThrough,
    bootstrap: str,
    token: str,
) -> None:
    """Print the LogMessages of TOPIC, a line each, until interrupted.

    A group remembers a Batch once all its lines are written. Brokers that do not answer are waited
    for, which is said on stderr; at a terminal so is when reading begins.

    The exit code is 1 when --timeout ended it while brokers did not answer, or before all of
    --range or --exit-at-end was read.
    """
    if wanted and (group or from_beginning or exit_at_end or on_out_of_range != "error"):
        raise click.UsageError(
            "--range says all; leave out --group, --from-beginning, --exit-at-end and "
            "--on-out-of-range"
        )
    if group and max_messages:
        raise click.UsageError(
            "a group commits whole Batches, and --max-messages may end within one, which would "
            "come again for ever: give --max-batches, or leave out --group"
        )
    from memq import Consumer  # noqa: PLC0415 - loads Arrow

    check_reachable(bootstrap)
    stop = None
    if wanted or exit_at_end:
        with connect_admin(bootstrap, token) as admin:
            stop = _stop_of(topic, wanted, admin.offsets(topic))
    waiting = Waiting(timeout)
    progress = Progress(waiting, remember=group is not None)
    options: ConsumerArguments = {
        "group": group,
        "start": "earliest" if from_beginning else "latest",
        "order": order,
        "on_out_of_range": on_out_of_range,
        "read_through": read_through,
        "on_assign": progress.begin,
        "on_revoke": progress.leave,
        "on_lost": progress.lose,
        "request_timeout": waiting.request_timeout,
        "token": token,
        "client": "memq consume",
    }
    with (
        quiet_log("memq.client.cluster"),
        Consumer(bootstrap, topic=topic, **options) as consumer,
    ):
        progress.consumer = consumer
        if wanted:
            consumer.assign({wanted.partition: wanted.start})
        printer = Printer(form, Left(max_messages, max_batches), progress)
        try:
            _print_batches(consumer, waiting, printer, stop)
        finally:
            progress.close()


@contextmanager
def quiet_log(name: str) -> Iterator[None]:
    """Keep warnings of a logger away: this command says itself what they would say again."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Waiting:
    """Waits for Batches, through outages as well.

    Args:
        timeout: how long nothing may come, as a person writes it; None for ever.

    Attributes:
        down: why nothing comes, while brokers or storage do not answer.
    """

    def __init__(self, timeout: str | None) -> None:
        self.down: MemqError | None = None
        self._timeout = timeout
        self._timeout_s = math.inf if timeout is None else TIMEOUT.parse(timeout) / 1_000
        self._last_s = time.monotonic()

    @property
    def request_timeout(self) -> str:
        """How long a call may take until it counts as an outage."""
        return f"{round(1_000 * max(0.1, min(OUTAGE_S, self._timeout_s / 2)))}ms"

    @property
    def brokers_down(self) -> bool:
        """Whether it is the brokers that do not answer."""
        return isinstance(self.down, UnavailableError | RequestTimeoutError)

    def poll(self, consumer: Consumer) -> Batch | None:
        """The next Batch, if one comes soon.

        Raises:
            MemqError: what will not pass.
        """
        try:
            batch = consumer.poll(POLL_S)
            if batch is None and self.brokers_down:
                consumer.lag()  # answered by a broker, or not
                batch = consumer.poll(POLL_S)  # raises an error that is older than this answer
                self._up()
        except MemqError as exc:
            if not exc.retriable:
                raise
            if self.down is None:
                notice(f"memq: waiting, as there is no answer: {exc}")
            self.down = exc
            return None
        if batch is not None:
            self._last_s = time.monotonic()
            self._up()
        return batch

    def is_over(self, consumer: Consumer, *, unread: bool) -> bool:
        """Whether nothing came for as long as it may.

        Args:
            consumer: to ask whether brokers answer at all.
            unread: something is still to be read.

        Raises:
            RequestTimeoutError: it is over too soon.
        """
        if time.monotonic() - self._last_s < self._timeout_s:
            return False
        reason = self.down or _error_of(consumer)
        if reason is None and unread:
            reason = RequestTimeoutError("not all is read that there was at the start")
        if reason is not None:
            raise RequestTimeoutError(
                f"nothing came for {self._timeout} (--timeout): {reason}"
            ) from reason
        return True

    def _up(self) -> None:
        if self.down is not None:
            self.down = None
            notice("memq: there are answers again; going on")


def _error_of(consumer: Consumer) -> MemqError | None:
    """Why brokers do not answer; None when they do."""
    try:
        consumer.lag()
    except MemqError as exc:
        return exc
    return None


class Left:
    """How much is still to be printed.

    Attributes:
        messages: LogMessages; None for any number.
        batches: Batches; None for any number.
    """

    def __init__(self, messages: int | None, batches: int | None) -> None:
        self.messages = messages
        self.batches = batches

    @property
    def nothing(self) -> bool:
        """Whether all was printed that was asked for."""
        return 0 in (self.messages, self.batches)

    def take(self, batch: Batch) -> int:
        """How many LogMessages of the next Batch are to be printed."""
        records = len(batch) if self.messages is None else min(self.messages, len(batch))
        if self.messages is not None:
            self.messages -= records
        if self.batches is not None:
            self.batches -= 1
        return records


class Progress:
    """Which Batches are written; tells the group of it.

    Args:
        waiting: knows of outages.
        remember: whether there is a group.

    Attributes:
        consumer: to commit with.
    """

    consumer: Consumer

    def __init__(self, waiting: Waiting, *, remember: bool) -> None:
        self._waiting = waiting
        self._remember = remember
        self._begun: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._due_s = time.monotonic() + COMMIT_S

    def begin(self, partitions: list[int]) -> None:
        """Partitions are read from here on.

        The group remembers it where it has committed nothing, though nothing may come: what is
        published until its next member begins is for that one, and counts as lag.
        """
        if self._remember:
            self._begun |= {each: self.consumer.position(each) for each in partitions}
            self._commit()

    def written(self, batch: Batch) -> None:
        """All of this Batch is written; commits when it is time."""
        if self._remember:
            self._next[batch.partition] = batch.offset + 1
            if time.monotonic() >= self._due_s:
                self._commit()

    def leave(self, partitions: list[int]) -> None:
        """Partitions go to another member, which is to go on after what is written."""
        self._commit()
        self._give_up(partitions)

    def lose(self, partitions: list[int]) -> None:
        """Partitions are another member's already, and so are their commits."""
        for partition in partitions:
            self._begun.pop(partition, None)
            self._next.pop(partition, None)

    def close(self) -> None:
        """Commit what is left."""
        self._commit()
        self._give_up(list(self._next))

    def _commit(self) -> None:
        """Commit what is written; without an answer it is tried again with what is written next."""
        offsets, self._next = self._next, {}
        self._due_s = time.monotonic() + COMMIT_S
        try:
            if self._waiting.brokers_down:
                self._next = offsets
                return
            if self._begun:
                known = self.consumer.committed()
                offsets = {p: at for p, at in self._begun.items() if p not in known} | offsets
                self._begun = {}
            if offsets:
                self.consumer.commit(offsets)
        except NotOwnerError as exc:
            notice(f"memq: another member took over; lines come again there: {exc}")
        except MemqError as exc:
            if not exc.retriable:
                raise
            self._next = offsets

    def _give_up(self, partitions: list[int]) -> None:
        for each in partitions:
            self._begun.pop(each, None)
        held = [each for each in partitions if self._next.pop(each, None) is not None]
        if held:
            notice(f"memq: no answer to the last commit of partitions {held}; lines may come again")


Stop = dict[int, int]
"""Where reading ends: an offset by partition, itself not read."""


def _stop_of(topic: str, wanted: OffsetRange | None, retained: list[PartitionOffsets]) -> Stop:
    """Where to end: at the end of the range, or where the topic ends now."""
    if wanted is None:
        return {each.partition: each.end for each in retained}
    from memq.client.topic import check_retained  # noqa: PLC0415 - loads the client

    check_retained(topic, wanted, retained)
    return {wanted.partition: wanted.end}


class Printer:
    """Writes Batches to stdout, and tells the group of it.

    Args:
        form: of the lines.
        left: how much is to be written.
        progress: learns of what is written.
    """

    def __init__(self, form: Format, left: Left, progress: Progress) -> None:
        self._form = form
        self._left = left
        self._progress = progress

    @property
    def done(self) -> bool:
        """Whether all is written that was asked for."""
        return self._left.nothing

    def write(self, batch: Batch) -> None:
        """Write what is asked for of one Batch."""
        out = sys.stdout.buffer
        records = self._left.take(batch)
        for piece in _pieces(batch, self._form, records):
            write_whole(out, piece)
        out.flush()
        if records == len(batch):
            self._progress.written(batch)


def _print_batches(
    consumer: Consumer, waiting: Waiting, printer: Printer, stop: Stop | None
) -> None:
    """Write Batches until the end, if there is one, or until there were enough."""
    greet = stop is None and sys.stderr.isatty()
    while not printer.done and not (stop and _ended(consumer, stop)):
        if greet and consumer.assignment:
            notice("memq: listening; Ctrl-C ends")
            greet = False
        batch = waiting.poll(consumer)
        if batch is None:
            if waiting.is_over(consumer, unread=stop is not None):
                return
        elif not stop or batch.offset < stop[batch.partition]:
            printer.write(batch)


def _ended(consumer: Consumer, stop: Stop) -> bool:
    try:
        assigned = consumer.assignment
        return bool(assigned) and all(consumer.position(each) >= stop[each] for each in assigned)
    except InvalidRequestError:  # a partition has just gone to another member
        return False


def _pieces(batch: Batch, form: Format, records: int) -> Iterable[bytes | memoryview]:
    """The first LogMessages of a Batch as lines."""
    from memq.cli.lines import json_lines, json_object, raw_lines  # noqa: PLC0415 - loads Arrow

    if form == "json":
        return json_lines(map(json_object, islice(batch, records)))
    return raw_lines(_first_rows(batch, records))


def _first_rows(batch: Batch, records: int) -> Iterator[pa.RecordBatch]:
    for section in batch.sections:
        yield section.rows.slice(0, records)
        records -= min(records, section.rows.num_rows)
