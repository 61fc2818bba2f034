"""Plant generated bugs in a room of the product, and say which of them no test notices.

    make mutants ROOM=client/producer COUNT=20 SEED=7

Bugs are drawn from all that `operators` can plant in the room's files. Each is planted alone, in a
copy of the tree. There the tests run that have the file's name, then those of the room, unit tests
first: the tests mirror the product. `ARGS="--tests tests/simulation"` adds others.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.rooms import PROVIDER, rooms_of
from tests.mutants.copies import ROOT, copy_tree, failed_test
from tests.mutants.operators import Bug, bugs_of

ROOMS = {"airflow": PROVIDER}  # others are folders of memq


def sources_of(room: str) -> list[Path]:
    """Return the files of a room, or the one file; paths are below the root, sorted."""
    first, _, rest = room.partition("/")
    folder = Path(ROOMS.get(first, f"memq/{first}")) / rest
    found = [folder.with_suffix(".py")] if (ROOT / folder).with_suffix(".py").is_file() else []
    found += sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))
    if not found:
        raise SystemExit(
            f"there is no room {room!r}: give a folder or file below memq/, or airflow"
        )
    return found


def tests_of(source: Path) -> list[list[str]]:
    """Return the tests that are to notice a bug in a file, the nearest first."""
    rooms, named = rooms_of(source), f"test_{source.stem}*.py"
    near = [path for room in rooms for path in sorted((ROOT / room).rglob(named))]
    return [[str(path.relative_to(ROOT)) for path in near], [str(room) for room in rooms]]


def caught_by(copy: Path, source: Path, bug: Bug, others: list[str]) -> str:
    """Plant a bug in the copy and return the test that fails; empty when none does."""
    original = (copy / source).read_text()
    (copy / source).write_text(bug.source)
    try:
        for tests in [*tests_of(source), others]:
            if tests and (failed := failed_test(copy, tests)):
                return failed
        return ""
    finally:
        (copy / source).write_text(original)


def main() -> int:
    """Try the bugs and print each; the exit code is 0 when all were caught."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("room", help="a folder or file below memq/, or airflow/…")
    parser.add_argument("--count", type=int, default=20, help="how many bugs; 0: all there are")
    parser.add_argument("--seed", type=int, default=1, help="which bugs")
    parser.add_argument("--list", action="store_true", help="only show them")
    parser.add_argument("--tests", nargs="*", default=[], help="to run beside those of the room")
    options = parser.parse_args()
    there = [
        (source, bug)
        for source in sources_of(options.room)
        for bug in bugs_of((ROOT / source).read_text())
    ]
    chance = random.Random(options.seed)
    chosen = chance.sample(there, min(options.count or len(there), len(there)))
    survived = 0
    with tempfile.TemporaryDirectory(prefix="memq-mutant-") as folder:
        if not options.list:
            copy_tree(Path(folder))
        for source, bug in chosen:
            place = f"{source}:{bug.line}: {bug.what}"
            if options.list:
                print(place)
                continue
            began_s = time.monotonic()
            by = caught_by(Path(folder), source, bug, options.tests)
            survived += not by
            print(f"{by or 'SURVIVED'}, {time.monotonic() - began_s:.0f} s: {place}", flush=True)
    if not options.list:
        print(f"{len(chosen) - survived} of {len(chosen)} caught, of {len(there)} there are")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
