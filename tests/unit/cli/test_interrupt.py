"""Ctrl-C, wherever it falls."""

import signal
import subprocess
import sys

import pytest

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


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{signal})

sys.argv = {argv!r}
sys.meta_path.insert(0, Interrupt)
from memq.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("SIGINT", "memq.cli.main", "broker"),
        ("SIGTERM", "click", "broker"),
        ("SIGTERM", "pyarrow.lib", "broker"),
        ("SIGINT", "aiohttp", "broker"),
        ("SIGINT", "pyarrow.lib", "consume"),
    ],
)
def test_interrupt_while_the_program_is_loaded(tmp_path, name, module, command):
    """Whatever is being imported when Ctrl-C or SIGTERM comes, the command ends in silence."""
    options = {
        "broker": ["--data-dir", str(tmp_path), "--port", "0", "--admin-port", "0"],
        "consume": ["t", "-b", "127.0.0.1:1"],
    }
    argv = ["memq", command, *options[command]]
    code = INTERRUPTED.format(module=module, signal=name, argv=argv)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=60
    )
    number = getattr(signal, name)
    assert done.returncode in (-number, 128 + number)
    assert (done.stdout, done.stderr) == (b"", b"")
