"""Whether there is a Java that Spark runs on: Spark itself says so in many lines, if at all."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from memq.errors import ConfigError

MIN_JAVA = 17  # of Spark 4

_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_WAY_OUT = f"Spark needs Java {MIN_JAVA} or later: install one, or set JAVA_HOME to its folder"


def check_java() -> None:
    """Refuse to begin where Spark could not.

    Raises:
        ConfigError: there is no Java, or it is too old; the message names the one that was found.
    """
    home = os.environ.get("JAVA_HOME")
    named = os.path.join(home, "bin", "java") if home else "java"  # noqa: PTH118 - for `which`
    found = shutil.which(named)
    if found is None:
        where = f"JAVA_HOME = {home} has none" if home else "no java is on PATH"
        raise ConfigError(f"there is no Java: {where}. {_WAY_OUT}")
    version = _version(Path(found))
    if version is not None and version < MIN_JAVA:
        raise ConfigError(f"{found} is Java {version}. {_WAY_OUT}")


def _version(java: Path) -> int | None:
    """Read the major version of a Java from its folder's file `release`; None where that is
    missing.

    Asking the program itself would take half a second of every start.
    """
    try:
        found = _VERSION.search((java.resolve().parents[1] / "release").read_text())
    except (OSError, IndexError, UnicodeDecodeError):
        return None
    return None if found is None else int(found[1])
