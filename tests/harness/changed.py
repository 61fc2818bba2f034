"""Which tests a change can break: those that import what has changed, and those of its rooms.

A unit test is chosen when it imports a changed module, directly or through others. Of integration
tests, which import nearly everything, those are chosen whose room was changed, and of all tests
those that were changed themselves. Changed pages choose the tests of pages.
"""

import ast
import subprocess
from pathlib import Path

from tests.harness.rooms import PROVIDER, ROOT, rooms_of

PRODUCT = ("memq", PROVIDER, "pyspark_memq", "spark_apps", "dags")
PAGES = "tests/unit/project"


def changed_files(since: str) -> list[str]:
    """Return what differs from a commit in the working tree, new files included."""
    commands = (
        ("git", "diff", "--name-only", since),
        ("git", "ls-files", "--others", "--exclude-standard"),
    )
    return sorted({name for command in commands for name in _lines_of(command)})


def tests_for(changed: list[str]) -> list[str]:
    """Return the files and folders of tests that a change of these files can break, sorted."""
    if not changed:
        return []
    sources = [
        path for folder in (*PRODUCT, "tests") for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    imports = {_module_of(path): _imports_of(path) for path in sources}
    reached = _importers({_module_of(ROOT / name) for name in changed}, imports)
    chosen = {
        str(path.relative_to(ROOT))
        for path in sources
        if path.name.startswith("test_")
        and _module_of(path) in reached
        and (path.is_relative_to(ROOT / "tests/unit") or str(path.relative_to(ROOT)) in changed)
    }
    for name in changed:
        chosen.update(map(str, rooms_of(Path(name))))
        if name.endswith((".md", ".toml")):
            chosen.add(PAGES)
    return sorted(path for path in chosen if (ROOT / path).exists())


def _lines_of(command: tuple[str, ...]) -> list[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _importers(changed: set[str], imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that import one of `changed`, directly or through others, and these."""
    reached = set(changed)
    while more := {name for name, of in imports.items() if name not in reached and of & reached}:
        reached |= more
    return reached
