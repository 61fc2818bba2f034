"""`memq examples`: programs to copy, from an installed package or from a checkout alike.

In a checkout they are folders beside the package `memq`; its wheel has the same folders inside it.
The DAGs come with the package of the Airflow provider, if it is there.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

import memq
from memq.cli.command import Group, ParsedType, option, output_option
from memq.cli.output import show_rows
from memq.errors import ConfigError, InvalidRequestError
from memq.runtime.files import replace_durably

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DAGS = "dags"
FOLDERS = {
    DAGS: "DAGs for Airflow, and their settings",
    "examples": "small programs, one for each thing that clients do",
    "spark_apps": "programs for spark-submit; the DAGs look for them beside their own folder",
}
"""The folders there are, and what is in them."""

_PACKAGE = Path(memq.__file__).parent
_IN_WHEEL = _PACKAGE / "_examples"
ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else _PACKAGE.parent
"""The folder that has them, but for the DAGs."""


@click.group(cls=Group)
def examples() -> None:
    """Show or copy the DAGs and programs that come with MemQ."""


@examples.command("list", epilog="memq examples list")
@output_option
def list_(output: str) -> None:
    """List what there is to copy, file by file."""
    rows = [{"file": name, "about": _first_line(_path_of(name))} for name in files_of(FOLDERS)]
    show_rows(rows, ["file", "about"], output)


def _source(value: str) -> str:
    """Return a folder of `FOLDERS`, or a file in one, without a slash at its end."""
    name = value.rstrip("/")
    if name.split("/")[0] == DAGS and home_of(DAGS) is None:
        raise ConfigError(
            f"{value!r}: the DAGs come with Airflow's provider, which is not installed here: pip "
            "install airflow-provider-memq"
        )
    if name not in (*FOLDERS, *files_of(FOLDERS)):
        raise ConfigError(
            f"there is no {value!r}; there are {', '.join(FOLDERS)}, and the files that `memq "
            "examples list` shows"
        )
    return name


def _sources(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in (*FOLDERS, *files_of(FOLDERS)) if name.startswith(incomplete)]


@examples.command(
    epilog="""
memq examples copy dags .
memq examples copy dags spark_apps ~/airflow
memq examples copy dags/memq_hourly.py dags/memq.yaml .
""",
)
@click.argument(
    "sources",
    metavar="WHAT...",
    type=ParsedType("text", _source),
    nargs=-1,
    required=True,
    shell_complete=_sources,
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@option("--force", is_flag=True, help="Replace files that are there and differ.")
@output_option
def copy(*, sources: Sequence[str], folder: Path, force: bool, output: str) -> None:
    """Copy WHAT into FOLDER.

    Folders are copied with their name, single files without that of their folder. A file that is
    there and differs is not touched, and then nothing is copied, unless --force is given.
    """
    targets = _targets(sources, folder)
    changed = {path: source for path, source in targets.items() if not _is_same(source, path)}
    in_the_way = [str(path) for path in changed if os.path.lexists(path)]
    if in_the_way and not force:
        more = f" and {len(in_the_way) - 1} more" if len(in_the_way) > 1 else ""
        raise InvalidRequestError(
            f"{in_the_way[0]}{more} would be replaced; nothing was copied. Give --force to "
            "replace, or name another folder"
        )
    for path, source in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, source.read_bytes())
    rows = [
        {"file": str(path), "action": "copied" if path in changed else "was the same"}
        for path in targets
    ]
    show_rows(rows, ["file", "action"], output)


def files_of(names: Iterable[str]) -> list[str]:
    """List the files in some folders, as `FOLDER/FILE`, sorted within each."""
    return [
        f"{name}/{path.name}"
        for name in names
        if (home := home_of(name)) is not None
        for path in sorted((home / name).iterdir())
        if path.is_file() and not path.name.startswith(".")
    ]


def home_of(name: str) -> Path | None:
    """Find the folder in which a folder of `FOLDERS` is, or a file of one; None where there is
    none.
    """
    if name.split("/", maxsplit=1)[0] != DAGS:
        return ROOT
    provider = find_spec("airflow_provider_memq")  # which is not imported: that needs no Airflow
    home = Path(provider.origin).parent if provider and provider.origin else ROOT
    return home if (home / DAGS).is_dir() else None


def _path_of(name: str) -> Path:
    """Return the path of a file that `files_of` names."""
    return (home_of(name) or ROOT) / name


def _targets(sources: Sequence[str], folder: Path) -> dict[Path, Path]:
    """Return where each file goes, and which file it is."""
    wanted: dict[Path, Path] = {}
    for source in sources:
        if source in FOLDERS:
            wanted |= {folder / name: _path_of(name) for name in files_of([source])}
        else:
            wanted[folder / Path(source).name] = _path_of(source)
    return wanted


def _is_same(source: Path, path: Path) -> bool:
    return path.is_file() and path.read_bytes() == source.read_bytes()


def _first_line(path: Path) -> str:
    """Return what a program says that it is: the first line of its docstring, or a heading."""
    with path.open(encoding="utf-8") as file:
        return file.readline().strip().strip('"#').strip()
