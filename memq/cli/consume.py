"""`memq consume`: LogMessages become lines.

What a group has committed has been written: a Batch counts as done once all of it went to stdout
and was flushed. After an interruption, and after --max-messages ended within a Batch, the group
goes on with the whole Batch, so that lines may come again but are never missed.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Literal

import click

from memq.cli.command import (
    Command,
    RangeType,
    check_reachable,
    connect_admin,
    connection_options,
    option,
)
from memq.cli.completion import GroupType, TopicType
from memq.cli.output import write_whole
from memq.errors import InvalidRequestError, NotOwnerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from memq import Consumer
    from memq.client.batch import Batch, Order
    from memq.client.consumer.options import ConsumerArguments
    from memq.client.objects import ReadThrough
    from memq.core.ranges import OffsetRange
    from memq.core.wire.messages import PartitionOffsets

    Format = Literal["raw", "json"]

POLL_S = 0.2  # how long the end of what is to be read may go unnoticed
COMMIT_S = 1.0  # lines of this long may come again after a crash


@click.command(
    cls=Command,
    epilog="""
memq consume clicks --from-beginning --exit-at-end
memq consume clicks --group reports --format json | jq .value
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
@option("--range", "wanted", type=RangeType(), help="Read exactly these Batches, and end.")
@option(
    "--format",
    "form",
    type=click.Choice(["raw", "json"]),
    default="raw",
    help="raw: each value and a newline; json: one object a line, with all there is to know.",
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
    wanted: OffsetRange | None,
    form: Format,
    exit_at_end: bool,
    order: Order,
    read_through: ReadThrough,
    bootstrap: str,
    token: str,
) -> None:
    """Print the LogMessages of TOPIC, a line each, until interrupted.

    A group remembers a Batch once all its lines are written.
    """
    if wanted and (group or from_beginning or exit_at_end):
        raise click.UsageError(
            "--range says all; leave out --group, --from-beginning and --exit-at-end"
        )
    from memq import Consumer  # noqa: PLC0415 - loads Arrow

    check_reachable(bootstrap)
    stop = None
    if wanted or exit_at_end:
        with connect_admin(bootstrap, token) as admin:
            stop = _stop_of(topic, wanted, admin.offsets(topic))
    progress = Progress(remember=group is not None)
    options: ConsumerArguments = {
        "group": group,
        "start": "earliest" if from_beginning else "latest",
        "order": order,
        "read_through": read_through,
        "on_revoke": progress.leave,
        "on_lost": progress.lose,
        "token": token,
        "client": "memq consume",
    }
    with Consumer(bootstrap, topic=topic, **options) as consumer:
        progress.consumer = consumer
        if wanted:
            consumer.assign({wanted.partition: wanted.start})
        try:
            _print_batches(consumer, progress, form, stop, max_messages)
        finally:
            progress.commit()


class Progress:
    """Which Batches are written; tells the group of it.

    Args:
        remember: whether there is a group.

    Attributes:
        consumer: to commit with.
    """

    consumer: Consumer

    def __init__(self, *, remember: bool) -> None:
        self._remember = remember
        self._next: dict[int, int] = {}
        self._due_s = time.monotonic() + COMMIT_S

    def written(self, batch: Batch) -> None:
        """All of this Batch is written; commits when it is time."""
        if self._remember:
            self._next[batch.partition] = batch.offset + 1
            if time.monotonic() >= self._due_s:
                self.commit()

    def commit(self) -> None:
        """Commit what is written and not committed."""
        offsets, self._next = self._next, {}
        self._due_s = time.monotonic() + COMMIT_S
        try:
            if offsets:
                self.consumer.commit(offsets)
        except NotOwnerError as exc:
            click.echo(f"memq: another member took over; lines come again there: {exc}", err=True)

    def leave(self, _: list[int]) -> None:
        """Partitions go to another member, which is to go on after what is written."""
        self.commit()

    def lose(self, partitions: list[int]) -> None:
        """Partitions are another member's already, and so are their commits."""
        for partition in partitions:
            self._next.pop(partition, None)


Stop = dict[int, int]
"""Where reading ends: an offset by partition, itself not read."""


def _stop_of(topic: str, wanted: OffsetRange | None, retained: list[PartitionOffsets]) -> Stop:
    """Where to end: at the end of the range, or where the topic ends now."""
    if wanted is None:
        return {each.partition: each.end for each in retained}
    from memq.client.topic import check_retained  # noqa: PLC0415 - loads the client

    check_retained(topic, wanted, retained)
    return {wanted.partition: wanted.end}


def _print_batches(
    consumer: Consumer, progress: Progress, form: Format, stop: Stop | None, limit: int | None
) -> None:
    """Write Batches until the end, if there is one, or so many LogMessages."""
    out = sys.stdout.buffer
    left = limit
    while left != 0 and not (stop and _ended(consumer, stop)):
        batch = consumer.poll(POLL_S)
        if batch is None or (stop and batch.offset >= stop[batch.partition]):
            continue
        records = len(batch) if left is None else min(left, len(batch))
        for piece in _pieces(batch, form, records):
            write_whole(out, piece)
        out.flush()
        if records == len(batch):
            progress.written(batch)
        left = None if left is None else left - records


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
