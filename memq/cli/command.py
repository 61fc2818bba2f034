"""How commands show their help, with examples, and which variables their options have."""

from __future__ import annotations

import click


class _Taught(click.Command):
    """A command whose epilog holds examples, one a line.

    An option that names no environment variable has the one of its flag: `--range` of
    `memq consume` is `MEMQ_CONSUME_RANGE`, whatever Python calls the argument.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the variables, then read arguments and variables."""
        options = [each for each in self.params if isinstance(each, click.Option)]
        for option in options if ctx.auto_envvar_prefix else []:
            if option.envvar is None and option.allow_from_autoenv:
                flag = max(option.opts, key=len).lstrip("-").replace("-", "_")
                option.envvar = f"{ctx.auto_envvar_prefix}_{flag.upper()}"
        return super().parse_args(ctx, args)

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        lines = (self.epilog or "").strip().splitlines()
        if lines:
            with formatter.section("Examples" if len(lines) > 1 else "Example"):
                formatter.write("".join(f"  {line}\n" for line in lines))


class Command(_Taught):
    """A command."""


class Group(_Taught, click.Group):
    """A group of commands, shown in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names as they were added, not sorted."""
        return list(self.commands)
