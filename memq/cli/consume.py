"""`memq consume`: LogMessages become lines.

What a group has committed has been written: a Batch counts as done once all of it went to stdout
and was flushed. After an interruption, and after --max-messages ended within a Batch, the group
goes on with the whole Batch, so that lines may come again but are never missed.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Literal

import click

from memq.cli.command import Command
from memq.cli.options import RangeType, connection_options, option
from memq.errors import NotOwnerError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    import pyarrow as pa

    from memq import Consumer
    from memq.client.batch import Batch
    from memq.client.consumer_options import ConsumerArguments
    from memq.client.order import Order
    from memq.client.source import ReadThrough

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
@click.argument("topic")
@option("--from-beginning", is_flag=True, help="Begin with what is held, not with what comes.")
@option("--group", help="Go on where this group has come to, and remember how far it gets.")
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
    wanted: tuple[int, int, int] | None,
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
    from memq import AdminClient, Consumer  # noqa: PLC0415 - loads Arrow

    ends = None
    if wanted or exit_at_end:
        with AdminClient(bootstrap, token=token) as admin:
            ends = {held.partition: (held.start, held.end) for held in admin.offsets(topic)}
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
        stop = _stop(consumer, wanted, ends)
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
        """Partitions go to another member, which is to go on behind what is written."""
        self.commit()

    def lose(self, partitions: list[int]) -> None:
        """Partitions are another member's already, and so are their commits."""
        for partition in partitions:
            self._next.pop(partition, None)
