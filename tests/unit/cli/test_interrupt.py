"""Ctrl-C, wherever it falls."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from memq.cli.main import _interrupt_that_caused


def test_interrupt_is_known_behind_the_error_of_a_lock():
    """A Ctrl-C in a wait for a lock counts as one; any other RuntimeError stays an error."""
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")
    except RuntimeError as exc:
        hidden = exc
    assert _interrupt_that_caused(hidden) is hidden.__context__
    alone = KeyboardInterrupt()
    assert _interrupt_that_caused(alone) is alone
    assert _interrupt_that_caused(RuntimeError("a bug")) is None


def test_work_that_was_never_begun_makes_no_noise():
    """A Ctrl-C after a request was made and before it was sent ends the command in silence."""
    code = """
        import sys
        import click
        from memq.cli.main import Root

        async def request(): ...

        @click.group(cls=Root)
        def cli(): ...

        @cli.command()
        def wait():
            made = request()
            raise KeyboardInterrupt

        sys.exit(cli.main(["wait"], standalone_mode=False))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, b"")
