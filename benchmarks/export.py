"""A topic as Parquet files: `python -m benchmarks.export [--megabytes N]`, 1,000 by default.

The rows, 1 KiB values like text, lie in a topic (1 MiB Messages, zstd). `memq export`, a process of
its own, turns them into a folder of Parquet files (zstd). The limit is pyarrow.parquet alone, which
writes the same rows from memory to one file, also with zstd. They take turns, the best of some
rounds counts, and both must hold the same rows. Beside it stands `scan`, which only reads.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyarrow import parquet

from benchmarks.broker import broker_process
from benchmarks.spark import MEGABYTES, Place, fill
from memq import read_range, scan

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

ROUNDS = 3
VALUE_BYTES = 1024

Row = tuple[str, str, str]


def export(place: Place, folder: Path) -> None:
    """Export the topic, as a user would."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "memq", "export", place.topic, str(folder)]
    subprocess.run([*command, "-b", place.address], check=True, stdout=subprocess.DEVNULL)


def write(table: pa.Table, path: Path) -> None:
    """Write the rows with nothing but pyarrow."""
    parquet.write_table(table, path, compression="zstd")


def read(place: Place) -> None:
    """Read the rows and look at none."""
    for _ in scan(place.address, topic=place.topic):
        pass


def best_s(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of the quickest round of each; they take turns, for the machine may be busy."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            found[name].append(time.perf_counter() - start)
    return {name: min(times) for name, times in found.items()}


def total(path: Path) -> int:
    """Bytes of all values in a file or a folder."""
    values = parquet.read_table(path, columns=["value"])["value"]
    return int(pc.sum(pc.binary_length(values)).as_py())


def run(megabytes: int = MEGABYTES) -> list[Row]:
    """Measure all."""
    with tempfile.TemporaryDirectory(prefix="memq-bench-") as name:
        folder = Path(name)
        with broker_process("local", folder / "data") as (address, _):
            place = Place(address, folder, VALUE_BYTES)
            fill(place, megabytes)
            table = read_range(address, topic=place.topic)
            found = best_s(
                {
                    "export": lambda: export(place, folder / "out"),
                    "pyarrow": lambda: write(table, folder / "alone.parquet"),
                    "scan": lambda: read(place),
                }
            )
        size = total(folder / "alone.parquet")
        assert total(folder / "out") == size
    rate = {name: f"{size / seconds / 1e6:,.0f} MB/s" for name, seconds in found.items()}
    return [
        (
            f"memq export of {size / 1e6:,.0f} MB to Parquet",
            f"{found['export']:.2f} s, {rate['export']}",
            f"{found['pyarrow'] / found['export']:.2f} of pyarrow.parquet alone, from memory "
            f"({found['pyarrow']:.2f} s, {rate['pyarrow']})",
        ),
        (
            "scan of the same",
            f"{found['scan']:.2f} s, {rate['scan']}",
            "read, checked and decoded; nothing is written",
        ),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.export", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of values")
    for row in run(parser.parse_args().megabytes):
        print(*row, sep="\n    ")
