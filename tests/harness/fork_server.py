"""A server from which processes are forked that have imported what they need.

Python has one for each process. Its children have the environment of when it was started; so who
needs another one, or other imports, starts it anew.
"""

import multiprocessing
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


def fork_server(imports: Sequence[str]) -> ForkServerContext:
    """Return a context whose next process starts the server anew, with these imports."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as Python's own tests do
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imports))
    return context
