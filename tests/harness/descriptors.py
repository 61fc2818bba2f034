"""Files that this process has open, for tests of what is closed."""

from contextlib import suppress
from pathlib import Path


def open_files(folder: Path) -> list[Path]:
    """Return the files below a folder that are open; other tests of the process have their own."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this very list
            found.append(each.readlink())
    return [each for each in found if each.is_relative_to(folder)]
