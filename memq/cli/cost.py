"""`memq cost`: what a workload costs a month by the model, a topic a day, a range once."""

from __future__ import annotations

import time
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

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
from memq.core import cost as model
from memq.core.options import defaults, parse_options
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from memq.cli.output import Row

MAX_BATCHES = 20_000  # that a topic's rates are taken of: some 20 MB of notifications

_MODEL = ["system", "item", "amount", "unit", "dollars"]
_METER = ["who", "batches", "size_bytes", "requests", "dollars_a_day", "window_seconds"]
_RUN = ["topic", "batches", "size_bytes", "requests", "dollars"]


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
@table_options(model.WORKLOAD_OPTIONS)
@option("--against", type=click.Choice(["kafka"]), help="Show Kafka beside: tuned, and by default.")
@option("--sensitivity", is_flag=True, help="Show what each input changes of the total.")
@option("--prices", metavar="FILE", help="TOML file of prices, in place of this version's.")
@option("--since", type=TimeType(), default="1h", help="Take a topic's rates since then, or 6h.")
@option("--manifest", metavar="FILE", help="Show what Spark's reading of its range has cost.")
@connection_options
@output_option
def cost(
    *,
    topic: str | None,
    given: dict[str, str],
    against: str | None,
    sensitivity: bool,
    prices: str | None,
    since: datetime,
    manifest: str | None,
    output: str,
    **brokers: Any,
) -> None:
    """Show what a workload, TOPIC or a range costs.

    With --mb-per-second a model of a month; with TOPIC its Batches and what its groups committed,
    as dollars a day; with --manifest what was read for a range.
    """
    if [topic is None, manifest is None, "mb_per_second" not in given].count(False) != 1:
        raise click.UsageError("give one of --mb-per-second, --manifest and TOPIC")
    listed = _prices(prices)
    if topic is not None:
        rows, columns = _metered(topic, since, listed, brokers), _METER
    elif manifest is not None:
        rows, columns = [_of_manifest(manifest, listed)], _RUN
    else:
        table = model.WORKLOAD_OPTIONS
        load = model.Workload(**defaults(table) | parse_options(table, given))
        rows, columns = list(_modelled(load, listed, against, sensitivity)), _MODEL
    show_rows(rows, columns, output)
    if output == "table":
        notice(f"Prices of {listed.date}, {listed.region}: {listed.source}.")


def _prices(path: str | None) -> model.Prices:
    source = Path(path) if path else files("memq.core").joinpath("prices.toml")
    try:
        return msgspec.convert(tomllib.loads(source.read_text(encoding="utf-8")), model.Prices)
    except (OSError, ValueError, msgspec.ValidationError) as exc:
        raise ConfigError(f"prices {path}: {exc}; write them as memq/core/prices.toml") from exc


# -- the model ------------------------------------------------------------------------------


def _modelled(
    load: model.Workload, prices: model.Prices, against: str | None, sensitivity: bool
) -> Iterator[Row]:
    bills = {"memq": model.memq_bill(load, prices)}
    if against:
        bills["kafka tuned"] = model.kafka_bill(load, prices, tuned=True)
        bills["kafka default"] = model.kafka_bill(load, prices, tuned=False)
    high = model.total(model.memq_bill(model.worst(load), prices))
    for system, lines in bills.items():
        lines.append(model.Line("total", 0, "a month", model.total(lines)))
        if system == "memq":
            lines.append(model.Line("total at worst", 0, "a month", high))
            lines.extend(model.sensitivity(load, prices) if sensitivity else [])
        for item, amount, unit, dollars in lines:
            shown = None if unit.endswith("a month") else round(amount)
            yield dict(zip(_MODEL, (system, item, shown, unit, round(dollars, 2)), strict=True))


# -- the meter ------------------------------------------------------------------------------


def _metered(
    topic: str, since: datetime, prices: model.Prices, brokers: dict[str, Any]
) -> list[Row]:
    """Count a topic's Batches since a time, and those of them that each group has committed."""
    from memq.client.topic import SyncTopicClient  # noqa: PLC0415 - loads the client

    check_reachable(brokers["bootstrap"])
    ends_s = time.time()
    if since.timestamp() >= ends_s:
        raise InvalidRequestError(f"--since {since.isoformat()} is not before now; give 1h")
    with SyncTopicClient(topic=topic, client="memq cost", **brokers) as client:
        info = client.info()
        retention_s = info.config.retention_ms / 1000
        # What is from before is gone, or never was: it must not make the rates smaller.
        begins_s = max(since.timestamp(), info.created_ms / 1000, ends_s - retention_s)
        ranges = client.ranges_between(int(begins_s * 1000), None)
        if (span := sum(each.end - each.start for each in ranges)) > MAX_BATCHES:
            about = f"{span} offsets since {since.isoformat()}, and {MAX_BATCHES} are looked at"
            raise InvalidRequestError(f"{about}; give a later --since, such as 5m")
        groups = client.groups()
        found = [
            (it.partition, it.offset, it.notification.size_bytes) for it in client.batches(ranges)
        ]
    window_s = max(ends_s - begins_s, 1.0)  # clocks differ
    puts = len(found) * 1.03  # with hedges, as the model has them
    gb_days = sum(size for *_, size in found) / 1e9 * retention_s / 86_400
    counted: list[tuple[str, list[int], float, float]] = [
        ("brokers", [size for *_, size in found], puts, puts * prices.put_per_1000 / 1e3),
        ("storage", [], 0, gb_days * prices.object_gb_month / model.DAYS),
    ]
    for group in groups:
        committed = {each.partition: each.offset for each in group.offsets}
        read = [size for number, offset, size in found if offset < committed.get(number, 0)]
        gets = sum(map(model.whole_gets, read))
        counted.append((f"group {group.group}", read, gets, gets * prices.get_per_1000 / 1e3))
    return [
        dict(zip(_METER, (who, len(read), sum(read), round(asked), cost, window_s), strict=True))
        for who, read, asked, dollars in counted
        for cost in [round(dollars * 86_400 / window_s, 6)]
    ]


def _of_manifest(path: str, prices: model.Prices) -> Row:
    from memq.core.manifest import decode_manifest  # noqa: PLC0415 - loads the audit

    it = decode_manifest(Path(path).read_bytes())
    count, messages = max(1, it.batches), it.messages + it.skipped_messages
    gets = it.batches * model.ranged_gets(it.bytes / count, messages / count)
    cells = (it.topic, it.batches, it.bytes, gets, round(gets * prices.get_per_1000 / 1e3, 6))
    return dict(zip(_RUN, cells, strict=True))
