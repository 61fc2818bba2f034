"""`make upgrade`: another version of memq, from a revision of the repository, beside this one.

Both are built as wheels and installed into environments of their own. Clients of each produce,
consume and ask for the lag at a broker of the other; and one data directory goes from the old
version to this one, is written to, and goes back. Only then the upgrade is made final.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.system.distributions.builds import PROJECTS, ROOT, broker, build, run
from tests.system.test_wheel import environment

RECORDS = 1_000
FINAL = "features.json"  # of the data directory, which has the level


def main() -> None:
    """Try it, and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rev", default="", help="revision of the other version; newest tag")
    rev = parser.parse_args().rev or newest_tag()
    if not rev:
        sys.stdout.write("skipped: there is no release yet; name a revision: REV=…\n")
        return
    with tempfile.TemporaryDirectory(prefix="memq-upgrade-") as folder:
        try_versions(rev, Path(folder))


def newest_tag() -> str:
    """The newest release, or nothing."""
    found = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def try_versions(rev: str, folder: Path) -> None:
    """Build both, and let them meet."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", rev], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    old = environment(folder / "old", build(source, folder / "old-dist", "wheel"))
    new = environment(folder / "new", build(PROJECTS["memq"], folder / "new-dist", "wheel"))
    name = run("git", "rev-parse", "--short", rev).strip()
    say(f"old is {name}, {run(old / 'memq', '--version').strip()}")
    for title, ours, theirs in (("old client, new broker", old, new),
                                ("new client, old broker", new, old)):  # fmt: skip
        with serving(theirs, folder / title) as address:
            produce(ours, address, 0)
            meets(consume(ours, address), RECORDS, title)
            meets(lag(ours, address), 0, f"{title}: lag")
    forth_and_back(old, new, folder / "data")


def forth_and_back(old: Path, new: Path, folder: Path) -> None:
    """Upgrade, write, downgrade, read; then upgrade for good."""
    with serving(old, folder) as address:
        produce(old, address, 0)
    with serving(new, folder) as address:
        meets(consume(new, address, "before"), RECORDS, "upgraded: records of the old version")
        produce(new, address, RECORDS)
        upgrade = (new / "memq", "cluster", "upgrade", "status", "-b", address, "-o", "json")
        (status,) = json.loads(run(*upgrade))
        say(f"upgraded: feature level {status['active']} of {status['highest']}")
        meets(status["active"], 1, "upgraded: active feature level")
    with serving(old, folder) as address:
        meets(consume(old, address, "back"), 2 * RECORDS, "downgraded: records of both")
        produce(old, address, 2 * RECORDS)
    with serving(new, folder) as address:
        meets(consume(new, address, "again"), 3 * RECORDS, "upgraded again: records of all")
        final = (new / "memq", "cluster", "upgrade", "finalize", "--yes", "-b", address)
        say(f"finalize: {' '.join(run(*final).split())}")
    with serving(new, folder) as address:
        meets(consume(new, address, "last"), 3 * RECORDS, "final: records of all")
    level = json.loads((folder / "memq-data" / FINAL).read_text())["level"]
    meets(level, status["highest"], "final: stored level")


@contextlib.contextmanager
def serving(programs: Path, folder: Path) -> Iterator[str]:
    """Address of a broker of that version, with the data of that folder."""
    folder.mkdir(exist_ok=True)
    with broker(programs, folder) as address:
        yield address


def produce(programs: Path, address: str, first: int) -> None:
    """Write so many lines; all must be acked."""
    lines = "".join(f"line {first + each}\n" for each in range(RECORDS))
    run(programs / "memq", "produce", "t", "-b", address, input=lines)


def consume(programs: Path, address: str, group: str = "g") -> int:
    """How many lines a group is given from the beginning; each once, none missing."""
    options = ("--group", group, "--from-beginning", "--exit-at-end", "-b", address)
    lines = run(programs / "memq", "consume", "t", *options).splitlines()
    assert sorted(lines) == sorted(f"line {each}" for each in range(len(lines)))
    return len(lines)


def lag(programs: Path, address: str) -> int:
    """Batches that the group has not read."""
    (row,) = json.loads(run(programs / "memq", "lag", "t", "-b", address, "-o", "json"))
    return int(row["lag"])


def meets(found: int, expected: int, what: str) -> None:
    """Say that it is as expected.

    Raises:
        AssertionError: it is not.
    """
    assert found == expected, f"{what}: {found}, expected {expected}"
    say(f"{what}: {found}")


say: Callable[[str], object] = print

if __name__ == "__main__":
    main()
