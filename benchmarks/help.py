"""How long somebody waits for `memq --help`: `python -m benchmarks.help`.

Help loads click and the modules of the commands, and nothing that is heavy. Beside it stands what
the interpreter alone takes.
"""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 15  # of each, in turns; the best counts


def run() -> list[tuple[str, str, str]]:
    """The figures."""
    commands = {
        "pass": [sys.executable, "-c", "pass"],
        "--help": [sys.executable, "-m", "memq", "--help"],
        "consume --help": [sys.executable, "-m", "memq", "consume", "--help"],
    }
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(RUNS):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            best[name] = min(best[name], time.perf_counter() - start)
    alone = best.pop("pass")
    return [
        (
            f"memq {name}",
            f"{seconds * 1e3:.0f} ms",
            f"{seconds / alone:.1f} times `python -c pass`, {alone * 1e3:.0f} ms",
        )
        for name, seconds in best.items()
    ]


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
