"""`memq status`: whether all is well, and if not, what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from memq.cli.command import Command, RowType, connection_options, option, output_option
from memq.cli.lag import lag_row
from memq.cli.output import human_age, human_size, plain, show_json, table_text
from memq.core.options import Option
from memq.core.units import counted
from memq.errors import MemqError

if TYPE_CHECKING:
    from memq.cli.output import Row
    from memq.core.wire.messages import BrokerStatus

TIMEOUT = Option("duration", "5s", 500, 600_000, name="timeout", doc="How long it may take.")
_COLUMNS = ["broker", "address", "version", "state", "watermark", "disk_free"]


class _UnreachableError(click.ClickException):
    exit_code = 2


@click.command(
    cls=Command,
    epilog="""
memq status
memq status -b broker-1:6367,broker-2:6367 -o json
""",
)
@option("--timeout", type=RowType(TIMEOUT), default=TIMEOUT.default_text, help=TIMEOUT.doc)
@connection_options
@output_option
def status(*, timeout: str, bootstrap: str, token: str, output: str) -> None:
    """Show whether all is well, and if not, what is wrong.

    That is of brokers, the services behind them, watermarks, disks and the worst lag of a group.
    The first line says what is wrong. The exit code is 0 when all is well, 1 when something is
    wrong, and 2 when no broker answers. WATERMARK is the age of the oldest one of a broker.
    """
    from memq.client.admin import AdminClient  # noqa: PLC0415 - loads Arrow

    try:
        with AdminClient(bootstrap, token=token, client="memq") as admin:
            found = admin.status(TIMEOUT.parse(timeout) / 1_000)
    except MemqError as exc:
        raise _UnreachableError(f"no broker tells its state: {exc}") from exc
    problems = found.problems()
    lag = None if found.worst_lag is None else lag_row(found.worst_lag)
    if output == "json":
        show_json(plain(found._asdict()) | {"problems": problems, "worst_lag": lag})
    else:
        fine = f"ok: {counted(len(found.brokers), 'broker')} of cluster {found.cluster_id}"
        silent: list[Row] = [{"broker": name, "state": "silent"} for name in found.silent]
        rows = [dict.fromkeys(_COLUMNS) | row for row in (*map(_row, found.brokers), *silent)]
        states = {state.name: state for each in found.brokers for state in each.services}
        lines = [*(problems or [fine]), "", table_text(rows, _COLUMNS), ""]
        lines += [f"{name}: {each.words() or each.where or 'ok'}" for name, each in states.items()]
        if lag is not None:
            lines.append("worst lag: {group} of {topic}, {lag_records} records".format(**lag))
        click.echo("\n".join(lines))
    click.get_current_context().exit(1 if problems else 0)


def _row(broker: BrokerStatus) -> Row:
    free = broker.free_bytes.values()
    return {
        "broker": broker.id,
        "address": broker.address,
        "version": broker.version,
        "state": "not ready" if broker.not_ready else "ready",
        "watermark": human_age(max(0, broker.watermark_age_ms) / 1_000),
        "disk_free": human_size(min(free)) if free else None,
    }
