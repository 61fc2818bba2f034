"""`memq cost`: what a workload costs a month by the model, a topic a day, a range once."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import (
    Command,
    TimeType,
    TopicType,
    check_reachable,
    connection_options,
    option,
    output_option,
    table_options,
)
from memq.cli.output import notice, show_rows
from memq.core.cost import (
    Prices,
    Requests,
    Workload,
    kafka_bill,
    memq_bill,
    ranged_gets,
    sensitivity,
    total,
    whole_gets,
    worst,
)
from memq.core.topic import TOPIC_OPTIONS, TopicConfig
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memq.cli.output import Row
    from memq.core.cost import Line
    from memq.core.notification import Notification

PARTITION_MB = 50.0  # a second into one write partition: the uploads of its ring carry three times
MAX_BATCHES = 20_000  # that a topic's rates are taken of: some 20 MB of notifications
MAX_RATE = 1e7  # MB a second: ten times what the model was made for

_ROWS = [each for each in TOPIC_OPTIONS if each.name in {"batch_bytes", "batch_age", "retention"}]
_MODEL = ["system", "item", "amount", "unit", "dollars"]
_METER = ["who", "batches", "size_bytes", "requests", "dollars_a_day"]
_RUN = ["topic", "partition", "start", "end", "batches", "size_bytes", "requests", "dollars"]


class _Range(click.FloatRange):
    """A number within limits, which "nan" is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:  # noqa: PLR0124 - as only that one is
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


_COUNT = _Range(min=0, max=1e6)


@click.command(
    cls=Command,
    epilog="""
memq cost --mb-per-second 30 --readers 3 --against kafka
memq cost --mb-per-second 1 --batch-age 5s --sensitivity -o json
memq cost clicks --since 6h
memq cost --manifest out/manifest.json
""",
)
@click.argument("topic", type=TopicType(), required=False)
@option(
    "--mb-per-second",
    type=_Range(min=0.001, max=MAX_RATE),
    help="10^6 bytes a second that producers send, compressed, over all topics.",
)
@option("--topics", type=click.IntRange(1, 1_000_000), default=1, help="How many share it.")
@option(
    "--write-partitions",
    type=click.IntRange(1, 1_000_000),
    show_default=f"one for each {PARTITION_MB:g} MB/s",
    help="Of each topic.",
)
@table_options(_ROWS)
@option(
    "--message-bytes",
    type=click.IntRange(1, 1 << 26),
    default=Workload.message_bytes,
    help="Bytes of a Message on average, as it is sent.",
)
@option("--readers", type=_COUNT, default=1.0, help="Groups that read everything.")
@option("--ranged-readers", type=_COUNT, default=0.0, help="Spark jobs that do.")
@option(
    "--zone-share",
    type=_Range(0, 1),
    default=0.67,
    help="Part of producers' bytes that goes to another zone; 0 where `zone` is set everywhere.",
)
@option(
    "--compression",
    type=_Range(1, 1_000),
    default=1.0,
    help="How many times larger all is in a Kafka that compresses nothing.",
)
@option("--embedded", is_flag=True, help="One broker with the embedded queue.")
@option("--against", type=click.Choice(["kafka"]), help="Show Kafka beside: tuned, and by default.")
@option("--sensitivity", "inputs", is_flag=True, help="Show what each input changes of the total.")
@option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file of prices, in place of the ones that came with this version.",
)
@option("--since", type=TimeType(), default="1h", help="Take a topic's rates since then, or 6h.")
@option(
    "--manifest",
    "manifests",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Show what Spark's reading of the range of a manifest has cost.",
)
@connection_options
@output_option
def cost(
    *,
    topic: str | None,
    mb_per_second: float | None,
    prices: Path | None,
    since: datetime,
    manifests: tuple[Path, ...],
    output: str,
    bootstrap: str,
    token: str,
    security: Any,
    **model: Any,
) -> None:
    """Show what a workload, TOPIC or a range costs.

    With --mb-per-second a model of a month; with TOPIC its Batches and what its groups committed,
    as dollars a day; with --manifest what was read for a range.
    """
    if (topic is not None) + (mb_per_second is not None) + bool(manifests) != 1:
        raise click.UsageError("give one of --mb-per-second, --manifest and TOPIC")
    listed = _prices(prices)
    if mb_per_second is not None:
        rows, columns = list(_modelled(mb_per_second, listed, **model)), _MODEL
    elif topic is not None:
        brokers = {"bootstrap": bootstrap, "token": token, "security": security}
        rows, columns = _metered(topic, since, listed, brokers), _METER
    else:
        rows, columns = [_of_manifest(each, listed) for each in manifests], _RUN
    if output == "table":
        rows = [{key: _shown(key, value) for key, value in row.items()} for row in rows]
    show_rows(rows, columns, output)
    if output == "table":
        notice(f"Prices of {listed.date}, {listed.region}: {listed.source}.")


def _shown(key: str, value: Any) -> Any:
    """Write large numbers for the eye; those of a meter may be small."""
    if key == "amount" and value is not None:
        return f"{value:,}"
    return f"{value:,.2f}" if key == "dollars" and abs(value) >= 0.01 else value


def _prices(path: Path | None) -> Prices:
    source = path or files("memq.core").joinpath("prices.toml")
    try:
        table = tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read prices {path}: {exc.strerror}") from exc
    except ValueError as exc:  # no TOML, no UTF-8, or no path
        raise ConfigError(f"{path} is not a TOML file of prices: {exc}") from exc
    return Prices.read(table, str(path or "prices.toml"))


# -- the model ------------------------------------------------------------------------------


def _modelled(
    mb_per_second: float,
    prices: Prices,
    *,
    given: Mapping[str, str],
    write_partitions: int | None,
    against: str | None,
    inputs: bool,
    **load: Any,
) -> Iterator[Row]:
    options: dict[str, Any] = {"message_bytes": "1KiB", **given}  # its limit does not matter here
    topic = TopicConfig.create("modelled", **options)
    workload = Workload(
        mb_per_second,
        write_partitions=write_partitions or ceil(mb_per_second / load["topics"] / PARTITION_MB),
        batch_bytes=topic.batch_bytes,
        batch_age_ms=topic.batch_age_ms,
        retention_days=topic.retention_ms / 86_400_000,
        **load,
    )
    yield from _bill("memq", memq_bill(workload, prices))
    highest = total(memq_bill(worst(workload), prices))
    yield _row("memq", "total at worst", None, "a month", highest)
    if against:
        yield from _bill("kafka tuned", kafka_bill(workload, prices, tuned=True))
        yield from _bill("kafka default", kafka_bill(workload, prices, tuned=False))
    if inputs:
        usual = total(memq_bill(workload, prices))
        effects = [
            _row("memq", f"{name} {how}", None, "more a month", found - usual)
            for name, *totals in sensitivity(workload, prices)
            for how, found in zip(("halved", "doubled"), totals, strict=True)
        ]
        yield from sorted(effects, key=lambda row: -abs(row["dollars"]))


def _bill(system: str, lines: list[Line]) -> Iterator[Row]:
    for item, amount, unit, dollars in lines:
        yield _row(system, item, amount, unit, dollars)
    yield _row(system, "total", None, "a month", total(lines))


def _row(system: str, item: str, amount: float | None, unit: str, dollars: float) -> Row:
    return {
        "system": system,
        "item": item,
        "amount": None if amount is None else round(amount),
        "unit": unit,
        "dollars": round(dollars, 2),
    }


# -- the meter ------------------------------------------------------------------------------


def _metered(topic: str, since: datetime, prices: Prices, brokers: dict[str, Any]) -> list[Row]:
    """Count a topic's Batches since a time, and those of them that each group has committed."""
    from memq.client.topic import SyncTopicClient  # noqa: PLC0415 - loads the client

    check_reachable(brokers["bootstrap"])
    now = datetime.now(UTC)
    if since >= now:
        raise InvalidRequestError(f"--since {since.isoformat()} is not before now; give 1h")
    with SyncTopicClient(topic=topic, client="memq cost", **brokers) as client:
        info = client.info()
        retention_s = info.config.retention_ms / 1000
        ends_s = now.timestamp()
        # What is from before is gone, or never was: it must not make the rates smaller.
        begins_s = max(since.timestamp(), info.created_ms / 1000, ends_s - retention_s)
        ranges = client.ranges_between(int(begins_s * 1000), None)
        if (span := sum(each.end - each.start for each in ranges)) > MAX_BATCHES:
            raise InvalidRequestError(
                f"{span} offsets were published since {since.isoformat()}, and {MAX_BATCHES} are "
                "looked at; give a later --since, such as 5m"
            )
        groups = client.groups()
        found = [(it.partition, it.offset, it.notification) for it in client.batches(ranges)]
    days = max(ends_s - begins_s, 1.0) / 86_400  # clocks differ
    stored = [each for *_, each in found]
    kept_gb = sum(each.size_bytes for each in stored) / 1e9 / days * retention_s / 86_400
    puts = Requests(puts=len(stored) * (1 + Workload.hedges))
    kept = _meter_row("storage", stored, 0, kept_gb * prices.object_gb_month / 30.4)
    rows = [_meter_row("brokers", stored, puts.puts, puts.dollars(prices) / days), kept]
    for group in groups:
        committed = {each.partition: each.offset for each in group.offsets}
        read = [it for number, offset, it in found if offset < committed.get(number, 0)]
        gets = Requests(gets=sum(whole_gets(each.size_bytes) for each in read))
        name, dollars = f"group {group.group}", gets.dollars(prices) / days
        rows.append(_meter_row(name, read, gets.gets, dollars))
    return [{"topic": topic, "window_seconds": days * 86_400, **row} for row in rows]


def _meter_row(who: str, batches: list[Notification], requests: float, dollars: float) -> Row:
    return {
        "who": who,
        "batches": len(batches),
        "size_bytes": sum(each.size_bytes for each in batches),
        "requests": round(requests),
        "dollars_a_day": round(dollars, 6),
    }


def _of_manifest(path: Path, prices: Prices) -> Row:
    from memq.core.manifest import decode_manifest  # noqa: PLC0415 - loads the audit

    it = decode_manifest(path.read_bytes())
    count = max(1, it.batches)
    gets = it.batches * ranged_gets(it.bytes / count, (it.messages + it.skipped_messages) / count)
    return {
        "topic": it.topic,
        "partition": it.partition,
        "start": it.start,
        "end": it.end,
        "batches": it.batches,
        "size_bytes": it.bytes,
        "requests": gets,
        "dollars": round(Requests(gets=gets).dollars(prices), 6),
    }
