"""Run the benchmarks and print their figures, beside the machine they were measured on.

Rates are noisy on shared machines. What counts is the ratio in the last column: against a physical
limit, or a peer, measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import time
from pathlib import Path

NAMES = (
    "ingest",
    "end_to_end",
    "latency",
    "memory",
    "producer",
    "consumer",
    "peers",
    "bigqueue",
    "storage",
    "object_store",
    "store_latency",
    "notification",
    "format",
    "wire",
    "tls",
    "plan",
    "governor",
    "scale",
    "help",
    "parse",
    "ranges",
    "export",
    "scan",
    "spark",
    "failover",
    "replays",
    "audit",
    "dedup",
)


def main() -> None:
    """Run all, or those that are named."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="which; all when none")
    parser.add_argument("--kills", type=int, default=50, help="of brokers, for failover")
    given = parser.parse_args()
    names = given.names or NAMES
    print(f"machine: {_machine()}")
    for name in names:
        start = time.perf_counter()
        options = {"kills": given.kills} if name == "failover" else {}
        rows = importlib.import_module(f"benchmarks.{name}").run(**options)
        print(f"\n{name} ({time.perf_counter() - start:.0f} s)")
        for what, figure, note in rows:
            print(f"  {what}\n      {figure}\n      {note}", flush=True)


def _machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
