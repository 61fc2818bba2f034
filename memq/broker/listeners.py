"""Listeners: the addresses of a broker, each plain or TLS from its first byte.

The listener of the options `host` and `port` is called `default`; a table `[listeners.NAME]` makes
another. Clients are told the addresses of the listener by which they came, of all brokers. So a
cluster moves to TLS by a second listener on each broker; then clients move; then the first goes.

The files of TLS are looked at when the broker is told to, and once a minute, since watches miss how
Kubernetes swaps them. They are checked before they are used; where they cannot be, the listener
goes on with those before. Who is connected stays so: a context is used at a handshake only.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from memq.core.units import iso_ms
from memq.core.wire.connection import GOODBYE, encode_error
from memq.core.wire.frame import MAGIC
from memq.core.wire.messages import (
    BrokerInfo,
    DescribeClusterAnswer,
    MetadataAnswer,
    Struct,
    TopicAnswer,
    TopicInfo,
)
from memq.errors import ConfigError, MemqError, NotHostedError, TlsError, UnavailableError
from memq.runtime.tls import TlsFiles, check_certificate, server_context
from memq.runtime.tls_transport import TlsLayer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from memq.broker.config import ListenerConfig
    from memq.broker.metrics import Metrics

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 4_096
MAX_HANDSHAKES = 1_000  # at a time: the oldest makes room for the next
LOOK_S = 60.0  # between two looks at the files of TLS
WARN_DAYS = (14, 3)  # before a certificate expires

_SPEAK_TLS = b"".join(
    encode_error(
        GOODBYE,
        GOODBYE,
        TlsError("the broker speaks TLS there: give `ca`, or use the port of a plain listener"),
    )
)


class Listener:
    """One address of the broker.

    Args:
        name: of the listener.
        config: its options.
        metrics: of the broker.
        warn: the log for what clients can cause.
        wall_ms: the time, to see whether certificates are valid.

    Attributes:
        name: as given.
        listens_at: `host:port` of its socket; also while it drains, when it listens no more.
        not_after_s: when its certificate expires, seconds since 1970; 0 without TLS.
    """

    def __init__(
        self,
        name: str,
        config: ListenerConfig,
        *,
        metrics: Metrics,
        warn: Callable[[str, str], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self.listens_at = ""
        self.not_after_s = 0.0
        self._config = config
        self._metrics, self._warn, self._wall_ms = metrics, warn, wall_ms
        self._server: asyncio.Server | None = None
        self._shaking: dict[TlsLayer, None] = {}  # handshakes that have not ended, oldest first
        self._files = TlsFiles(
            config.tls_ca, config.tls_cert, config.tls_key, config.tls_crl, "tls_"
        )
        self._stamps: list[object] = []
        self._tls: ssl.SSLContext | None = None
        self._told_days = 1_000_000

    def __repr__(self) -> str:
        return f"<Listener {self.name} {self.address} [{'TLS' if self._tls else 'plain'}]>"

    @property
    def address(self) -> str:
        """The `host:port` that clients reach it under."""
        return self._config.advertised or self.listens_at

    async def listen(self, accept: Callable[[str], asyncio.BaseProtocol]) -> None:
        """Claim the port, without accepting.

        Raises:
            UnavailableError: the port is taken.
            ConfigError: the files of TLS cannot be used.
        """
        config = self._config
        try:
            server = self._server = await asyncio.get_running_loop().create_server(
                lambda: self._accept(accept),
                config.host,
                config.port,
                backlog=LISTEN_BACKLOG,
                start_serving=False,
            )
        except (OSError, ValueError) as exc:  # of a host that can be no name
            raise UnavailableError(
                f"cannot listen on {config.host}:{config.port}: {exc}; set another port"
            ) from exc
        host, port = server.sockets[0].getsockname()[:2]
        self.listens_at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.check()

    def check(self) -> None:
        """Read the files of TLS, if it has some.

        Raises:
            ConfigError: they cannot be used.
        """
        config = self._config
        self.listens_at = self.listens_at or f"{config.host}:{config.port}"
        if any(self._files[:4]) or config.client_auth != "none":
            self._stamps = [*self._files.stamps()]
            self._tls, self.not_after_s = self._load()

    async def serve(self) -> None:
        """Accept connections from now on."""
        assert self._server is not None  # noqa: S101 - it listens
        await self._server.start_serving()

    def close(self) -> None:
        """Accept no more, and give up handshakes that have not ended."""
        if self._server is not None:
            self._server.close()
        for layer in list(self._shaking):
            layer.abort()

    def _accept(self, accept: Callable[[str], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        served = accept(self.name)
        if self._tls is None:
            return served
        while len(self._shaking) >= MAX_HANDSHAKES:
            next(iter(self._shaking)).abort()
        layer = TlsLayer(self._tls, served, ended=self._shaken, first_bytes=_not_plain)
        self._shaking[layer] = None
        return layer

    def secured(self, protocol: asyncio.BaseProtocol) -> TlsLayer:
        """Put TLS before the protocol of a connection to another port, which bounds their count."""
        assert self._tls is not None  # noqa: S101 - the configuration was checked
        return TlsLayer(self._tls, protocol, ended=self._shaken)

    def _shaken(self, layer: TlsLayer, error: MemqError | None) -> None:
        self._shaking.pop(layer, None)
        if error is None:
            return
        self._metrics.connections_closed.labels("tls").inc()
        place = f"{layer.peer[0]}:{layer.peer[1]}" if isinstance(layer.peer, tuple) else "a client"
        self._warn("tls", f"no TLS with {place} at listener {self.name!r}: {error}")

    # -- the files of TLS -------------------------------------------------------------------

    def look(self, *, now: bool = False) -> None:
        """Use the files of TLS as they are now, if they have changed, or `now`; and say in time
        when the certificate expires.
        """
        if self._tls is None:
            return
        stamps = self._files.stamps()
        if now or stamps != self._stamps:
            try:
                self._tls, self.not_after_s = self._load()
            except ConfigError as exc:  # at the next look again: it may be valid by then
                log.error(  # noqa: TRY400 - expected, and told in full
                    "listener %r: TLS not reloaded, the files before stay in use: %s",
                    self.name,
                    exc,
                )
            else:
                self._stamps = [*stamps]
                log.info("listener %r: TLS reloaded, %s", self.name, self._valid())
        self._warn_of_end()

    def _load(self) -> tuple[ssl.SSLContext, float]:
        context = server_context(self._files, self._config.client_auth)
        host = self.address.rpartition(":")[0].strip("[]")
        if host in ("0.0.0.0", "::"):  # noqa: S104 - it is told to clients as it is
            raise ConfigError(
                f"listener {self.name!r} has TLS and listens on {host}, without advertised: set "
                "that to the name that clients connect to, which its certificate has"
            )
        now_s = self._wall_ms() / 1_000
        return context, check_certificate(context, self._files.cert, host, now_s)

    def _valid(self) -> str:
        return f"valid until {iso_ms(int(self.not_after_s * 1_000))}"

    def _warn_of_end(self) -> None:
        days = int((self.not_after_s - self._wall_ms() / 1_000) // 86_400)
        due = [each for each in WARN_DAYS if days < each < self._told_days]
        if days >= WARN_DAYS[0]:
            self._told_days = 1_000_000
        elif due:
            self._told_days = min(due)
            log.warning("listener %r: its certificate is %s: renew it", self.name, self._valid())


def _not_plain(first: bytes) -> bytes:
    """Tell a client that speaks MemQ without TLS what to change."""
    return _SPEAK_TLS if first.startswith(MAGIC) else b""


# -- what clients of a listener are told --------------------------------------------------------


def translate(header: Struct, own: Mapping[str, str]) -> Struct:
    """Replace the addresses in an answer, which are those of the default listener.

    Args:
        header: of the answer; it is not changed.
        own: the address of the client's listener, by that of the default one of each broker.
    """
    match header:
        case MetadataAnswer():
            return msgspec.structs.replace(
                header,
                brokers=[_broker(each, own) for each in header.brokers],
                topics=[_topic(each, own) for each in header.topics],
            )
        case TopicAnswer():
            return TopicAnswer(topic=_topic(header.topic, own))
        case DescribeClusterAnswer():
            status = header.status
            return msgspec.structs.replace(
                header,
                brokers=[
                    msgspec.structs.replace(each, address=_own(each.address, own))
                    for each in header.brokers
                ],
                status=status
                and msgspec.structs.replace(status, address=_own(status.address, own)),
            )
    return header


def translate_error(error: NotHostedError, own: Mapping[str, str]) -> NotHostedError:
    """Replace the address of the broker to ask, as `translate` does."""
    address = _own(error.address, own)
    return NotHostedError(str(error).replace(error.address, address), address)


def _broker(broker: BrokerInfo, own: Mapping[str, str]) -> BrokerInfo:
    return msgspec.structs.replace(broker, address=_own(broker.address, own))


def _topic(topic: TopicInfo, own: Mapping[str, str]) -> TopicInfo:
    return msgspec.structs.replace(
        topic,
        hosts=[_own(each, own) for each in topic.hosts],
        queue_address=_own(topic.queue_address, own),
    )


def _own(address: str, own: Mapping[str, str]) -> str:
    return own.get(address, address)
