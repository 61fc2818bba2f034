"""`memq cluster` and `memq status`: the brokers, what each owns, and whether all is well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from memq.cli.command import (
    BrokerType,
    Command,
    Group,
    admin_options,
    confirm,
    connect_admin,
    connection_options,
    option,
    output_option,
    row_option,
    yes_option,
)
from memq.cli.group import lag_row
from memq.cli.output import (
    notice,
    plain,
    progress_bar,
    show_json,
    show_one,
    show_rows,
    some_of,
    table_text,
)
from memq.core.options import Option
from memq.core.units import DAY_MS, counted, human_age, human_size, iso_ms
from memq.errors import InvalidRequestError, MemqError, RequestTimeoutError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq import AdminClient
    from memq.cli.output import Row
    from memq.core.wire.messages import BrokerStatus, ClusterBroker, DescribeClusterAnswer

    Owned = set[tuple[str, int]]
    """Write partitions: topic and number."""

LOOK_S = 1.0  # from one look to the next while a drain is waited for
DRAIN_TIMEOUT = Option(
    "duration", "10m", 1_000, DAY_MS, name="timeout", doc="How long --wait waits before it fails."
)

STATUS_TIMEOUT = Option("duration", "5s", 500, 600_000, name="timeout", doc="How long it may take.")

_STATUS_COLUMNS = ["broker", "address", "version", "state", "watermark", "disk_free"]
_COLUMNS = ["broker", "address", "zone", "role", "state", "write_partitions", "traffic", "governs"]


@click.group(cls=Group)
def cluster() -> None:
    """Show brokers and what they own; empty one, or even loads out."""


@cluster.command(
    epilog="""
memq cluster describe
memq cluster describe -o json
"""
)
@admin_options
def describe(*, admin: AdminClient, output: str) -> None:
    """Show the brokers, what they own, and which are lost.

    TRAFFIC is what comes to the write partitions that a broker owns, as measured last. What nobody
    owns, and what is on its way to another broker, is named below the table.
    """
    found = admin.describe_cluster()
    if output == "json":
        show_json(plain(found))
    else:
        rows = [_row(each, found.governor) for each in found.brokers]
        for name, lost_ms in found.lost.items():
            state = f"lost since {iso_ms(lost_ms)}" if lost_ms else "lost"
            rows.append(dict.fromkeys(_COLUMNS) | {"broker": name, "state": state})
        click.echo("\n".join([table_text(rows, _COLUMNS), *_notes(found)]))


def _row(broker: ClusterBroker, governor: str) -> Row:
    owned = sum(map(len, broker.write_partitions.values()))
    return {
        "broker": broker.id,
        "address": broker.address,
        "zone": broker.zone,
        "role": broker.role,
        "state": broker.state,
        "write_partitions": owned,
        "traffic": f"{human_size(broker.bytes_per_s)}/s",
        "governs": "*" if broker.id == governor else None,
    }


def _notes(found: DescribeClusterAnswer) -> list[str]:
    """List what a table of brokers has no column for."""
    lines = []
    if found.homeless:
        lines.append(f"homeless: {some_of(_places(found.homeless))}")
    if found.moving:
        moving = [f"{each.topic}/{each.write_partition} to {each.to}" for each in found.moving]
        lines.append(f"moving: {some_of(moving)}")
    if found.waiting_for:
        lines.append(f"waiting for: {some_of(found.waiting_for)}")
    if found.problem:
        lines.append(f"the assignor is not followed: {found.problem}")
    if not found.governor:
        lines.append("no broker governs now")
    if found.status is not None:
        lines += [f"{found.status.id}: {reason}" for reason in found.status.not_ready]
    return lines and ["", *lines]


def _places(owned: Mapping[str, list[int]]) -> list[str]:
    return [f"{topic}/{number}" for topic, numbers in owned.items() for number in numbers]


@cluster.command(
    epilog="""
memq cluster drain broker-3 --wait
memq cluster drain broker-3 --withdraw
"""
)
@click.argument("broker", type=BrokerType())
@option("--withdraw", is_flag=True, help="Let it be given write partitions again.")
@option("--wait", is_flag=True, help="Wait until it owns nothing.")
@row_option(DRAIN_TIMEOUT)
@admin_options
def drain(
    *, broker: str, withdraw: bool, wait: bool, timeout: str, admin: AdminClient, output: str
) -> None:
    """Have BROKER give away all that it owns.

    That goes a few write partitions at a time. It is given nothing any more, also after a restart,
    until the drain is withdrawn. A broker that owns nothing can be stopped and nobody notices.
    One that is lost is forgotten instead.
    Prints what it owns; the exit code is 1 when --wait ends and it still owns something.
    """
    if withdraw and wait:
        raise click.UsageError("--wait is for what moves away; leave out --withdraw, or --wait")
    _check_there(admin, broker, withdraw=withdraw)
    admin.drain_broker(broker, withdraw=withdraw)
    if wait:
        wait_until_drained(admin, broker, DRAIN_TIMEOUT.parse(timeout) / 1_000)
    left = set() if wait else owned_by(admin.describe_cluster(), broker)
    shown = [f"{topic}/{number}" for topic, number in sorted(left)]
    state = "withdrawn" if withdraw else "draining" if left else "drained"
    show_one({"broker": broker, "drain": state, "write_partitions": shown}, output)


def _check_there(admin: AdminClient, broker: str, *, withdraw: bool) -> None:
    """Refuse to drain a broker that does not live: its name is mistyped, or it owns nothing.

    Raises:
        InvalidRequestError: it does not.
    """
    found = admin.describe_cluster()
    live = [each.id for each in found.brokers]
    if broker not in [*live, *found.lost] and not withdraw:
        raise InvalidRequestError(
            f"no broker {broker[:250]!r} lives; these do: {', '.join(live) or 'none'}"
        )


def owned_by(found: DescribeClusterAnswer, broker: str) -> Owned:
    """Write partitions that a broker owns."""
    owned = next((each.write_partitions for each in found.brokers if each.id == broker), {})
    return {(topic, number) for topic, numbers in owned.items() for number in numbers}


def wait_until_drained(admin: AdminClient, broker: str, timeout_s: float) -> None:
    """Wait until a broker owns nothing, and somebody has taken over what it gave away.

    A cluster that does not answer for a moment is waited for.

    Raises:
        RequestTimeoutError: something is left after `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    left = given = owned_by(admin.describe_cluster(), broker)
    with progress_bar(f"drain {broker}", len(left)) as done:
        while left:
            if time.monotonic() + LOOK_S > deadline_s:
                raise RequestTimeoutError(
                    f"{counted(len(left), 'write partition')} of broker {broker!r} left after "
                    f"{timeout_s:g} s; it goes on, and `memq cluster describe` shows how far it is"
                )
            time.sleep(LOOK_S)
            try:
                found = admin.describe_cluster()
            except MemqError as exc:
                if not exc.retriable:
                    raise
                notice(f"memq: no answer, looking again: {exc}")
                continue
            before, owned = len(left), owned_by(found, broker)
            given = given | owned
            left = owned | ({(each.topic, each.write_partition) for each in found.moving} & given)
            done(max(0, before - len(left)))


@cluster.command(epilog="memq cluster rebalance")
@connection_options
def rebalance(**brokers: Any) -> None:
    """Have the loads of brokers evened out now.

    Write partitions move a few at a time; `memq cluster describe` shows which. Nothing moves where
    loads are even.
    """
    with connect_admin(**brokers) as admin:
        admin.rebalance_cluster()
    notice("requested")


@cluster.group(cls=Group)
def upgrade() -> None:
    """Show versions and feature levels; make an upgrade final."""


def _levels(admin: AdminClient) -> tuple[list[BrokerStatus], int, int]:
    """Return the brokers, the active level, and the highest that one of them knows.

    Raises:
        UnavailableError: a broker does not answer, so nobody knows what it knows.
    """
    found = admin.status()
    if found.silent:
        raise UnavailableError(f"no answer from {some_of(found.silent)}; start them, or look again")
    brokers = found.brokers
    return brokers, min(e.level for e in brokers), max(e.max_level for e in brokers)


@upgrade.command("status", epilog="memq cluster upgrade status")
@admin_options
def upgrade_status(*, admin: AdminClient, output: str) -> None:
    """Show what each broker knows, and what finalize would do."""
    brokers, active, highest = _levels(admin)
    behind = [each.id for each in brokers if each.max_level < highest]
    columns = ["broker", "version", "lowest", "highest", "active"]
    cells = [(e.id, e.version, e.min_level, e.max_level, e.level) for e in brokers]
    show_rows([dict(zip(columns, each, strict=True)) for each in cells], columns, output)
    if behind:
        notice(f"level {highest} waits for {some_of(behind)}: upgrade them")
    elif highest > active:
        notice(f"finalize would raise the level from {active} to {highest}, with no way back")
    else:
        notice(f"level {active} is active; there is nothing to finalize")


@upgrade.command("finalize", epilog="memq cluster upgrade finalize")
@yes_option
@admin_options
def upgrade_finalize(*, yes: bool, admin: AdminClient, output: str) -> None:
    """Raise the feature level to the highest, for good.

    Every broker must know it. Afterwards no older version starts on this data.
    """
    _, active, highest = _levels(admin)
    if highest > active:
        confirm(f"Raise the level from {active} to {highest}? There is no way back.", yes=yes)
        admin.finalize_upgrade(highest)
    show_one({"level": highest, "before": active}, output)


# -- status ---------------------------------------------------------------------------------


class _UnreachableError(click.ClickException):
    exit_code = 2


@click.command(
    cls=Command,
    epilog="""
memq status
memq status -b broker-1:6367,broker-2:6367 -o json
""",
)
@row_option(STATUS_TIMEOUT)
@connection_options
@output_option
def status(*, timeout: str, output: str, **brokers: Any) -> None:
    """Show whether all is well, and if not, what is wrong.

    That is of brokers, the services behind them, watermarks, disks and the worst lag of a group.
    The first line says what is wrong. The exit code is 0 when all is well, 1 when something is
    wrong, and 2 when no broker answers. WATERMARK is the age of the oldest one of a broker.
    """
    from memq.client.admin import AdminClient  # noqa: PLC0415 - loads Arrow

    try:
        with AdminClient(**brokers, client="memq") as admin:
            found = admin.status(STATUS_TIMEOUT.parse(timeout) / 1_000)
    except MemqError as exc:
        raise _UnreachableError(f"no broker tells its state: {exc}") from exc
    problems = found.problems()
    lag = None if found.worst_lag is None else lag_row(found.worst_lag)
    if output == "json":
        show_json(plain(found._asdict()) | {"problems": problems, "worst_lag": lag})
    else:
        fine = f"ok: {counted(len(found.brokers), 'broker')} of cluster {found.cluster_id}"
        silent: list[Row] = [{"broker": name, "state": "silent"} for name in found.silent]
        rows = [
            dict.fromkeys(_STATUS_COLUMNS) | row
            for row in (*map(_status_row, found.brokers), *silent)
        ]
        states = {state.name: state for each in found.brokers for state in each.services}
        lines = [*(problems or [fine]), "", table_text(rows, _STATUS_COLUMNS), ""]
        lines += [f"{name}: {each.words() or each.where or 'ok'}" for name, each in states.items()]
        if lag is not None:
            lines.append("worst lag: {group} of {topic}, {lag_records} records".format(**lag))
        click.echo("\n".join(lines))
    click.get_current_context().exit(1 if problems else 0)


def _status_row(broker: BrokerStatus) -> Row:
    free = broker.free_bytes.values()
    return {
        "broker": broker.id,
        "address": broker.address,
        "version": broker.version,
        "state": "not ready" if broker.not_ready else "ready",
        "watermark": human_age(max(0, broker.watermark_age_ms) / 1_000),
        "disk_free": human_size(min(free)) if free else None,
    }
