"""What the programs in `memq.spark.apps` share: their options, how they start, speak, and end.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. An error is one line on stderr; the
progress is in the log, on stderr as well.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from contextlib import contextmanager
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click
import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.defaults import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, GLUE_ARGUMENTS
from memq.core.ranges import OffsetRange
from memq.core.topic import check_topic_name
from memq.core.units import counted
from memq.errors import ConfigError, InvalidRequestError, MemqError
from memq.runtime.java import check_java
from memq.runtime.log_format import configure, is_json
from memq.spark import NEEDS_PYSPARK, check_pyspark, is_remote

try:
    check_pyspark()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from memq.spark.outputs import RangeJob, check_retained
    from memq.spark.source import MemqDataSource
except ModuleNotFoundError as exc:
    if exc.name not in ("pyspark", "py4j"):
        raise
    raise SystemExit(f"error: {NEEDS_PYSPARK}") from None  # programs alone import this module
except ConfigError as exc:
    raise SystemExit(f"error: {exc}") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memq.core.manifest import Manifest

    Decorator = Callable[[Any], Any]

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
MAX_ERROR_LENGTH = 2_000  # Spark may quote whole plans

_OURS = re.compile(r"memq\.errors\.\w+: (.+)")


def _all_of(*options: Decorator) -> Decorator:
    """Options of a command, which `--help` shows in this order."""
    return lambda command: reduce(lambda done, add: add(done), reversed(options), command)


def _check_topic(_: click.Context, __: click.Parameter, name: str) -> str:
    check_topic_name(name)
    return name


def _token_from(_: click.Context, __: click.Parameter, variable: str | None) -> str:
    """Return the credential in an environment variable; empty where none is named.

    Raises:
        ConfigError: the variable is not set.
    """
    if variable is not None and variable not in os.environ:
        raise ConfigError(f"--token-env {variable}: there is no such environment variable")
    return "" if variable is None else os.environ[variable]


topic_options = _all_of(
    click.option(
        "--bootstrap",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        envvar=BOOTSTRAP_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT[,…]",
        help="Some brokers of the cluster.",
    ),
    click.option("--topic", required=True, callback=_check_topic, help="The topic."),
    click.option(
        "--token-env",
        "token",
        metavar="NAME",
        callback=_token_from,
        help="Environment variable that holds the credential.",
    ),
)
"""Where the data is: the arguments `bootstrap`, `topic` and `token`."""


range_options = _all_of(
    click.option("--partition", required=True, type=click.IntRange(0), help="Read partition."),
    click.option("--start", required=True, type=click.IntRange(0), help="First offset."),
    click.option("--end", required=True, type=click.IntRange(0), help="One past the last offset."),
    click.option(
        "--topic-id",
        default="",
        metavar="HEX",
        help="Of the topic that the range was planned for; another one is an error. Whichever "
        "there is when left out.",
    ),
    click.option(
        "--manifest", required=True, metavar="FILE", help="Written last: what went into the files."
    ),
)
"""A range: the arguments `partition`, `start`, `end`, `topic_id` and `manifest`."""


def job_options(name: str) -> Decorator:
    """Add the options of a job's name and its damage: the arguments `name`, `mode` and `report`.

    Args:
        name: of the job, when nothing else is said.
    """
    return _all_of(
        click.option(
            "--job",
            "name",
            default=name,
            show_default=True,
            help="Name of the job, and of the consumer that the audit knows.",
        ),
        click.option(
            "--mode",
            type=click.Choice(["failfast", "permissive"]),
            default="failfast",
            show_default=True,
            help="What to do when a Message is damaged or gone: fail, or leave it out and "
            "count it.",
        ),
        click.option(
            "--report/--no-report",
            default=True,
            show_default=True,
            help="Tell the audit what was read.",
        ),
    )


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a program.

    Args:
        command: the program.
        arguments: of it; None for those of the process.

    Returns:
        The exit code.
    """
    name = command.name or "spark app"
    configure("text", "INFO")  # JSON where an option says so
    try:
        given = own_arguments(sys.argv[1:] if arguments is None else arguments)
        return command.main(given, prog_name=name, standalone_mode=False) or 0
    except click.UsageError as exc:
        _complain(name, f"{exc.format_message()} (see --help)")
        return exc.exit_code
    except click.ClickException as exc:
        _complain(name, exc.format_message())
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (MemqError, OSError, PySparkException, Py4JError) as exc:
        _complain(name, one_line(exc))
        return 1


def run_range(
    put: Callable[[SparkSession, RangeJob], Manifest],
    *,
    partition: int,
    start: int,
    end: int,
    topic_id: str,
    **options: Any,
) -> None:
    """Put a range where it belongs, and say what was put there: a program after its options.

    Spark is started only when the range is there.

    Args:
        put: puts it there.
        partition: read partition.
        start: first offset.
        end: one past the last one.
        topic_id: of the topic; empty for whichever there is.
        options: the others of the program.

    Raises:
        InvalidRequestError: it is no range.
        MemqError: as `check_retained` and `put`.
    """
    if end < start:
        raise InvalidRequestError(f"--end {end} is before --start {start}")
    job = RangeJob(range=OffsetRange(partition, start, end, topic_id), **options)
    check_retained(job)
    with session(job.name) as spark:
        done = put(spark, job)
    click.echo(
        f"{counted(done.records, 'record')} of {counted(done.batches, 'Batch')} in {done.output}"
    )


def own_arguments(given: Sequence[str]) -> list[str]:
    """Select the arguments of the program among those that it is given.

    AWS Glue adds arguments of its own, and keeps names for itself; so there those of the program
    are one, as a JSON list.

    Raises:
        click.UsageError: that one is no list of texts.
    """
    texts = [text for name, text in pairwise(given) if name == GLUE_ARGUMENTS]
    try:
        return msgspec.json.decode(texts[-1], type=list[str]) if texts else list(given)
    except UNDECODABLE as exc:
        raise click.UsageError(f"{GLUE_ARGUMENTS}: must be a JSON list of texts: {exc}") from exc


def one_line(error: BaseException) -> str:
    """Describe an error in one line: MemQ's, if it is the cause, else what Spark says first."""
    text = str(error) or type(error).__doc__ or type(error).__name__
    if not isinstance(error, MemqError):
        ours = _OURS.findall(text)
        text = ours[-1] if ours else next(iter(text.strip().splitlines()), "")
    return " ".join(text.split())[:MAX_ERROR_LENGTH]


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Give a Spark with the data source `memq`, and stop it: as `spark-submit` was told, or by
    Spark Connect where `SPARK_REMOTE` says, or else on this machine.

    Raises:
        ConfigError: there is no Java that Spark runs on.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ and "SPARK_REMOTE" not in os.environ:
        check_java()
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.appName(name)
    if "SPARK_REMOTE" not in os.environ:
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark: SparkSession = builder.getOrCreate()
    try:
        if is_remote(spark):
            # What runs there would run on without this process: it stops the session when killed.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        else:
            # The log of Spark repeats each error of a task with its traces; ours names it once.
            local = str(spark.sparkContext.master).startswith("local")
            spark.sparkContext.setLogLevel("OFF" if local else "ERROR")
        spark.dataSource.register(MemqDataSource)
        yield spark
    finally:
        spark.stop()


def _complain(name: str, text: str) -> None:
    if is_json():
        logging.getLogger("memq.spark").error("%s: %s", name, text)
    else:
        click.echo(f"{name}: error: {text}", err=True)
