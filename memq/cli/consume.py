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

import contextlib
import logging
import math
import re
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from memq.cli.command import (
    Command,
    GroupType,
    ParsedType,
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
from memq.core.units import DAY_MS, parse_time
from memq.errors import (
    ConfigError,
    InvalidRequestError,
    LimitReachedError,
    MemqError,
    RequestTimeoutError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memq import Consumer
    from memq.cli.formats import Lines
    from memq.cli.selection import Asked, BatchSelection
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

LOOK_AGAIN_S = 300.0  # for topics that match, as clients do for brokers
_FIRST, _LAST = ("beginning", "earliest", "start", "oldest"), ("end", "latest", "newest")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")  # a TOPIC with such a character is a pattern
MAX_TOPICS = 50  # each has a consumer of its own, with its threads and connections

_BEGINS = ("--from-beginning", "--tail", "--from", "--to", "--offset")
_SAYS_ALL = "the range says all; leave out the other"
_BY_GROUP = (
    "a group decides itself what its members read; leave out one. `memq group reset-offsets` moves "
    "a group"
)
_OF_RAW = "it is for --format raw; others have it"
_WHOLE_BATCHES = (
    "a group commits whole Batches, and would be given the last one for ever: give --max-batches, "
    "or leave out --group"
)
_CONFLICTS = (
    ("--range", (*_BEGINS, "--group", "--partition", "--exit-at-end"), _SAYS_ALL),
    ("--range", ("--on-out-of-range",), _SAYS_ALL),
    ("--from-beginning", ("--tail", "--from", "--to", "--offset"), "give one of them"),
    ("--tail", ("--from", "--to", "--offset"), "give one of them"),
    ("--offset", ("--from", "--to"), "give one of them"),
    ("--group", ("--max-messages",), _WHOLE_BATCHES),
    ("--group", ("--partition", "--tail", "--from", "--to", "--offset"), _BY_GROUP),
    ("--print-key", ("--format json", "--format csv", "--json"), _OF_RAW),
    ("--key-delimiter", ("--format json", "--format csv", "--json"), _OF_RAW),
    ("--template", ("--format json", "--format csv", "--json"), "a template says all"),
    ("--template", ("--print-key", "--key-delimiter"), "a template has %k"),
    ("--json", ("--format csv",), "give one of them"),
)
"""Options that do not go together."""


def _parse_offset(text: str) -> dict[str, Any]:
    """Parse where to begin or end, as kcat and rpk write it: arguments of `Asked`."""
    if text in _FIRST or text in _LAST:
        return {"from_beginning": text in _FIRST}
    kind, at, moment = text.partition("@")
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        number = int(text)
        if text[0] != "-":
            return {"offset": number}
        if 0 < -number <= MAX_TAIL:
            return {"tail": -number}
    elif at and kind in ("", "s", "e"):
        is_ms = re.fullmatch("[0-9]{1,14}", moment) is not None
        now = datetime.now(UTC)
        found = datetime.fromtimestamp(int(moment) / 1e3, UTC) if is_ms else parse_time(moment, now)
        return {"until" if kind == "e" else "since": found}
    raise ConfigError(
        f"{text!r} is no offset; write beginning, end, 100, -10 for the last 10 LogMessages, or "
        "s@TIME and e@TIME with milliseconds or a time"
    )


OffsetType = partial(ParsedType, "OFFSET", _parse_offset)


@click.command(
    cls=Command,
    epilog="""
memq consume clicks --from-beginning --exit-at-end
memq consume clicks --group reports --format json | jq .value
memq consume clicks --group reports --max-batches 10 --timeout 30s
memq consume clicks --range 0:100-200 > batches-100-to-199.txt
memq consume clicks --tail 10 --print-key
memq consume clicks --from 2025-06-30T10:00:00Z --to 2025-06-30T11:00:00Z --format csv
memq consume clicks -o beginning -e -f '%t/%p %o %T %k=%v\\n'
memq consume orders 'clicks\\..*' --json
""",
)
@click.argument("topics", metavar="TOPIC...", type=TopicType(), nargs=-1)
@option("-t", "--topic", "more_topics", type=TopicType(), multiple=True, help="Like TOPIC.")
@option("--from-beginning", is_flag=True, help="Begin with what is retained, not with what comes.")
@option(
    "-o", "--offset", "bounds", type=OffsetType(), multiple=True, help="Where to begin; see above."
)
@option(
    "-g", "-G", "--group", type=GroupType(), help="Go on where this group is, and keep its place."
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
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="P",
    help="Only this read partition; may be given again.",
)
@option(
    "-c", "-n", "--max-messages", type=click.IntRange(min=1), help="End after so many LogMessages."
)
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
@option("-J", "--json", "as_json", is_flag=True, help="The same as --format json.")
@option(
    "-f", "--template", type=SeparatorType(), help=r"Such as '%t %p %o %k %v %h %T\n'; see above."
)
@option("--print-key", is_flag=True, help="Of raw: print the key before each value.")
@option(
    "--key-separator",
    type=SeparatorType(),
    default=r"\t",
    help=r"Of --print-key: what stands between key and value, such as : or \t.",
)
@option("-K", "--key-delimiter", type=SeparatorType(), help="--print-key with this separator.")
@option(
    "--on-out-of-range",
    type=click.Choice(["error", "earliest", "latest"]),
    default="error",
    help="Where to go on when retention has overtaken the reader: error ends, the others skip.",
)
@option(
    "-e", "--exit-at-end", is_flag=True, help="End when all is read that there was at the start."
)
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
    topics: tuple[str, ...],
    more_topics: tuple[str, ...],
    bounds: tuple[dict[str, Any], ...],
    max_messages: int | None,
    max_batches: int | None,
    timeout: str | None,
    **given: Any,
) -> None:
    """Print the LogMessages of each TOPIC, until interrupted.

    Several topics are merged as they come. A TOPIC with a character that no name has, such as * or
    +, is a regular expression for whole names; topics that are made later are found within minutes.

    --offset is beginning, end, an offset, -10 for the last 10 LogMessages, or s@TIME; e@TIME, given
    as well, is where to end. In a --template %t is the topic, %p the partition, %o the offset, %k
    the key, %v the value, %h the headers, %T the time in ms, %K and %S are the sizes of key and
    value.

    A group remembers a Batch once all its lines are written. Brokers that do not answer are waited
    for, which is said on stderr; at a terminal so is when reading begins.

    The exit code is 1 when --timeout ended it while brokers did not answer, or before all of
    --range or --exit-at-end was read.
    """
    check_together(_CONFLICTS)
    from memq.cli.selection import Asked  # noqa: PLC0415 - loads Arrow

    wanted = topics + more_topics
    if not wanted:
        raise click.UsageError("Missing argument 'TOPIC'.")
    plain = len({*wanted}) == 1 and _NO_NAME.search(wanted[0]) is None
    if not plain and (given["wanted"] is not None or given["form"] == "csv"):
        raise click.UsageError("--range and --format csv are for one topic: name one")
    asked = Asked(**{name: given.pop(name) for name in Asked._fields[:-1]})
    for bound in bounds:
        asked = asked._replace(**bound)
    is_member, left = given["group"] is not None, Left(max_messages, max_batches)
    check_reachable(given["bootstrap"])
    check_stdout()
    with quiet_log("memq.client.cluster"), contextlib.ExitStack() as opened:
        source = partial(_open, opened, given, timeout=timeout, left=left, named=not plain)
        find = partial(_matching, given, wanted)
        names = {wanted[0]} if plain else find()
        sources = [source(each, asked) for each in sorted(names)]
        whole = asked._replace(from_beginning=True, tail=None, since=None, offset=None)
        made = iter(()) if plain or asked.ends else _made_since(find, names)
        more = ([source(name, whole) for name in found] for found in made)
        try:
            _print_batches(sources, more, is_member=is_member)
        except BaseException:
            for each in sources:
                if is_member and not each.waiting.brokers_down:
                    commit(each.consumer, each.printer.written)
            raise


def _open(
    opened: contextlib.ExitStack,
    given: dict[str, Any],
    topic: str,
    asked: Asked,
    *,
    timeout: str | None,
    left: Left,
    named: bool,
) -> Source:
    """Find out what is to be read of a topic, and begin."""
    from memq import Consumer  # noqa: PLC0415 - loads Arrow
    from memq.cli.formats import lines_of  # noqa: PLC0415
    from memq.cli.selection import select  # noqa: PLC0415
    from memq.cli.template import template_lines  # noqa: PLC0415
    from memq.client.topic import SyncTopicClient  # noqa: PLC0415
    from memq.core.format.schema import deserialize_schema  # noqa: PLC0415

    options = dict(given)
    bootstrap, template = options.pop("bootstrap"), options.pop("template")
    form, as_json = options.pop("form"), options.pop("as_json")
    key, has_key = options.pop("key_separator"), options.pop("print_key")
    separator = options.pop("key_delimiter") or (key if has_key else None)
    brokers = {name: given[name] for name in ("token", "security", "zone")}
    with SyncTopicClient(bootstrap, topic, client="memq consume", **brokers) as client:
        info, selection = client.info(), select(client, topic, asked)
    schema = deserialize_schema(info.schemas[info.schema_id])
    lines = lines_of("json" if as_json else form, schema, separator, named=named)
    if template is not None:
        lines = template_lines(template, schema)
    waiting = Waiting(timeout)
    options |= {
        "start": "earliest" if asked.from_beginning else "latest",
        "auto_commit": given["group"] is not None,
        "auto_commit_interval": COMMIT_INTERVAL,
        "request_timeout": waiting.request_timeout,
        "client": "memq consume",
    }
    consumer = opened.enter_context(
        Consumer(bootstrap, topic=topic, **cast("ConsumerArguments", options))
    )
    if selection.start is not None:
        consumer.assign(selection.start)
    write_whole(sys.stdout.buffer, lines.header)
    return Source(consumer, waiting, Printer(lines, selection, left))


def commit(consumer: Consumer, written: dict[int, int]) -> None:
    """Commit what is written whole, before an error ends the command."""
    try:
        assigned = consumer.assignment
        consumer.commit({each: at for each, at in written.items() if each in assigned})
    except MemqError as exc:
        notice(f"memq: the last commit failed, and lines may come again: {exc}")


@contextlib.contextmanager
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

    def poll(self, consumer: Consumer, wait_s: float = POLL_S) -> Batch | None:
        """Return the next Batch, if one comes within so many seconds.

        Raises:
            MemqError: what will not pass.
        """
        try:
            batch = consumer.poll(wait_s)
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


@dataclass
class Left:
    """How much is still to be printed, of all topics together; None for any number.

    Attributes:
        messages: LogMessages.
        batches: Batches.
    """

    messages: int | None = None
    batches: int | None = None


class Printer:
    """Writes Batches of a topic to stdout.

    Args:
        lines: makes lines of a Batch.
        selection: what is to be written.
        left: how much is.

    Attributes:
        written: one past the last Batch that is written whole, by partition.
    """

    def __init__(self, lines: Lines, selection: BatchSelection, left: Left) -> None:
        self.selection = selection
        self.written: dict[int, int] = {}
        self._lines = lines
        self._left = left

    @property
    def is_done(self) -> bool:
        """Whether all was written that was asked for."""
        return 0 in (self._left.messages, self._left.batches)

    def write(self, batch: Batch) -> None:
        """Write what is asked for of one Batch."""
        wanted, left = self.selection.of(batch), self._left
        if left.batches is not None and len(wanted):
            left.batches -= 1
        if left.messages is not None:
            wanted = wanted.slice(0, left.messages)
            left.messages -= len(wanted)
        out = sys.stdout.buffer
        for piece in self._lines.of(wanted):
            write_whole(out, piece)
        out.flush()
        self.written[batch.partition] = batch.offset + 1  # a group is given all of it


class Source(NamedTuple):
    """A topic that is read."""

    consumer: Consumer
    waiting: Waiting
    printer: Printer


def _matching(given: Mapping[str, Any], wanted: Iterable[str]) -> set[str]:
    """Return the topics that are wanted by name or by pattern; MemQ's own only by an underscore.

    Raises:
        InvalidRequestError: something is no pattern, or nothing matches it.
        LimitReachedError: too many match.
    """
    from memq import AdminClient  # noqa: PLC0415 - loads Arrow

    found: set[str] = set()
    login = {name: given[name] for name in ("bootstrap", "token", "security")}
    with AdminClient(**login) as admin:
        known = [each.config.name for each in admin.list_topics()]
    for each in wanted:
        try:
            names = {name for name in known if name == each or re.fullmatch(each, name)}
        except re.error as exc:
            raise InvalidRequestError(f"{each!r} is no regular expression: {exc}") from exc
        found |= {name for name in names if name[0] != "_" or "_" in each[:2]} or {each}
    if unknown := sorted(found - {*known}):
        raise InvalidRequestError(f"no topic matches {unknown[0]!r}; `memq topic list` has all")
    if len(found) > MAX_TOPICS:
        raise LimitReachedError(f"{len(found)} topics match, and {MAX_TOPICS} is the limit")
    return found


def _made_since(find: Callable[[], set[str]], names: set[str]) -> Iterator[list[str]]:
    """Yield, whenever it is asked, the topics that were made since; it seldom looks."""
    looked_s = time.monotonic()
    while True:
        added: set[str] = set()
        if time.monotonic() >= looked_s + LOOK_AGAIN_S:
            looked_s = time.monotonic()
            try:
                added = find() - names
            except MemqError as exc:
                if not exc.retriable:
                    raise
        names |= added
        yield sorted(added)


def _print_batches(sources: list[Source], more: Iterator[list[Source]], *, is_member: bool) -> None:
    """Write Batches until the end, if there is one, or until there were enough.

    Topics take turns. None is waited for while another one has something.
    """
    greet = all(each.printer.selection.stop is None for each in sources) and sys.stderr.isatty()
    wait_s = POLL_S
    while live := [x for x in sources if not _ended(x.consumer, x.printer.selection.stop)]:
        if greet and all(each.consumer.assignment for each in live):
            notice("memq: listening; Ctrl-C ends")
            greet = False
        quiet = 0
        for consumer, waiting, printer in live:
            if printer.is_done:
                return
            stop = printer.selection.stop
            batch = waiting.poll(consumer, wait_s / len(live))
            if batch is None:
                quiet += waiting.is_over(consumer, unread=stop is not None)
                wait_s = POLL_S
            elif is_member or not stop or batch.offset < stop[batch.partition]:
                printer.write(batch)
                wait_s = 0.0
        if quiet == len(live):
            return
        sources += next(more, [])


def _ended(consumer: Consumer, stop: dict[int, int] | None) -> bool:
    if not stop:
        return False
    try:
        assigned = consumer.assignment
        return bool(assigned) and all(consumer.position(each) >= stop[each] for each in assigned)
    except InvalidRequestError:  # a partition has just gone to another member
        return False
