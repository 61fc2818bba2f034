"""A real ZooKeeper on this machine: one standalone server, of the jars that pyspark brings."""

import shutil
import socket
from pathlib import Path
from typing import ClassVar

from tests.harness.services.jars import pyspark_jars
from tests.harness.services.process import JavaService

TICK_MS = 500  # sessions end at a tick; by default none is shorter than 2 ticks or longer than 20
MAX_SESSION_MS = 60_000
ANSWER_TIMEOUT_S = 5.0
JARS = (
    "zookeeper-3.*",
    "zookeeper-jute-*",
    "netty-*",
    "metrics-core-4.*",
    "snappy-java-*",
    "commons-io-*",
    "commons-cli-*",
    "slf4j-api-*",
    "log4j-api-*",  # without a logger it would end and not say why
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
)
"""Jars that it needs. All of pyspark's would do as well, but Java looks into each at the start."""


class ZooKeeper(JavaService):
    """A ZooKeeper server; clients may ask for sessions of 1 to 60 s."""

    name: ClassVar[str] = "zookeeper"

    @property
    def _settings_path(self) -> Path:
        return self.folder / "zoo.cfg"

    @property
    def class_path(self) -> str:
        """Class path of its jars, which have the programs of ZooKeeper too."""
        folder = pyspark_jars(self.name)
        return ":".join(str(path) for each in JARS for path in sorted(folder.glob(f"{each}.jar")))

    def four_letter_word(self, word: str) -> str:
        """The answer to one of ZooKeeper's commands of four letters: `ruok`, `srvr` or `mntr`."""
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_TIMEOUT_S) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode()

    def back_up(self, to: Path) -> None:
        """Copy all that it has, as of now; it is started again for that."""
        self.kill()
        shutil.copytree(self._data, to)
        self.start()

    def restore(self, backup: Path | None = None) -> None:
        """Start again with what a backup has, or with nothing."""
        self.kill()
        shutil.rmtree(self._data)
        if backup is not None:
            shutil.copytree(backup, self._data)
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _prepare(self) -> None:
        self._settings_path.write_text(
            f"dataDir={self._data}\n"
            f"clientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\n"
            f"tickTime={TICK_MS}\n"
            f"maxSessionTimeout={MAX_SESSION_MS}\n"
            "maxClientCnxns=0\n"  # no limit: all clients of the tests have the same address
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=ruok,srvr,mntr\n"
        )

    def _arguments(self) -> list[str]:
        return [
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # it starts sooner
            "-cp",
            self.class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self._settings_path),
        ]

    def _answers(self) -> bool:
        # It says `imok` before it serves; then srvr tells nothing.
        return "Mode: standalone" in self.four_letter_word("srvr")
