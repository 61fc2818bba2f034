"""The `memq` command: its groups, and what its end looks like.

Modules of commands import what is heavy (Arrow, the clients, the broker) inside their functions, so
that `memq --help` and a mistyped flag answer at once.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated. An error is one line
on stderr. SIGTERM ends a command as Ctrl-C does: what it has written is committed or sent, and a
member leaves its group. (A broker drains instead, see `memq.broker.server`.)
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

import memq
from memq.cli import serve
from memq.cli.acl import acl
from memq.cli.apply import apply
from memq.cli.audit import audit
from memq.cli.batch import batch
from memq.cli.cluster import cluster, status
from memq.cli.command import Command, Group
from memq.cli.consume import consume
from memq.cli.cost import cost
from memq.cli.debug import debug
from memq.cli.examples import examples
from memq.cli.export import export
from memq.cli.generate import generate
from memq.cli.group import group, lag
from memq.cli.output import replace_closed
from memq.cli.produce import produce
from memq.cli.quota import quota
from memq.cli.restore import restore
from memq.cli.table import table
from memq.cli.topic import offsets, topic
from memq.cli.user import user
from memq.errors import MemqError
from memq.runtime.log_format import is_json

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("memq")

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
MAX_LINE = 1_500  # characters of an error
TERMINATED = 143  # 128 + SIGTERM


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM came."""


def _terminate(*_: object) -> None:
    raise _TerminatedError


FIRST_STEPS = """
memq dev
seq 1000000 | memq produce hello
memq consume hello --from-beginning --exit-at-end
"""


class Root(Group):
    """All commands, ended cleanly by a reader that goes away."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; neither `memq … | head` nor an interruption makes noise."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The interpreter flushes stdout when it ends, and must not fail then.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (KeyboardInterrupt, Exception) as exc:
            interrupt = _interrupt_that_caused(exc)
            if interrupt is None:
                raise
            # It may have fallen between the making of a request and its sending.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            if sys.stderr.isatty() and not is_json():
                click.echo(err=True)  # the prompt is to begin a line of its own
            return TERMINATED if isinstance(interrupt, _TerminatedError) else INTERRUPTED
        return result


def _interrupt_that_caused(error: BaseException | None) -> KeyboardInterrupt | None:
    """Find the interrupt that an error comes from, as its context: one that falls into a wait for a
    lock is raised as that lock's `RuntimeError`, one that falls into an import as an `ImportError`.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"memq {memq.__version__}")
        ctx.exit()


@click.group(
    cls=Root,
    epilog=FIRST_STEPS,
    context_settings={
        "auto_envvar_prefix": "MEMQ",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,  # MEMQ_VERSION is a likely name for other things
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """PubSub on object storage: immutable Batches, named by offsets.

    Every option is also an environment variable, which the help of its command names. Start a
    broker, send lines to a topic, and read them back as in the examples.
    """


# The protocol and the scripts are click's: the shell runs `memq` with `_MEMQ_COMPLETE` and the
# words so far, and reads what they may become.
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MEMQ_COMPLETE"  # as click names it after the command


@click.command(
    cls=Command,
    epilog="""
source <(memq completion bash)
memq completion bash > ~/.local/share/bash-completion/completions/memq
memq completion zsh > ~/.zfunc/_memq
memq completion fish > ~/.config/fish/completions/memq.fish
""",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes `memq` in SHELL.

    Topics and groups are asked of the broker that --bootstrap, MEMQ_BOOTSTRAP or the profile names.
    In zsh the folder of the script must be in fpath before compinit is called.
    """
    script = get_completion_class(shell)
    assert script is not None  # noqa: S101 - click has all three
    root = ctx.find_root()
    click.echo(script(root.command, {}, "memq", VARIABLE).source(), nl=False)


for command in (
    serve.dev,
    serve.broker,
    topic,
    apply,
    produce,
    consume,
    export,
    offsets,
    group,
    lag,
    cluster,
    batch,
    status,
    audit,
    cost,
    table,
    user,
    acl,
    quota,
    restore,
    generate,
    debug,
    examples,
    completion,
):
    cli.add_command(command)


class _WithoutPandas:
    """Keeps pandas out of this process, where it is installed: nothing here needs it.

    Arrow imports it as soon as it is given a list. That would take a broker half a second in the
    middle of its first Batch, and tens of MB.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """Say that pandas is not there, and nothing about anything else."""
        if name == "pandas":
            raise ModuleNotFoundError("the command memq leaves out pandas", name=name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: of the command; None for those of the process.

    Returns:
        The exit code.
    """
    if arguments is not None:
        return _run(arguments)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    sys.meta_path.insert(0, _WithoutPandas)
    replace_closed()
    try:
        return _run(None)
    finally:
        # All is done: a Ctrl-C could only interrupt the interpreter's own clearing up.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        return cli.main(arguments, prog_name="memq", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message(), err=True)
        return exc.exit_code
    except click.UsageError as exc:
        command = exc.ctx.command_path if exc.ctx else "memq"
        _complain(f"{exc.format_message()} (see {command} --help)")
        return exc.exit_code
    except click.ClickException as exc:
        _complain(exc.format_message())
        return exc.exit_code
    except click.Abort:
        return INTERRUPTED
    except (MemqError, OSError) as exc:
        _complain(str(exc) or type(exc).__doc__ or "")
        return 1


def _complain(text: str) -> None:
    line = " ".join(text.split())
    if len(line) > MAX_LINE:  # by a value that was given; what is wrong and the way out stay
        line = f"{line[: MAX_LINE // 2]}…{line[-MAX_LINE // 2 :]}"
    if is_json():
        log.error("%s", line)
    else:
        click.echo(f"memq: error: {line}", err=True)


if __name__ == "__main__":
    sys.exit(main())
