"""A real ZooKeeper on this machine: one standalone server, of the jars that pyspark brings."""

import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from tests.harness.services.certificates import encrypted
from tests.harness.services.jars import Jars, pyspark_jars
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
    """A ZooKeeper server; clients may ask for sessions of 1 to 60 s.

    Args:
        folder: with its data, settings and log.
        keystore: PKCS12 file with its certificate; it then speaks TLS only.
        keystore_password: of that file.
        jars: of the services.
    """

    name: ClassVar[str] = "zookeeper"

    def __init__(
        self,
        folder: str | Path,
        *,
        keystore: Path | None = None,
        keystore_password: str = "",
        jars: Jars | None = None,
    ) -> None:
        super().__init__(folder, jars=jars)
        self._keystore = keystore
        self._keystore_password = keystore_password

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
        with ExitStack() as stack:
            connection = socket.create_connection(("127.0.0.1", self.port), ANSWER_TIMEOUT_S)
            stack.enter_context(connection)
            if self._keystore:
                connection = stack.enter_context(encrypted(connection))
            connection.sendall(word.encode())
            return stack.enter_context(connection.makefile("rb")).read().decode()

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
            f"{self._port_settings()}"
            f"tickTime={TICK_MS}\n"
            f"maxSessionTimeout={MAX_SESSION_MS}\n"
            "maxClientCnxns=0\n"  # no limit: all clients of the tests have the same address
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=ruok,srvr,mntr\n"
        )

    def _port_settings(self) -> str:
        if self._keystore is None:
            return f"clientPort={self.port}\nclientPortAddress=127.0.0.1\n"
        return (
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"secureClientPort={self.port}\n"
            "secureClientPortAddress=127.0.0.1\n"
            f"ssl.keyStore.location={self._keystore}\n"
            f"ssl.keyStore.password={self._keystore_password}\n"
            "ssl.keyStore.type=PKCS12\n"
            "ssl.clientAuth=none\n"  # clients are told apart by users
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
