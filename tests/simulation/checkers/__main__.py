"""How long the checkers take: `python -m tests.simulation.checkers [OPERATIONS]`."""

from __future__ import annotations

import sys
import time
from itertools import islice

from tests.simulation.checkers import CHECKERS, without_collection
from tests.simulation.checkers.log import Log
from tests.simulation.legal import legal_history

history = legal_history(1, int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
print(history)
started_s = time.monotonic()
with without_collection():
    log = Log(history)
    print(f"{'log':28} {time.monotonic() - started_s:6.2f} s, {len(log.value)} rows")
    for checker in CHECKERS:
        begun_s = time.monotonic()
        found = list(islice(checker(log), 3))
        print(f"{checker.__name__:28} {time.monotonic() - begun_s:6.2f} s {found or ''}")
print(f"{'all':28} {time.monotonic() - started_s:6.2f} s for {len(history)} operations")
