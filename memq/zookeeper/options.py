"""How a ZooKeeper is reached."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from memq.core.governor.coordination import check_path
from memq.core.named_values import NO_VALUES
from memq.core.options import Option, options_of, parse_options
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    import ssl

    from memq.core.named_values import NamedValues

DEFAULT_PORT = 2181
DEFAULT_SESSION_TIMEOUT_MS = 18_000  # Kafka's; nine ticks of a ZooKeeper as it comes
DEFAULT_REQUEST_TIMEOUT_MS = 10_000
MIN_TIMEOUT_MS = 500  # shorter, a pause of the garbage collector ends sessions

_SERVER = re.compile(r"(?P<host>[^\s:/\[\],]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_DURATION = Option("duration", None, low=MIN_TIMEOUT_MS)
_TEXT = Option("text", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperOptions:
    """How a ZooKeeper is reached, and who we are there.

    Attributes:
        servers: addresses and the root of all our paths, such as `zk1:2181,zk2:2181/memq`; a root
            that is not there is made.
        session_timeout_ms: after so long without a word from us our ephemerals go. The servers may
            agree to another one; by default they have a tick of 2 s, and agree to 2 to 20 ticks.
        request_timeout_ms: every call ends within it.
        user: with `password`, a digest identity; what we make belongs to it alone. Without one,
            everybody may read and change it.
        password: of the user.
        tls: whether connections are encrypted; implied by the options below.
        ca_certificate: PEM file of the authorities that servers are checked against; those of the
            system by default.
        client_certificate: PEM file of ours, with the chain.
        client_key: PEM file of its key; not needed when it is in the same file.
    """

    servers: str
    session_timeout_ms: Annotated[int, _DURATION] = DEFAULT_SESSION_TIMEOUT_MS
    request_timeout_ms: Annotated[int, _DURATION] = DEFAULT_REQUEST_TIMEOUT_MS
    user: Annotated[str, _TEXT] = ""
    password: Annotated[str, _TEXT] = field(default="", repr=False)
    tls: Annotated[bool, Option("flag", default=False)] = False
    ca_certificate: Annotated[str, _TEXT] = ""
    client_certificate: Annotated[str, _TEXT] = ""
    client_key: Annotated[str, _TEXT] = ""

    def __post_init__(self) -> None:
        self.addresses()
        self.root()
        for option in options_of(ZooKeeperOptions):
            option.check(getattr(self, option.field))
        if bool(self.user) != bool(self.password) or ":" in self.user:
            raise ConfigError(
                f"user = {self.user!r}: a user of ZooKeeper has a password, and no ':' in its name"
            )
        if self.client_key and not self.client_certificate:
            raise ConfigError(f"client_key = {self.client_key!r} without a client_certificate")

    @classmethod
    def read(cls, servers: str, values: NamedValues = NO_VALUES) -> ZooKeeperOptions:
        """Parse these options as people write them: `session_timeout=6s,user=memq,password=secret`.

        Args:
            servers: as above.
            values: the other attributes; durations have their unit in the value, not in the name.

        Raises:
            ConfigError: a name is unknown, or a value makes no sense.
        """
        try:
            given = parse_options(options_of(cls), dict(values))
        except ConfigError as exc:
            raise ConfigError(f"zookeeper_options: {exc}") from exc
        return cls(servers=servers, **given)

    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server.

        Raises:
            ConfigError: one is malformed.
        """
        found = []
        for text in self.servers.partition("/")[0].split(","):
            match = _SERVER.fullmatch(text.strip())
            port = int(match["port"] or DEFAULT_PORT) if match else 0
            if match is None or not 0 < port < 1 << 16:
                raise ConfigError(
                    f"servers = {self.servers!r}: {text!r} is no address of a ZooKeeper; write "
                    "them like zk1:2181,zk2:2181/memq"
                )
            found.append((match["host"].strip("[]"), port))
        return found

    def root(self) -> str:
        """Return what all paths begin with, without a slash at its end: `/memq`, or nothing.

        Raises:
            ConfigError: it is malformed.
        """
        path = "/" + self.servers.partition("/")[2].rstrip("/")
        try:
            return check_path(path).rstrip("/")
        except InvalidRequestError as exc:
            raise ConfigError(f"servers = {self.servers!r}: {exc}") from exc

    def tls_context(self) -> ssl.SSLContext | None:
        """Make the TLS context of connections; None for plain ones.

        Raises:
            ConfigError: a file cannot be read, or is not what it should be.
        """
        if not (self.tls or self.ca_certificate or self.client_certificate):
            return None
        import ssl  # noqa: PLC0415 - options are read by commands that only print help

        try:
            context = ssl.create_default_context(cafile=self.ca_certificate or None)
            if self.client_certificate:
                context.load_cert_chain(self.client_certificate, self.client_key or None)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigError(
                f"ca_certificate = {self.ca_certificate!r}, client_certificate = "
                f"{self.client_certificate!r}, client_key = {self.client_key!r}: not usable: {exc}"
            ) from exc
        return context
