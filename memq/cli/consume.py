"""`memq consume`: LogMessages become lines.

What a group has committed has been written: the consumer commits a Batch when the next one is asked
for, and that is once all of it went to stdout and was flushed. So a member writes every Batch that
it is handed, also one from past the end that it waits for. After an interruption the group goes on
with the whole Batch, so that lines may come again but are never missed. A group cannot come to rest
within a Batch, which is why --max-messages is refused there: it would be given the same Batch again
and again.

Brokers or storage that do not answer are waited for, as long as --timeout allows. That is said once
on stderr, and once that it is over.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import click

from memq.cli.command import (
    Command,
    GroupType,
    SeparatorType,
    TimeType,
    TopicType,
    check_reachable,
    check_together,
    connection_options,
    option,
    range_option,
    read_through_option,
    row_option,
    storage_options_option,
    zone_option,
)
from memq.cli.output import check_stdout, notice, write_whole
from memq.core.options import Option
from memq.core.units import DAY_MS
from memq.errors import InvalidRequestError, MemqError, RequestTimeoutError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq import Consumer
    from memq.cli.formats import LineFormat, Lines
    from memq.cli.selection import BatchSelection
    from memq.client.consumer.options import ConsumerArguments
    from memq.reading.batch import Batch

MAX_TAIL = 1_000_000  # each may be in a Batch of its own, and these are all looked at
POLL_S = 0.2  # how long the end of what is to be read may go unnoticed
COMMIT_INTERVAL = "1s"  # lines of this long may come again after a crash
OUTAGE_S = 10.0  # somebody at a terminal should learn of it; 4 MiB through a broker take less

TIMEOUT = Option(
    "duration",
    None,
    100,
    365 * DAY_MS,
    name="timeout",
    doc="End when nothing came for so long; without it, wait on, through outages as well.",
)

_BEGINS = ("--from-beginning", "--tail", "--from", "--to")
_SAYS_ALL = "the range says all; leave out the other"
_BY_GROUP = (
    "a group decides itself what its members read; leave out one. `memq group reset-offsets` moves "
    "a group"
)
_WHOLE_BATCHES = (
    "a group commits whole Batches, and would be given the last one for ever: give --max-batches, "
    "or leave out --group"
)
_CONFLICTS = (
    ("--range", (*_BEGINS, "--group", "--partition", "--exit-at-end"), _SAYS_ALL),
    ("--range", ("--on-out-of-range",), _SAYS_ALL),
    ("--from-beginning", ("--tail", "--from", "--to"), "give one of them"),
    ("--tail", ("--from", "--to"), "give one of them"),
    ("--group", ("--max-messages",), _WHOLE_BATCHES),
    ("--group", ("--partition", "--tail", "--from", "--to"), _BY_GROUP),
    ("--print-key", ("--format json", "--format csv"), "it is for --format raw; others have it"),
)
"""Options that do not go together."""


@click.command(
    cls=Command,
    epilog="""
memq consume clicks --from-beginning --exit-at-end
memq consume clicks --group reports --format json | jq .value
memq consume clicks --group reports --max-batches 10 --timeout 30s
memq consume clicks --range 0:100-200 > batches-100-to-199.txt
memq consume clicks --tail 10 --print-key
memq consume clicks --from 2025-06-30T10:00:00Z --to 2025-06-30T11:00:00Z --format csv
""",
)
@click.argument("topic", type=TopicType())
@option("--from-beginning", is_flag=True, help="Begin with what is retained, not with what comes.")
@option(
    "--group",
    type=GroupType(),
    help="Go on where this group has come to, and remember how far it gets.",
)
@option(
    "--from",
    "since",
    type=TimeType(),
    help="Begin with LogMessages of this time: ISO 8601 with its zone, or 2h.",
)
@option(
    "--to",
    "until",
    type=TimeType(),
    help="Only LogMessages from before this time, of what there is at the start.",
)
@option(
    "--tail",
    type=click.IntRange(1, MAX_TAIL),
    metavar="N",
    help="Begin with the last N LogMessages.",
)
@option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="P",
    help="Only this read partition; may be given again.",
)
@option("--max-messages", type=click.IntRange(min=1), help="End after so many LogMessages.")
@option("--max-batches", type=click.IntRange(min=1), help="End after so many Batches.")
@row_option(TIMEOUT)
@range_option(help="Read exactly these Batches, and end.")
@option(
    "--format",
    "form",
    type=click.Choice(["raw", "json", "csv"]),
    default="raw",
    help="raw: each value and a newline; json: one object a line, with all there is to know; csv: "
    "the columns of the topic, their names in the first line.",
)
@option("--print-key", is_flag=True, help="Of raw: print the key before each value.")
@option(
    "--key-separator",
    type=SeparatorType(),
    default=r"\t",
    help=r"Of --print-key: what stands between key and value, such as : or \t.",
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
@read_through_option
@storage_options_option
@zone_option
@connection_options
def consume(
    *,
    topic: str,
    group: str | None,
    max_messages: int | None,
    max_batches: int | None,
    timeout: str | None,
    form: LineFormat,
    print_key: bool,
    key_separator: bytes,
    **others: Any,
) -> None:
    """Print the LogMessages of TOPIC, until interrupted.

    A group remembers a Batch once all its lines are written. Brokers that do not answer are waited
    for, which is said on stderr; at a terminal so is when reading begins.

    The exit code is 1 when --timeout ended it while brokers did not answer, or before all of
    --range or --exit-at-end was read.
    """
    check_together(_CONFLICTS)
    from memq import Consumer  # noqa: PLC0415 - loads Arrow
    from memq.cli.formats import lines_of  # noqa: PLC0415
    from memq.cli.selection import Asked, select  # noqa: PLC0415
    from memq.client.topic import SyncTopicClient  # noqa: PLC0415
    from memq.core.format.schema import deserialize_schema  # noqa: PLC0415

    asked = Asked(**{name: others.pop(name) for name in Asked._fields})
    bootstrap = others.pop("bootstrap")
    brokers = {name: others[name] for name in ("token", "security", "zone")}
    check_reachable(bootstrap)
    check_stdout()
    with SyncTopicClient(bootstrap, topic, client="memq consume", **brokers) as client:
        info = client.info()
        selection = select(client, topic, asked)
    schema = deserialize_schema(info.schemas[info.schema_id])
    lines = lines_of(form, schema, key_separator if print_key else None)
    waiting = Waiting(timeout)
    options = others | {
        "group": group,
        "start": "earliest" if asked.from_beginning else "latest",
        "auto_commit": group is not None,
        "auto_commit_interval": COMMIT_INTERVAL,
        "request_timeout": waiting.request_timeout,
        "client": "memq consume",
    }
    with (
        quiet_log("memq.client.cluster"),
        Consumer(bootstrap, topic=topic, **cast("ConsumerArguments", options)) as consumer,
    ):
        if selection.start is not None:
            consumer.assign(selection.start)
        printer = Printer(lines, selection, max_messages, max_batches)
        try:
            write_whole(sys.stdout.buffer, lines.header)
            _print_batches(consumer, waiting, printer, is_member=group is not None)
        except BaseException:
            if group is not None and not waiting.brokers_down:
                commit(consumer, printer.written)
            raise


def commit(consumer: Consumer, written: dict[int, int]) -> None:
    """Commit what is written whole, before an error ends the command."""
    try:
        assigned = consumer.assignment
        consumer.commit({each: at for each, at in written.items() if each in assigned})
    except MemqError as exc:
        notice(f"memq: the last commit failed, and lines may come again: {exc}")


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
        timeout: longest wait for a Batch, as text such as "10s"; None for ever.

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
        """Return the next Batch, if one comes soon.

        Raises:
            MemqError: what will not pass.
        """
        try:
            batch = consumer.poll(POLL_S)
            if batch is None and self.brokers_down:
                consumer.lag()  # raises where no broker answers
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
        """Return whether nothing came for as long as it may.

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


class Printer:
    """Writes Batches to stdout.

    Args:
        lines: makes lines of a Batch.
        selection: what is to be written.
        messages: how many LogMessages; None for any number.
        batches: how many Batches; None for any number.

    Attributes:
        written: one past the last Batch that is written whole, by partition.
    """

    def __init__(
        self,
        lines: Lines,
        selection: BatchSelection,
        messages: int | None = None,
        batches: int | None = None,
    ) -> None:
        self.selection = selection
        self.written: dict[int, int] = {}
        self._lines = lines
        self._messages = messages
        self._batches = batches

    @property
    def is_done(self) -> bool:
        """Whether all was written that was asked for."""
        return 0 in (self._messages, self._batches)

    def write(self, batch: Batch) -> None:
        """Write what is asked for of one Batch."""
        wanted = self.selection.of(batch)
        if self._batches is not None and len(wanted):
            self._batches -= 1
        if self._messages is not None:
            wanted = wanted.slice(0, self._messages)
            self._messages -= len(wanted)
        out = sys.stdout.buffer
        for piece in self._lines.of(wanted):
            write_whole(out, piece)
        out.flush()
        self.written[batch.partition] = batch.offset + 1  # a group is given all of it


def _print_batches(
    consumer: Consumer, waiting: Waiting, printer: Printer, *, is_member: bool
) -> None:
    """Write Batches until the end, if there is one, or until there were enough."""
    stop = printer.selection.stop
    greet = stop is None and sys.stderr.isatty()
    while not printer.is_done and not (stop and _ended(consumer, stop)):
        if greet and consumer.assignment:
            notice("memq: listening; Ctrl-C ends")
            greet = False
        batch = waiting.poll(consumer)
        if batch is None:
            if waiting.is_over(consumer, unread=stop is not None):
                return
        elif is_member or not stop or batch.offset < stop[batch.partition]:
            printer.write(batch)


def _ended(consumer: Consumer, stop: dict[int, int]) -> bool:
    try:
        assigned = consumer.assignment
        return bool(assigned) and all(consumer.position(each) >= stop[each] for each in assigned)
    except InvalidRequestError:  # a partition has just gone to another member
        return False
