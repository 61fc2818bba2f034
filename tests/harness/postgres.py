"""A PostgreSQL of its own in a folder, on a free port of the loopback.

Debian's package is enough. PostgreSQL refuses to run as root: then it runs as the user that the
package has made.
"""

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.ports import free_ports

USER = "postgres"
TIMEOUT_S = 300.0
MISSING = "PostgreSQL is missing: apt-get update && apt-get install -y postgresql-15"


class PostgresMissingError(Exception):
    """There is no PostgreSQL on this machine; the message says how to get it."""


class Postgres:
    """A running PostgreSQL with one database, which can be dumped and restored.

    Args:
        folder: for everything it keeps; made when it is not there.
        database: name of the database.

    Raises:
        PostgresMissingError: it is not installed.
    """

    def __init__(self, folder: Path, database: str) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        initdb = shutil.which("initdb") or (found[-1] if found else None)
        if initdb is None:
            raise PostgresMissingError(MISSING)
        self._bin = Path(initdb).resolve().parent
        self._folder, self.database = folder, database
        self._as_root = os.geteuid() == 0
        folder.mkdir(parents=True, exist_ok=True)
        if self._as_root:
            shutil.chown(folder, USER)
            for parent in (folder, *folder.parents):
                if parent.stat().st_uid == 0 and len(parent.parts) > 2:  # a folder of a test's own
                    parent.chmod(parent.stat().st_mode | 0o011)
        [self.port] = free_ports(1)

    def __repr__(self) -> str:
        return f"<Postgres {self.url}>"

    def __enter__(self) -> Self:
        data = str(self._folder / "data")
        self.run("initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        options = (
            f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 "
            "-c max_connections=300 -c fsync=off"
        )
        log = str(self._folder / "postgres.log")
        self.run("pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start")
        self.run("createdb", *self._at, self.database)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "stop")

    @property
    def address(self) -> str:
        """Of the database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{self.database}"

    @property
    def url(self) -> str:
        """Of the database, for SQLAlchemy."""
        return self.address.replace("://", "+psycopg2://")

    @property
    def _at(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER]

    def dump(self, name: str) -> None:
        """Write a dump of the database, as a backup does."""
        path = str(self._folder / name)
        self.run("pg_dump", *self._at, "-Fc", "-f", path, self.database)

    def restore(self, name: str) -> None:
        """Put the database back to what a dump has; nobody may be connected."""
        self.run("dropdb", *self._at, "--force", self.database)
        self.run("createdb", *self._at, self.database)
        self.run("pg_restore", *self._at, "-d", self.database, str(self._folder / name))

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL to its end.

        Raises:
            RuntimeError: it failed; the message has what it said.
        """
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            user=USER if self._as_root else None,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "said").open("w+b"),
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {(self._folder / 'said').read_text()[-2000:]}")
