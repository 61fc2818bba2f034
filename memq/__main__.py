"""Where the command `memq` begins, also as `python -m memq`.

Most of a short command's time goes into loading it. Until there is something to clean up a Ctrl-C
ends it at once and in silence, as it does programs that are not written in Python.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command that the process was started as; returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from memq.cli.main import main as run  # noqa: PLC0415 - as above

    return run()


if __name__ == "__main__":
    sys.exit(main())
