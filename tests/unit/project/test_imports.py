"""Imports point one way and never in a circle, and `import memq` is light.

The direction is what keeps the core free of sockets, and the client free of the broker. Every
import counts: at the top, inside a function, and for type checking only.
"""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

import memq

ROOT = Path(__file__).parents[3]

ERRORS = ("memq.errors",)
MACHINE = ("memq.core", "memq.runtime", *ERRORS)
ADAPTERS = ("memq.bigqueue", "memq.queue", "memq.storage", "memq.zookeeper")
READING = ("memq.reading", "memq.storage", *MACHINE)
CLIENT = ("memq.client", *READING)
TABLES = ("memq.tables", *CLIENT)

ALLOWED = {
    "memq": ("memq.client", "memq.core", "memq.reading", "memq.tables", *ERRORS),
    "memq.errors": (),
    "memq.core": ERRORS,
    "memq.core.bigqueue": ("memq.bigqueue",),  # where it was; deprecated
    "memq.bigqueue": (
        "memq.core.checksum",
        "memq.core.decoding",
        "memq.runtime.files",
        *ERRORS,
    ),  # a library by itself
    "memq.runtime": ("memq.core", *ERRORS),
    "memq.storage": MACHINE,
    "memq.queue": ("memq.bigqueue", *MACHINE),
    "memq.zookeeper": MACHINE,
    "memq.reading": ("memq.storage", *MACHINE),  # is given the calls to brokers that it makes
    "memq.client": READING,
    "memq.console": CLIENT,  # a client of the cluster, wherever it is served
    "memq.tables": CLIENT,
    "memq.broker": (*ADAPTERS, *MACHINE),
    "memq.testing": ("memq.broker", *CLIENT),
    "memq.spark": TABLES,
    "memq.spark.apps": ("memq.spark", "memq.cli", *TABLES),
    "pyspark_memq": ("memq.spark",),
    "airflow_provider_memq": TABLES,
    "memq.__main__": ("memq.cli",),
    "memq.cli": ("memq",),
}
"""What of ours each package may import beside itself. A new package needs a row."""

IMPURE = {
    *("asyncio", "concurrent", "fcntl", "mmap", "multiprocessing", "os", "queue", "select"),
    *("selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading"),
    *("time", "aiohttp", "confluent_kafka", "kazoo", "obstore", "requests"),
}
"""What the core may not import: event loops, threads, sockets, files, clocks, drivers."""

PUBLIC = re.compile(
    r"memq|memq\.(errors|spark|testing|bigqueue)|(airflow_provider_memq|pyspark_memq)(\..*)?"
)
"""Where the pages may tell users to import from; `memq.bigqueue` is a library by itself."""

PRODUCT = ("memq", "airflow_provider_memq", "pyspark_memq")
"""Packages that users install."""

IMPORT_LIMIT_US = 300_000  # `import memq` is paid by every command and every Airflow parse

LIGHT = {"memq", "msgspec"}
"""All that `import memq` may load beside the standard library; the rest waits until it is used."""


def module_name(path: Path) -> str:
    """Dotted name of the module in a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path
    for folder in ROOT.iterdir()
    if folder.is_dir() and folder.name != "tests" and not folder.name.startswith(".")
    for path in folder.rglob("*.py")
}


def within(module: str, package: str) -> bool:
    """Whether a module is the package or inside it."""
    return module == package or module.startswith(f"{package}.")


def names_in(source: str) -> set[str]:
    """Names of the modules that the source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = str(node.module)  # lint allows no relative import
            names = {f"{base}.{alias.name}" for alias in node.names}
            found.update(name if name in SOURCES else base for name in names)
    return found


def imports_of(source: str) -> set[str]:
    """Names of our modules that the source imports."""
    return {name for name in names_in(source) if any(within(name, each) for each in PRODUCT)}


def impure_imports(source: str) -> set[str]:
    """Packages of `IMPURE` that the source imports."""
    return {name.partition(".")[0] for name in names_in(source)} & IMPURE


def row_of(module: str) -> str | None:
    """The most specific row of `ALLOWED` for a module; the first row is for `memq` itself only."""
    rows = [row for row in ALLOWED if within(module, row) and (row != "memq" or module == "memq")]
    return max(rows, key=len, default=None)


def violations(module: str, source: str) -> list[str]:
    """What the source imports against the direction."""
    row = row_of(module)
    names = imports_of(source)
    wrong = {name for name in names if within(name, "memq.testing") and row != "memq.testing"}
    wrong -= {"memq.testing.broker"} if within(module, "benchmarks") else set()  # a real process
    if row is not None:
        own = () if row == "memq" else (row,)  # all of ours is within `memq`
        allowed = (*own, *ALLOWED[row])
        wrong |= {name for name in names if not any(within(name, package) for package in allowed)}
    return sorted(f"{module} imports {name}" for name in wrong)


def test_imports_point_one_way():
    """No module imports what its layer may not know, and each package has a row that says so."""
    wrong = [each for module in SOURCES for each in violations(module, SOURCES[module].read_text())]
    assert wrong == []
    assert [name for name in SOURCES if within(name, "memq") and row_of(name) is None] == []
    for source in ("import memq.client.consumer", "if TYPE_CHECKING:\n    from memq import broker"):
        assert len(violations("memq.core.topic", source)) == 1


def test_the_core_is_pure():
    """No module of the core imports an event loop, threads, sockets, files, clocks or a driver."""
    core = [module for module in SOURCES if within(module, "memq.core")]
    found = {module: impure_imports(SOURCES[module].read_text()) for module in core}
    assert {module: names for module, names in found.items() if names} == {}
    assert impure_imports("def f():\n    from os.path import join\n    import socket") == {
        "os",
        "socket",
    }


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem
)
def test_pages_import_from_public_modules(page):
    """What a page tells users to import stands in a public module, and is there."""
    for module, names in re.findall(
        r"^ *from ((?:memq|airflow_provider_memq|pyspark_memq)\S*) import (\([^)]*\)|.*)$",
        page.read_text(),
        re.MULTILINE,
    ):
        assert PUBLIC.fullmatch(module), f"{page.name} imports from {module}"
        for name in re.findall(r"\w+", names):
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_no_modules_import_each_other():
    """There is no circle of imports, not inside a package and not for type checking either."""
    imports = {module: imports_of(path.read_text()) for module, path in SOURCES.items()}
    TopologicalSorter(imports).prepare()  # its error names the circle


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python afresh in the repository."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_import_pulls_no_optional_package():
    """`import memq` loads nothing heavy: no Arrow, no HTTP, no command line."""
    code = "import sys; before = set(sys.modules); import memq; print(*set(sys.modules) - before)"

    loaded = {name.partition(".")[0] for name in run_python("-c", code).stdout.split()}

    assert "memq" in loaded
    assert loaded - sys.stdlib_module_names <= LIGHT


def test_a_broker_loads_only_what_it_needs():
    """It starts without what others use of its packages, or what only some configurations need."""
    code = "import sys, memq.broker.server; print(*sys.modules)"

    loaded = {name.partition(".")[0] for name in run_python("-c", code).stdout.split()}

    assert {"pyarrow", "aiohttp"} <= loaded
    assert loaded & {"pandas", "jwt", "cryptography", "boto3", "kazoo", "confluent_kafka"} == set()


def test_the_version_is_told():
    """`memq.__version__` is that of the distribution, and is looked up when it is asked for."""
    assert memq.__version__ == version("memq")


def test_import_is_quick():
    """`import memq` takes less than 0.3 s; the best of three, for the machine may be busy."""

    def import_us() -> int:
        report = run_python("-X", "importtime", "-c", "import memq").stderr
        line = next(line for line in report.splitlines() if line.endswith("| memq"))
        return int(line.split("|")[1])

    assert min(import_us() for _ in range(3)) < IMPORT_LIMIT_US
