"""`memq completion`: commands, options, topics and groups, completed by the shell.

The protocol and the scripts are click's: the shell runs `memq` with `_MEMQ_COMPLETE` and the words
so far, and reads what they may become. Names of topics and groups come from the broker, within a
short time or not at all: a shell that waits, or an error in the middle of a line, is worse than
nothing to choose from.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
)

from memq.cli.command import Command, ParamType, check_reachable, connection_in
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memq.client.admin import AdminClient

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MEMQ_COMPLETE"  # as click names it after the command
REACH_S = 0.3  # a broker that does not listen by then is not there
ANSWER_S = 1.5  # nobody waits longer for a list of names
_JOINTS = set(":=")


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


@add_completion_class
class _Bash(BashComplete):
    """Bash splits words at `:` and `=` too; they are joined again, as the command will see them."""

    name: ClassVar[str] = BashComplete.name

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words before the cursor, and the one at it."""
        before, incomplete = super().get_completion_args()
        return join_words(before, incomplete)


def join_words(before: Iterable[str], incomplete: str) -> tuple[list[str], str]:
    """The words of a command line, from the pieces into which bash cuts it.

    A `:` or `=` that follows an option with a space between is a word by itself, as in
    `--key-separator :`; bash does not tell, so it is taken for one.
    """
    words: list[str] = []
    joining = False
    for piece in [*before, incomplete]:
        is_joint = bool(piece) and _JOINTS.issuperset(piece)
        if joining or (words and is_joint and _may_join(words[-1], piece)):
            words[-1] += piece
            joining = is_joint
        else:
            words.append(piece)
    return words[:-1], words[-1]


def _may_join(word: str, joint: str) -> bool:
    return not word.startswith("-") or "=" in word + joint


# -- names that the brokers know ------------------------------------------------------------


class _NameType(ParamType[str]):
    """A name that the brokers know."""

    name = "text"

    @abstractmethod
    def names(self, admin: AdminClient) -> list[str]:
        """All of them."""

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem[str]]:
        """Names that begin so."""
        return _ask(ctx, incomplete, self.names)


class TopicType(_NameType):
    """The name of a topic that exists."""

    def names(self, admin: AdminClient) -> list[str]:
        """All topics."""
        return [topic.config.name for topic in admin.list_topics()]


class GroupType(_NameType):
    """The name of a consumer group that exists."""

    def names(self, admin: AdminClient) -> list[str]:
        """Groups of all topics."""
        return [group.group for group in admin.groups()]


class BrokerType(_NameType):
    """The id of a broker that lives."""

    def names(self, admin: AdminClient) -> list[str]:
        """All brokers of the cluster."""
        return [broker.id for broker in admin.describe_cluster().brokers]


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
