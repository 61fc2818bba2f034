"""Compare what was produced with what is stored and consumed, and keep the findings as a table.

Run it with `spark-submit spark_apps/audit_reconcile.py …` or with
`python -m memq.spark.apps.audit_reconcile …`; `--help` says more.
"""

from __future__ import annotations

import asyncio
import sys
import time

import click

from memq.cli.audit import audit_options, exit_code, show_table
from memq.cli.command import Command
from memq.client.audit.audit import audit_topic
from memq.client.profile import connection_of
from memq.core.audit.result import encode_result
from memq.core.named_values import NO_VALUES
from memq.spark import files
from memq.spark.app import run, session, topic_options
from memq.spark.audit import TopicAddress, add_findings, deep_on, findings


@click.command(
    "audit_reconcile",
    cls=Command,
    epilog="""
spark-submit spark_apps/audit_reconcile.py --topic clicks --from 2h --deep --output s3a://lake/audit
python spark_apps/audit_reconcile.py --topic clicks --output /tmp/audit
""",
)
@topic_options
@audit_options
@click.option(
    "--output", required=True, metavar="DIR", help="Folder or URI; the findings are added to it."
)
@click.option(
    "--result",
    metavar="FILE",
    help="Written last: everything that was found, as JSON for another program.",
)
def main(
    *,
    bootstrap: str,
    topic: str,
    start_ms: int | None,
    end_ms: int | None,
    deep: bool,
    consumers: tuple[str, ...],
    grace_ms: int,
    every: bool,
    output: str,
    result: str | None,
    token: str,
) -> int:
    """Compare what the producers of a topic reported with what is stored, and that with what
    consumers reported, as `memq audit` does.

    Prints the findings and adds them to the Parquet table in DIR: one row for each producer, epoch
    and write partition, and one for each consumer of it. The exit code is 1 when anything is lost,
    damaged, duplicated, changed or missed, and 3 when nothing is, but not all could be judged.
    """
    own = connection_of(bootstrap)
    values = [own.get("storage_options", NO_VALUES), own.get("security", NO_VALUES)]
    address = TopicAddress(bootstrap, topic, token, *values)
    with session("audit_reconcile") as spark:
        found = asyncio.run(
            audit_topic(
                bootstrap,
                topic,
                start_ms=start_ms,
                end_ms=end_ms,
                deep=deep,
                consumers=consumers,
                grace_ms=grace_ms,
                token=token,
                inspect_batches=deep_on(spark, address) if deep else None,
            )
        )
        window = {"start_ms": start_ms, "end_ms": end_ms, "deep": deep}
        rows = findings(found, window | {"audited_ms": time.time_ns() // 1_000_000})
        add_findings(spark, rows, output)
        if result is not None:
            files.write(result, encode_result(found))
    show_table(found, every=every)
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(run(main))
