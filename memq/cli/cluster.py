"""`memq cluster`: the brokers, what each of them owns, and how that moves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from memq.cli.command import (
    Group,
    RowType,
    connect_admin,
    connection_options,
    option,
    output_option,
)
from memq.cli.completion import BrokerType
from memq.cli.output import human_size, notice, plain, progress_bar, show_json, show_one, table_text
from memq.core.options import Option
from memq.core.units import DAY_MS, counted, iso_ms
from memq.errors import InvalidRequestError, MemqError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memq import AdminClient
    from memq.cli.output import Row
    from memq.core.wire.messages import ClusterBroker, DescribeClusterAnswer

    Owned = set[tuple[str, int]]
    """Write partitions: topic and number."""

LOOK_S = 1.0  # from one look to the next while a drain is waited for
NAMED = 8  # write partitions that a line below a table names; JSON has all of them
TIMEOUT = Option(
    "duration", "10m", 1_000, DAY_MS, name="timeout", doc="How long --wait waits before it fails."
)

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
@connection_options
@output_option
def describe(*, bootstrap: str, token: str, output: str) -> None:
    """Show the brokers, what they own, and which are lost.

    TRAFFIC is what comes to the write partitions that a broker owns, as measured last. What nobody
    owns, and what is on its way to another broker, is named below the table.
    """
    with connect_admin(bootstrap, token) as admin:
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
        "state": _state(broker, owned),
        "write_partitions": owned,
        "traffic": f"{human_size(broker.bytes_per_s)}/s",
        "governs": "*" if broker.id == governor else None,
    }


def _state(broker: ClusterBroker, owned: int) -> str:
    if broker.draining:
        return "draining" if owned or broker.coordinates else "drained"
    return "accepting" if broker.accepting else "not accepting"


def _notes(found: DescribeClusterAnswer) -> list[str]:
    """What a table of brokers has no column for."""
    lines = []
    if found.homeless:
        lines.append(f"homeless: {_named(_places(found.homeless))}")
    if found.moving:
        moving = [f"{each.topic}/{each.write_partition} to {each.to}" for each in found.moving]
        lines.append(f"moving: {_named(moving)}")
    if found.waiting_for:
        lines.append(f"waiting for: {_named(found.waiting_for)}")
    if found.problem:
        lines.append(f"the assignor is not followed: {found.problem}")
    if not found.governor:
        lines.append("no broker governs now")
    if found.status is not None:
        lines += [f"{found.status.id}: {reason}" for reason in found.status.not_ready]
    return lines and ["", *lines]


def _places(owned: Mapping[str, list[int]]) -> list[str]:
    return [f"{topic}/{number}" for topic, numbers in owned.items() for number in numbers]


def _named(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - NAMED
    return ", ".join(every[:NAMED]) + (f" and {more} more" if more > 0 else "")


@cluster.command(
    epilog="""
memq cluster drain broker-3 --wait
memq cluster drain broker-3 --withdraw
"""
)
@click.argument("broker", type=BrokerType())
@option("--withdraw", is_flag=True, help="Let it be given write partitions again.")
@option("--wait", is_flag=True, help="Wait until it owns nothing.")
@option(
    "--timeout",
    type=RowType(TIMEOUT),
    default=TIMEOUT.default_text,
    metavar="DURATION",
    help=TIMEOUT.doc,
)
@connection_options
@output_option
def drain(
    *,
    broker: str,
    withdraw: bool,
    wait: bool,
    timeout: str,
    bootstrap: str,
    token: str,
    output: str,
) -> None:
    """Have BROKER give away all that it owns.

    That goes a few write partitions at a time. It is given nothing any more, also after a restart,
    until the drain is withdrawn. A broker that owns nothing can be stopped and nobody notices.
    One that is lost is forgotten instead.
    Prints what it owns; the exit code is 1 when --wait ends and it still owns something.
    """
    if withdraw and wait:
        raise click.UsageError("--wait is for what moves away; leave out --withdraw, or --wait")
    with connect_admin(bootstrap, token) as admin:
        _check_there(admin, broker, withdraw=withdraw)
        admin.drain_broker(broker, withdraw=withdraw)
        left = Drain(admin, broker).wait(TIMEOUT.parse(timeout) / 1_000) if wait else None
        if left is None:
            left = sorted(owned_by(admin.describe_cluster(), broker))
    shown = [f"{topic}/{number}" for topic, number in left]
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


class Drain:
    """A drain that is waited for.

    What a broker has given away counts as its own until somebody has taken it over: only then is
    nothing lost of its time when it stops.

    Args:
        admin: to look with.
        broker: that is drained.
    """

    def __init__(self, admin: AdminClient, broker: str) -> None:
        self._admin = admin
        self._broker = broker
        self._given: Owned = set()  # all that it was seen to own
        self._begun = False  # the Governor was seen to have heard of it

    def wait(self, timeout_s: float) -> list[tuple[str, int]]:
        """Look until nothing is left; a cluster that does not answer for a moment is waited for.

        Raises:
            InvalidRequestError: somebody has withdrawn the drain.
            RequestTimeoutError: something is left after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        left = self._look()
        total = len(left)
        with progress_bar(f"drain {self._broker}", total) as done:
            while left:
                if time.monotonic() + LOOK_S > deadline_s:
                    raise RequestTimeoutError(
                        f"{counted(len(left), 'write partition')} of broker {self._broker!r} "
                        f"left after {timeout_s:g} s; it goes on, and `memq cluster describe` "
                        "shows how far it is"
                    )
                time.sleep(LOOK_S)
                before = len(left)
                left = self._look_again(left)
                done(max(0, before - len(left)))
        return []

    def _look_again(self, left: Owned) -> Owned:
        try:
            return self._look()
        except MemqError as exc:
            if not exc.retriable:
                raise
            notice(f"memq: no answer, looking again: {exc}")
            return left

    def _look(self) -> Owned:
        found = self._admin.describe_cluster()
        owned = owned_by(found, self._broker)
        live = next((each for each in found.brokers if each.id == self._broker), None)
        withdrawn = self._begun and live is not None and not live.draining
        self._begun = self._begun or (live is not None and live.draining)
        if withdrawn and owned:
            raise InvalidRequestError(
                f"the drain of broker {self._broker!r} was withdrawn; it owns "
                f"{counted(len(owned), 'write partition')}"
            )
        self._given |= owned
        moving = {(each.topic, each.write_partition) for each in found.moving}
        return owned | (moving & self._given)


@cluster.command(epilog="memq cluster rebalance")
@connection_options
def rebalance(*, bootstrap: str, token: str) -> None:
    """Have the loads of brokers evened out now.

    Write partitions move a few at a time; `memq cluster describe` shows which. Nothing moves where
    loads are even.
    """
    with connect_admin(bootstrap, token) as admin:
        admin.rebalance_cluster()
    notice("requested")
