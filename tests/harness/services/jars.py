"""The jars of the services: fetched once, and only those that are pinned.

The Ivy that pyspark brings fetches Maven artifacts; its own settings know from where. What comes is
kept in `.services` at the root of the repository, a folder for each service, which appears whole or
not at all: jars are fetched into a folder beside it, compared with `jars.sha256`, and moved. A lock
makes one of two processes wait that want the same service at the same time. What failed once is not
tried again by the same process, whose other tests would wait for the registry too.

To change a version, change it here, and run `python -m tests.harness.services`, which writes
`jars.sha256` anew from what the registry gives. `sha256sum --check` reads that file as well.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.harness.services.errors import JarError, ServiceUnavailableError

PINS = Path(__file__).with_name("jars.sha256")
FOLDER = Path(__file__).parents[3] / ".services"
FETCH_TIMEOUT_S = 120.0  # takes half a minute; with a wait for the lock still within a test's limit
SHOWN_LINES = 12  # of what Ivy says last
HINT = "USE VERBOSE OR DEBUG MESSAGE LEVEL FOR MORE DETAILS"  # which ends it

IVY_FILE = """\
<ivy-module version="2.0" xmlns:m="maven">
  <info organisation="memq" module="services"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class Artifact:
    """What Ivy fetches for a service.

    Attributes:
        name: of the service.
        version: of it.
        dependencies: elements of an Ivy file.
    """

    name: str
    version: str
    dependencies: str

    @property
    def folder(self) -> str:
        """Name of the folder with its jars."""
        return f"{self.name}-{self.version}"

    @property
    def ivy_file(self) -> str:
        """The Ivy file that asks for it."""
        return IVY_FILE.format(dependencies=self.dependencies.format(version=self.version))


# kafka-tools-api is asked for, but was never published; a server runs without it. The configuration
# `default` has the jar of the module itself, which `runtime` lacks. Without a logger, a Kafka that
# ends would not say why.
KAFKA = Artifact(
    "kafka",
    "4.4.0",
    """\
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
    <exclude org="org.apache.kafka" module="kafka-tools-api"/>""",
)
# One jar with all in it: its 151 dependencies, one by one, take minutes.
S3PROXY = Artifact(
    "s3proxy",
    "4.1.0",
    """\
    <dependency org="org.gaul" name="s3proxy" rev="{version}" conf="default->default"
                transitive="false">
      <artifact name="s3proxy" type="jar" m:classifier="jar-with-dependencies"/>
    </dependency>""",
)
ARTIFACTS = (KAFKA, S3PROXY)

# The kernel sends the signal when the thread ends that forked, however it ends, SIGKILL included.
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


class Jars:
    """The jars of all services.

    Args:
        folder: where they are kept.
        pins: file with the SHA-256 of each.
        ivy_settings: to be used in place of Ivy's own; they say where artifacts come from.

    Attributes:
        folder: as given.
    """

    def __init__(
        self,
        folder: Path = FOLDER,
        *,
        pins: Path = PINS,
        ivy_settings: Path | None = None,
    ) -> None:
        self.folder = folder
        self._pins = read_pins(pins)
        self._ivy_settings = ivy_settings
        self._checked: set[Artifact] = set()
        self._failed: dict[Artifact, str] = {}

    def __repr__(self) -> str:
        return f"<Jars in {self.folder}>"

    def java(self, service: str) -> list[str]:
        """The command that runs Java, and ends with the thread that starts it.

        Raises:
            ServiceUnavailableError: this machine lacks it.
        """
        return [
            command(service, DIES_WITH_PARENT[0]),
            *DIES_WITH_PARENT[1:],
            str(Path(command(service, "java")).resolve()),
        ]

    def get(self, artifact: Artifact) -> Path:
        """The folder with the jars of a service; they are fetched when they are not there.

        Raises:
            JarError: they are not those that are pinned.
            ServiceUnavailableError: they cannot be fetched.
        """
        target = self.folder / artifact.folder
        if artifact in self._failed:
            raise ServiceUnavailableError(artifact.name, self._failed[artifact])
        if artifact not in self._checked:
            with self._locked(artifact):
                if not target.exists():
                    self._fetch(artifact, target)
            check(target, self._pins.get(artifact.folder, {}))
            self._checked.add(artifact)
        return target

    def fetch(self, artifact: Artifact, part: Path) -> Path:
        """Have Ivy fetch the jars of a service into a folder in `part`, unchecked; return it.

        Raises:
            ServiceUnavailableError: Ivy could not.
        """
        jars = part / "jars"
        part.mkdir(parents=True)
        (part / "ivy.xml").write_text(artifact.ivy_file)
        self._ivy(
            artifact.name,
            f"-Divy.default.ivy.user.dir={part / 'ivy'}",  # its cache, which is not kept
            "-jar",
            str(_ivy_jar(artifact.name)),
            *(["-settings", str(self._ivy_settings)] if self._ivy_settings else []),
            "-ivy",
            str(part / "ivy.xml"),
            "-confs",
            "default",
            "-retrieve",
            f"{jars}/[artifact]-[revision](-[classifier]).[ext]",
            "-types",
            "jar",
            "bundle",  # what some jars are called by the tool that made them
            "maven-plugin",
        )
        return jars

    def _fetch(self, artifact: Artifact, target: Path) -> None:
        """Make the folder of a service, whole or not at all; the lock is held."""
        part = target.with_name(f"{target.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        try:
            jars = self.fetch(artifact, part)
        except ServiceUnavailableError as exc:
            self._failed[artifact] = exc.reason
            raise
        else:
            check(jars, self._pins.get(artifact.folder, {}))
            jars.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _ivy(self, service: str, *arguments: str) -> None:
        try:
            done = subprocess.run(
                [*self.java(service), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            reason = f"Ivy did not fetch it within {FETCH_TIMEOUT_S:g} s"
            raise ServiceUnavailableError(service, reason) from exc
        if done.returncode != 0:
            lines = [line.strip(" \t:") for line in done.stdout.splitlines()]
            *before, last = [each for each in lines if each and each != HINT][-SHOWN_LINES:] or [""]
            reason = "\n".join([f"Ivy could not fetch it: {last}", "Before that it said:", *before])
            raise ServiceUnavailableError(service, reason)

    @contextmanager
    def _locked(self, artifact: Artifact) -> Iterator[None]:
        """Hold the lock of a service, which all processes share."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{artifact.folder}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
            yield


def read_pins(path: Path) -> dict[str, dict[str, str]]:
    """SHA-256 of each jar, by its file name, by the folder that it lies in."""
    pins: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            digest, folder, name = re.split("  |/", line)
            pins.setdefault(folder, {})[name] = digest
    return pins


def check(folder: Path, pins: dict[str, str]) -> None:
    """Make sure that a folder has exactly the files that are pinned.

    Raises:
        JarError: a file is missing, or not pinned, or another one; the message names all of them.
    """
    found = digests(folder)
    problems = [
        *(f"{name} is missing" for name in sorted(pins.keys() - found.keys())),
        *(f"{name} is not pinned" for name in sorted(found.keys() - pins.keys())),
        *(
            f"{name} has SHA-256 {found[name]}, pinned is {pins[name]}"
            for name in sorted(found.keys() & pins.keys())
            if found[name] != pins[name]
        ),
    ]
    if problems:
        raise JarError(f"{folder}: {'; '.join(problems)}. Remove the folder to fetch it again")


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a folder, by name."""
    found = {}
    for path in folder.iterdir():
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def command(service: str, name: str) -> str:
    """Where a command is.

    Raises:
        ServiceUnavailableError: this machine lacks it.
    """
    path = shutil.which(name)
    if path is None:
        raise ServiceUnavailableError(service, f"there is no command {name!r}")
    return path


def pyspark_jars(service: str) -> Path:
    """The folder with the jars that pyspark brings.

    Raises:
        ServiceUnavailableError: pyspark is not installed.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServiceUnavailableError(service, "pyspark, whose jars it needs, is not installed")
    return Path(found.origin).with_name("jars")


def _ivy_jar(service: str) -> Path:
    return next(pyspark_jars(service).glob("ivy-*.jar"))
