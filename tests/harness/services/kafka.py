"""A real Kafka on this machine: one node, which is broker and controller (KRaft)."""

import os
import secrets
import shutil
import socket
import struct
import subprocess
import uuid
import zlib
from base64 import urlsafe_b64encode
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from tests.harness.services.certificates import encrypted
from tests.harness.services.errors import ServiceError
from tests.harness.services.jars import KAFKA, Jars
from tests.harness.services.process import SHOWN_CHARACTERS, STOP_TIMEOUT_S, JavaService

FORMAT_TIMEOUT_S = 60.0  # takes 1 to 2 s
ANSWER_TIMEOUT_S = 5.0
API_VERSIONS = struct.Struct(">hhih")  # key, version, correlation id, no client id

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map={protocol}:{protocol},CONTROLLER:PLAINTEXT
inter.broker.listener.name={protocol}
log.dirs={data}
auto.create.topics.enable=false

# One node has one replica of everything, and few partitions are made sooner.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1

# Members of a group have their partitions at once.
group.initial.rebalance.delay.ms=0
group.consumer.min.heartbeat.interval.ms=1000

# After a kill -9 the controller takes no start for the same broker before its last session is over.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

# A third of the heap by default.
log.cleaner.dedupe.buffer.size=4194304
"""

SECURITY_SETTINGS = """
ssl.keystore.type=PKCS12
ssl.keystore.location={keystore}
ssl.keystore.password={keystore_password}
ssl.truststore.type=PKCS12
ssl.truststore.location={keystore}
ssl.truststore.password={keystore_password}
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{user}" password="{password}";

# It is a client of itself as this user, and of its controller as nobody; others get rights by ACLs.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{user};User:ANONYMOUS
"""

SMALL_JAVA = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # it starts sooner, and is slower for long
)
# As Kafka's own scripts start it.
FAST_JAVA = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:MaxInlineLevel=15",
)


class Kafka(JavaService):
    """A Kafka of one node; topics are made by those who want them.

    The first that is stopped in time leaves an archive of its classes beside the jars, with which
    all others start in a third of the time. It is for the same Java, and the same files, alone.

    Args:
        folder: with its data, settings and log.
        fast: it is to be measured: Java compiles all it can and has the memory that Kafka's own
            scripts give it. It starts without the archive, which is for the other options.
        keystore: PKCS12 file with its certificate; it then serves SASL_SSL with SCRAM-SHA-512 only,
            and otherwise everybody, without encryption.
        keystore_password: of that file.
        jars: of the services.

    Attributes:
        user: when it has a certificate, the only one that it knows, who may do everything.
        password: of that user.
    """

    name: ClassVar[str] = "kafka"
    port_count: ClassVar[int] = 2

    def __init__(
        self,
        folder: str | Path,
        *,
        fast: bool = False,
        keystore: Path | None = None,
        keystore_password: str = "",
        jars: Jars | None = None,
    ) -> None:
        super().__init__(folder, jars=jars)
        self.user = "memq"
        self.password = secrets.token_urlsafe(24)
        self._fast = fast
        self._keystore = keystore
        self._keystore_password = keystore_password

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it with SIGTERM, and with SIGKILL if it does not end in time. May be called again."""
        super().stop(timeout_s)
        if self._new_archive.exists():
            part = self._archive.with_suffix(f".{os.getpid()}")
            shutil.copyfile(self._new_archive, part)  # the folder may be on another disk
            self._new_archive.unlink()
            for old in self.jars.folder.glob(f"{KAFKA.folder}-*.jsa"):
                old.unlink(missing_ok=True)
            part.replace(self._archive)

    def lose(self) -> None:
        """Start again with nothing."""
        self.kill()
        shutil.rmtree(self.folder / "data")
        self.start()

    @property
    def _settings_path(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _archive(self) -> Path:
        files = [Path(self.jars.java(self.name)[-1]), *self._jars()]
        state = repr([(str(path), path.stat().st_mtime_ns) for path in files])
        return self.jars.folder / f"{KAFKA.folder}-{zlib.crc32(state.encode()):08x}.jsa"

    @property
    def _new_archive(self) -> Path:
        return self.folder / "classes.jsa"

    def _prepare(self) -> None:
        data = self.folder / "data"
        self._settings_path.write_text(self._settings(data))
        if not (data / "meta.properties").exists():
            self._format()

    def _settings(self, data: Path) -> str:
        port, controller_port = self._ports
        settings = SETTINGS.format(
            protocol="SASL_SSL" if self._keystore else "PLAINTEXT",
            port=port,
            controller_port=controller_port,
            data=data,
        )
        if self._keystore:
            settings += SECURITY_SETTINGS.format(
                keystore=self._keystore,
                keystore_password=self._keystore_password,
                user=self.user,
                password=self.password,
            )
        return settings

    def _format(self) -> None:
        """Make the empty log of a new cluster."""
        unique = b"\0" + uuid.uuid4().bytes[1:]  # one that began with "-" would be an option
        cluster_id = urlsafe_b64encode(unique).decode().rstrip("=")
        main = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster_id]
        if self._keystore:
            user = f"[name={self.user},password={self.password}]"
            main += ["--add-scram", f"SCRAM-SHA-512={user}"]
        done = subprocess.run(
            [
                *self.jars.java(self.name),
                *self._shared_archive(),
                *self._options(),
                *main,
                "--config",
                str(self._settings_path),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            end = done.stdout[-SHOWN_CHARACTERS:]
            raise ServiceError(f"kafka's format ended with {done.returncode}:\n{end}")

    def _arguments(self) -> list[str]:
        archive = self._shared_archive()
        if not archive and not self._fast:
            archive = [f"-XX:ArchiveClassesAtExit={self._new_archive}"]
        return [*archive, *self._options(), "kafka.Kafka", str(self._settings_path)]

    def _shared_archive(self) -> list[str]:
        if self._fast or not self._archive.exists():
            return []
        return [f"-XX:SharedArchiveFile={self._archive}"]

    def _options(self) -> list[str]:
        """Options of Java, with the class path."""
        return [
            *(FAST_JAVA if self._fast else SMALL_JAVA),
            "-Xlog:cds=off",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            ":".join(map(str, self._jars())),
        ]

    def _jars(self) -> list[Path]:
        """Its jars in the order of the class path, which is that of the archive as well."""
        return sorted(self.jars.get(KAFKA).iterdir())

    def _answers(self) -> bool:
        """Whether it answers an ApiVersions request; it takes none before all of it serves."""
        request = API_VERSIONS.pack(18, 0, 1, -1)
        with ExitStack() as stack:
            connection = socket.create_connection(("127.0.0.1", self.port), ANSWER_TIMEOUT_S)
            stack.enter_context(connection)
            if self._keystore:
                connection = stack.enter_context(encrypted(connection))
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = stack.enter_context(connection.makefile("rb"))
            head = answer.read(10)  # size, correlation id, error code
        return head[4:] == struct.pack(">ih", 1, 0)
