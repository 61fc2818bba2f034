"""How commands show their help: with examples, printed as they are written."""

from __future__ import annotations

import click


class _WithExamples(click.Command):
    """The epilog holds the examples, one a line."""

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        lines = (self.epilog or "").strip().splitlines()
        if lines:
            with formatter.section("Examples" if len(lines) > 1 else "Example"):
                formatter.write("".join(f"  {line}\n" for line in lines))


class Command(_WithExamples):
    """A command."""


class Group(_WithExamples, click.Group):
    """A group of commands, shown in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names as they were added, not sorted."""
        return list(self.commands)
