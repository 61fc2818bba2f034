"""`memq completion`: commands, options, topics and groups, completed by the shell.

The protocol and the scripts are click's: the shell runs `memq` with `_MEMQ_COMPLETE` and the words
so far, and reads what they may become. Names of topics and groups come from the broker, within a
short time or not at all: a shell that waits, or an error in the middle of a line, is worse than
nothing to choose from.
"""

from __future__ import annotations

import contextlib
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from memq.cli.command import Command, check_reachable, connection_in
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.client.admin import AdminClient

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MEMQ_COMPLETE"  # as click names it after the command
REACH_S = 0.3  # a broker that does not listen by then is not there
ANSWER_S = 1.5  # nobody waits longer for a list of names


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


# -- names that the brokers know ------------------------------------------------------------


class NameType(click.ParamType):  # type: ignore[type-arg]  # older ones have none
    """A name that the brokers know.

    Args:
        names: asks for all of them.
    """

    name = "text"

    def __init__(self, names: Callable[[AdminClient], list[str]]) -> None:
        self._names = names

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        """Return the names that begin so."""
        return _ask(ctx, incomplete, self._names)


TopicType = partial(NameType, lambda admin: [each.config.name for each in admin.list_topics()])
GroupType = partial(NameType, lambda admin: [each.group for each in admin.groups()])
BrokerType = partial(NameType, lambda admin: [each.id for each in admin.describe_cluster().brokers])


def _ask(
    ctx: click.Context, incomplete: str, question: Callable[[AdminClient], list[str]]
) -> list[CompletionItem[str]]:
    """Names that the brokers answer; none where they do not in time."""
    from memq.client.admin import AdminClient  # noqa: PLC0415 - loads Arrow

    connection = connection_in(ctx)
    answers: list[list[str]] = []

    def ask() -> None:
        with contextlib.suppress(MemqError, OSError):
            check_reachable(connection["bootstrap"], timeout_s=REACH_S)
            with AdminClient(
                **connection, client="memq completion", request_timeout_s=ANSWER_S
            ) as admin:
                answers.append(question(admin))

    # In a thread that nobody waits for at the end: the search for a host's address takes its time.
    asking = Thread(target=ask, name="memq-completion", daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    names = {name for answer in answers for name in answer if name.startswith(incomplete)}
    # Names that begin with an underscore are MemQ's own.
    shown = [name for name in names if incomplete or not name.startswith("_")]
    return [CompletionItem(name) for name in sorted(shown)]
