"""Configuration of a broker: one table of options, read from TOML, environment and flags.

A later source wins over an earlier one: default, file, `MEMQ_…` variable, command-line flag.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from memq.core.options import Option, defaults, parse_options
from memq.core.topic import TopicConfig, check_topic_name
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_SECOND, _MINUTE, _DAY = 1_000, 60_000, 86_400_000

DEFAULT_PORT = 6367  # M-E-M-Q on a phone pad
DEFAULT_ADMIN_PORT = 6368

ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "-1"}
"""Environment of a broker's process; it must be set before Arrow is loaded. Arrow's allocator gives
freed memory back to the system soon, only to ask for it again with the next Message. A broker needs
what it needed before, and `memory_bytes` bounds that."""

BROKER_OPTIONS = (
    Option("data_dir", "text", "./memq-data", "Where topics, notifications and Batches are kept."),
    Option(
        "storage",
        "text",
        "",
        "URI of the storage that Batches go to, such as file:///mnt/memq; empty for the folder "
        "objects in data_dir.",
    ),
    Option("cluster_id", "text", "memq", "Name of the cluster; it is part of every object's key."),
    Option("broker_id", "text", "broker-1", "Name of this broker, unique in the cluster."),
    Option("host", "text", "127.0.0.1", "Address to listen on; 0.0.0.0 for every interface."),
    Option("port", "count", DEFAULT_PORT, "Port of the protocol; 0 for any free one.", 0, 65_535),
    Option(
        "advertised",
        "text",
        "",
        "host:port under which clients reach this broker; empty for where it listens.",
    ),
    Option(
        "admin_port",
        "count",
        DEFAULT_ADMIN_PORT,
        "Port of /health, /ready and /metrics.",
        0,
        65_535,
    ),
    Option("token", "text", "", "Credential that clients must show; empty asks for none."),
    Option(
        "memory_bytes",
        "size",
        "512MiB",
        "Most that Messages may take on their way from socket to storage. At the limit the broker "
        "stops reading from producers.",
        8 * _MIB,
        64 * _GIB,
    ),
    Option(
        "max_connections",
        "count",
        15_000,
        "Connections served at a time; further ones are closed at once.",
        1,
        1_000_000,
    ),
    Option(
        "max_body_bytes",
        "size",
        "64MiB",
        "Largest body of a frame; a topic's message_bytes may be less.",
        64 * _KIB,
        256 * _MIB,
    ),
    Option(
        "handshake_timeout",
        "duration",
        "10s",
        "A connection that has not said who it is by then is closed.",
        100,
        10 * _MINUTE,
    ),
    Option(
        "stall_timeout",
        "duration",
        "10s",
        "A connection that stops in the middle of a frame for this long is closed; when memory is "
        "short, after a tenth of it.",
        100,
        10 * _MINUTE,
    ),
    Option(
        "park_timeout",
        "duration",
        "10s",
        "How long a Message waits for a place in its write partition before its producer is told "
        "to try again.",
        10,
        10 * _MINUTE,
    ),
    Option(
        "upload_threads",
        "count",
        16,
        "Batches that are written to storage at a time, over all topics.",
        1,
        256,
    ),
    Option(
        "drain_timeout",
        "duration",
        "30s",
        "On SIGTERM: how long to wait for what was accepted to be stored and acked.",
        0,
        10 * _MINUTE,
    ),
    Option(
        "retention_interval",
        "duration",
        "1m",
        "How often expired notifications and Batches are looked for.",
        100,
        _DAY,
    ),
    Option(
        "orphan_interval",
        "duration",
        "1h",
        "How often objects that no notification names are looked for, first at start. They are "
        "reported, and deleted when they are older than their topic's retention.",
        100,
        30 * _DAY,
    ),
    Option(
        "auto_create_topics",
        "flag",
        False,
        "Create a topic with default options when a producer first asks for it.",
    ),
    Option(
        "log_level",
        "text",
        "info",
        "Least level of log lines.",
        choices=("debug", "info", "warning", "error"),
    ),
)


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another broker and the topics it hosts, for brokers that share no Governor.

    Attributes:
        id: its broker id.
        address: `host:port` that clients reach it under.
        topics: what it hosts; requests for these are redirected there.
    """

    id: str
    address: str
    topics: list[str] = []


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one broker; what each field means stands in `BROKER_OPTIONS`.

    Attributes:
        peers: other brokers and what they host.
        topics: topics that are created at start where they do not exist.
    """

    data_dir: str
    storage: str
    cluster_id: str
    broker_id: str
    host: str
    port: int
    advertised: str
    admin_port: int
    token: str
    memory_bytes: int
    max_connections: int
    max_body_bytes: int
    handshake_timeout_ms: int
    stall_timeout_ms: int
    park_timeout_ms: int
    upload_threads: int
    drain_timeout_ms: int
    retention_interval_ms: int
    orphan_interval_ms: int
    auto_create_topics: bool
    log_level: str
    peers: tuple[Peer, ...] = ()
    topics: tuple[TopicConfig, ...] = ()

    @classmethod
    def create(cls, options: Mapping[str, object] | None = None, **more: object) -> BrokerConfig:
        """A configuration from human option values; `more` wins over `options`.

        Raises:
            ConfigError: an option is unknown, malformed or out of its limits.
        """
        given = dict(options or {})
        peers = _peers(given.pop("peers", []))
        topics = _topics(given.pop("topics", {}))
        fields: dict[str, Any] = defaults(BROKER_OPTIONS)
        fields |= parse_options(BROKER_OPTIONS, given | more)
        for name in ("cluster_id", "broker_id"):
            try:
                check_topic_name(fields[name])
            except InvalidRequestError as exc:
                raise ConfigError(str(exc).replace("topic name", name, 1)) from exc
        return cls(peers=peers, topics=topics, **fields)


def load_file(path: Path) -> dict[str, object]:
    """Options from a TOML file.

    Raises:
        ConfigError: the file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as exc:
        raise ConfigError(f"cannot read configuration {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not TOML: {exc}") from exc


def _peers(given: object) -> tuple[Peer, ...]:
    try:
        return tuple(msgspec.convert(given, list[Peer]))
    except msgspec.ValidationError as exc:
        raise ConfigError(f"peers: {exc}; write [[peers]] with id, address and topics") from exc


def _topics(given: object) -> tuple[TopicConfig, ...]:
    if not isinstance(given, dict):
        raise ConfigError("topics: write a table [topics.NAME] for each, with its options")
    return tuple(_topic(name, options) for name, options in given.items())


def _topic(name: str, options: object) -> TopicConfig:
    if not isinstance(options, dict):
        raise ConfigError(f"topics.{name}: expected a table of options, got {options!r}")
    if "schema" in options:
        raise ConfigError(
            f"topics.{name}: a schema is Arrow and no text; use `memq topic create --schema FILE`"
        )
    try:
        return TopicConfig.create(name, **options)
    except (ConfigError, InvalidRequestError) as exc:
        raise ConfigError(f"topics.{name}: {exc}") from exc
