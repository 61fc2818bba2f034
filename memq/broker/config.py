"""Configuration of a broker: one table of options, read from TOML, environment and flags.

A later source wins over an earlier one: default, file, `MEMQ_…` variable, command-line flag.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec

from memq.core.access.principals import MappingRule, parse_mapping
from memq.core.access.rules import ANY, check_principal
from memq.core.defaults import DEFAULT_ADMIN_PORT, DEFAULT_ASSIGNOR, DEFAULT_HOST, DEFAULT_PORT
from memq.core.named_values import (
    NamedValues,
    parse_queue_options,
    parse_storage_options,
    parse_zookeeper_options,
)
from memq.core.options import Option, defaults, options_of, parse_options
from memq.core.topic import TopicConfig, check_topic_name
from memq.core.units import DAY_MS, GIB, KIB, MIB, MINUTE_MS
from memq.errors import ConfigError, InvalidRequestError
from memq.runtime.log_format import LOG_FORMAT, LogFormat
from memq.zookeeper.options import ZooKeeperOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DEFAULT_LISTENER = "default"
T = TypeVar("T")
ClientAuth = Literal["none", "optional", "required"]
Authentication = Literal["none", "required"]

AWS_PREFIX = "arn:"  # of the names of AWS identities
_ARN = re.compile(r"arn:[a-z-]+:[!-~]{12,1024}")  # STS wants 20 characters or more
_BUCKET = re.compile(r"s3://(?![^/]*--x-s3)[^*?$]+")

ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "-1"}
"""Environment of a broker's process; it must be set before Arrow is loaded. Arrow's allocator gives
freed memory back to the system soon, only to ask for it again with the next Message. A broker needs
what it needed before, and `memory_bytes` bounds that."""


def _texts(option: str) -> Callable[[object], tuple[str, ...]]:
    """Make what reads an option of texts: one, or a list of several."""

    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            return (value,) if value else ()
        if isinstance(value, list | tuple) and all(isinstance(e, str) and e for e in value):
            return tuple(value)
        raise ConfigError(f"{option} must be a text, or a list of texts that are not empty")

    return read


def _parse_superusers(value: object) -> tuple[str, ...]:
    found = _texts("superusers")(value)
    try:
        for each in found:
            check_principal("" if each == ANY else each)
    except InvalidRequestError as exc:
        raise ConfigError(f"superusers: {exc}") from exc
    return found


class ListenerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One address of a broker.

    Attributes:
        host: Address to listen on; 0.0.0.0 for every interface.
        port: Port of the protocol; 0 for any free one.
        advertised: host:port for clients; empty for the listening address.
        tls_cert: File with the certificate, then those of intermediate CAs, in PEM. Switches TLS
            on. Its names must have the host of `advertised`.
        tls_key: File with its private key, in PEM, not encrypted.
        tls_ca: File with the CA of clients' certificates, in PEM.
        tls_crl: File with revoked certificates of clients, in PEM.
        client_auth: Whether clients may have, or must have, certificates of their own.
        authentication: Whether clients must say who they are: by a certificate, a token, or a
            user's password. Then rules decide what they may do.
    """

    host: Annotated[str, Option("text", DEFAULT_HOST)]
    port: Annotated[int, Option("count", DEFAULT_PORT, 0, 65_535)]
    advertised: Annotated[str, Option("text", "")]
    tls_cert: Annotated[str, Option("text", "")]
    tls_key: Annotated[str, Option("text", "")]
    tls_ca: Annotated[str, Option("text", "")]
    tls_crl: Annotated[str, Option("text", "")]
    client_auth: Annotated[ClientAuth, Option("text", "none", choices=get_args(ClientAuth))]
    authentication: Annotated[
        Authentication, Option("text", "none", choices=get_args(Authentication))
    ]


LISTENER_OPTIONS = options_of(ListenerConfig)


class IssuerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who signs tokens of clients, by OpenID Connect.

    Attributes:
        issuer: Its https URL, as tokens have it in iss.
        audience: What tokens must have in aud.
        claim: Claim that names the user.
        prefix: Put before that name, as in "k8s:"; each issuer needs another one. Without one, its
            users may have the names of users and superusers here.
        keys: https URL of its keys (JWKS); empty to ask the issuer.
    """

    issuer: Annotated[str, Option("text", "")]
    audience: Annotated[str, Option("text", "")]
    claim: Annotated[str, Option("text", "sub")]
    prefix: Annotated[str, Option("text", "")]
    keys: Annotated[str, Option("text", "")]


ISSUER_OPTIONS = options_of(IssuerConfig)


class AwsIamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """AWS identities of clients.

    Attributes:
        audience: What clients give as aws_iam; a name that other systems do not have.
        accounts: Numbers of the accounts whose users and roles get in; one, or a list.
        regions: Regions where AWS is asked, such as eu-west-1; one, or a list. A client takes the
            one of its environment.
        endpoint: https URL of STS; empty for those of the regions. Clients need the same in
            AWS_ENDPOINT_URL_STS.
    """

    audience: Annotated[str, Option("text", "")]
    accounts: Annotated[tuple[str, ...], Option("text", "", read=_texts("accounts"))]
    regions: Annotated[tuple[str, ...], Option("text", "", read=_texts("regions"))]
    endpoint: Annotated[str, Option("text", "")]


AWS_IAM_OPTIONS = options_of(AwsIamConfig)


class BrokerConfig(ListenerConfig, frozen=True, kw_only=True):
    """Configuration of one broker.

    Attributes:
        data_dir: Folder of topics, notifications and Batches.
        storage: URI for Batches: file:///mnt/memq, s3://bucket/prefix, gs://bucket/prefix or
            az://container/prefix; empty for the folder objects in data_dir.
        storage_options: Options of the object store, as region=eu-west-1,profile=logs or a table;
            see object storage. Others come from the environment.
        credentials_role: ARN of the role in whose name readers get credentials for the objects of
            one topic; see security. Empty for no credentials.
        credentials_duration_ms: How long such credentials are good; more than 1h only where the
            role allows it, and brokers have keys of a user.
        credentials_endpoint: URL of the STS that gives them, for S3-compatible servers; empty for
            AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL, or AWS.
        queue: Queue for notifications: kafka://host:port,host:port; empty for the queue in
            data_dir.
        queue_options: Settings of Kafka's client, as security.protocol=SSL or a table; see Kafka as
            the queue.
        zookeeper: ZooKeeper of the cluster: zk-1:2181,zk-2:2181/memq; empty for a single broker.
        zookeeper_options: How to reach ZooKeeper, as session_timeout=6s,user=memq or a table; see
            clusters.
        zone: Zone of this broker, such as eu-west-1a. Clients prefer brokers of their zone;
            cross-zone bytes are counted.
        rack: Failure domain within the zone; write partitions of a topic are spread over racks.
        capacity: Weight in load balancing: a broker with 2 gets twice the load of one with 1.
        role: read: owns no write partitions, and clients prefer it for reads.
        assignor: Assigns write partitions to brokers: balanced, or your entry point in
            memq.assignors. The same on every broker.
        cluster_id: Name of the cluster; part of every object's key.
        broker_id: Name of this broker, unique in the cluster.
        admin_port: Port of /health, /ready, /status and /metrics.
        admin_tls: Serve them over TLS, with the certificate of tls_cert.
        console: Serve the console, pages for operators, at /console/ of the admin HTTP.
        console_ca: File with the CA of brokers' certificates, in PEM, by which the console knows
            them. Empty for those of the operating system, and this broker's own certificate.
        token: Credential that clients must show; in the file it may be a list. A name before it, as
            in "alice 7f3a", makes its holder User:alice. Empty asks for none.
        token_file: File with one token a line, instead of `token`; reloaded on SIGHUP.
        superusers: Principals that may do everything, such as User:admin; in the file it may be a
            list.
        certificate_principals: Rules that make principals of certificates, such as
            RULE:spiffe://prod/(.*)/$1/; in the file it may be a list. Empty takes the name as it
            is.
        access_log: File for lines of JSON: who got in or did not, who was denied, who changed what.
            Empty for none.
        insecure: Start though a listener that other machines reach lets in everybody.
        memory_bytes: Memory for Messages between socket and storage. At the limit the broker stops
            reading from producers.
        max_connections: Open connections; further ones are closed at once.
        max_body_bytes: Largest body of a frame; a topic's message_bytes may be less.
        handshake_timeout_ms: Time for a new connection to say who it is before it is closed.
        stall_timeout_ms: A connection without progress inside a frame is closed after this time;
            when memory is short, after a tenth of it.
        park_timeout_ms: How long a Message waits for room in its write partition; then its producer
            is told to retry.
        upload_threads: Parallel uploads, over all topics.
        drain_timeout_ms: On SIGTERM: time to store and ack what was accepted.
        drain_delay_ms: On SIGTERM, before that: time in which /ready already says 503 and all is
            still served, so that load balancers send nothing new.
        retention_interval_ms: How often expired notifications and Batches are removed.
        backup_interval_ms: How often offsets, groups, topics and users are backed up into the
            storage; 0s for never.
        orphan_interval_ms: How often objects without a notification are searched. They are
            reported, and deleted when older than their topic's retention.
        auto_create_topics: Create a topic with default options when a producer first asks for it.
        log_level: Lowest level of log lines.
        log_format: json: one object per line, with time, level, logger and message.
        topics: topics that are created at start where they do not exist.
        listeners: more addresses, by name.
        oidc: who signs tokens, by name.
        aws_iam: whose AWS identities get in.
    """

    data_dir: Annotated[str, Option("text", "./memq-data")]
    storage: Annotated[str, Option("text", "")]
    storage_options: Annotated[NamedValues, Option("text", "", read=parse_storage_options)]
    credentials_role: Annotated[str, Option("text", "")]
    credentials_duration_ms: Annotated[int, Option("duration", "1h", 900_000, 43_200_000)]
    credentials_endpoint: Annotated[str, Option("text", "")]
    queue: Annotated[str, Option("text", "")]
    queue_options: Annotated[NamedValues, Option("text", "", read=parse_queue_options)]
    zookeeper: Annotated[str, Option("text", "")]
    zookeeper_options: Annotated[NamedValues, Option("text", "", read=parse_zookeeper_options)]
    zone: Annotated[str, Option("text", "")]
    rack: Annotated[str, Option("text", "")]
    capacity: Annotated[int, Option("count", 1, 1, 1_000_000)]
    role: Annotated[str, Option("text", "all", choices=("all", "read"))]
    assignor: Annotated[str, Option("text", DEFAULT_ASSIGNOR)]
    cluster_id: Annotated[str, Option("text", "memq")]
    broker_id: Annotated[str, Option("text", "broker-1")]
    admin_port: Annotated[int, Option("count", DEFAULT_ADMIN_PORT, 0, 65_535)]
    admin_tls: Annotated[bool, Option("flag", default=False)]
    console: Annotated[bool, Option("flag", default=True)]
    console_ca: Annotated[str, Option("text", "")]
    token: Annotated[tuple[str, ...], Option("text", "", read=_texts("token"))]
    token_file: Annotated[str, Option("text", "")]
    superusers: Annotated[tuple[str, ...], Option("text", "", read=_parse_superusers)]
    certificate_principals: Annotated[
        tuple[MappingRule, ...], Option("text", "", read=parse_mapping)
    ]
    access_log: Annotated[str, Option("text", "")]
    insecure: Annotated[bool, Option("flag", default=False)]
    memory_bytes: Annotated[int, Option("size", "512MiB", 8 * MIB, 64 * GIB)]
    max_connections: Annotated[int, Option("count", 15_000, 1, 1_000_000)]
    max_body_bytes: Annotated[int, Option("size", "64MiB", 64 * KIB, 256 * MIB)]
    handshake_timeout_ms: Annotated[int, Option("duration", "5s", 100, 10 * MINUTE_MS)]
    stall_timeout_ms: Annotated[int, Option("duration", "10s", 100, 10 * MINUTE_MS)]
    park_timeout_ms: Annotated[int, Option("duration", "10s", 10, 10 * MINUTE_MS)]
    upload_threads: Annotated[int, Option("count", 16, 1, 256)]
    drain_timeout_ms: Annotated[int, Option("duration", "30s", 0, 10 * MINUTE_MS)]
    drain_delay_ms: Annotated[int, Option("duration", "0s", 0, 10 * MINUTE_MS)]
    retention_interval_ms: Annotated[int, Option("duration", "1m", 100, DAY_MS)]
    backup_interval_ms: Annotated[int, Option("duration", "10s", 0, DAY_MS)]
    orphan_interval_ms: Annotated[int, Option("duration", "1d", 100, 30 * DAY_MS)]
    auto_create_topics: Annotated[bool, Option("flag", default=False)]
    log_level: Annotated[str, Option("text", "info", choices=("debug", "info", "warning", "error"))]
    log_format: Annotated[LogFormat, LOG_FORMAT]
    topics: tuple[TopicConfig, ...] = ()
    listeners: dict[str, ListenerConfig] = {}
    oidc: dict[str, IssuerConfig] = {}
    aws_iam: AwsIamConfig | None = None

    def __repr__(self) -> str:
        return f"<BrokerConfig {self.broker_id} [{self.cluster_id}]>"  # others may be secret

    def all_listeners(self) -> dict[str, ListenerConfig]:
        """Return the listeners by name, with the one of `host` and `port`."""
        return {DEFAULT_LISTENER: self, **self.listeners}

    @classmethod
    def create(cls, options: Mapping[str, object] | None = None, **more: object) -> BrokerConfig:
        """Make a configuration from human option values; `more` wins over `options`.

        Raises:
            ConfigError: an option is unknown, malformed or out of its limits.
        """
        given = dict(options or {})
        topics = _topics(given.pop("topics", {}))
        listeners = _listeners(given.pop("listeners", {}))
        aws_iam = _aws_iam(given.pop("aws_iam", None))
        oidc = _issuers(given.pop("oidc", {}), aws=aws_iam is not None)
        fields: dict[str, Any] = defaults(BROKER_OPTIONS)
        fields |= parse_options(BROKER_OPTIONS, given | more)
        if not fields["data_dir"]:
            raise ConfigError("data_dir is empty; name a folder, such as ./memq-data")
        for name in ("cluster_id", "broker_id"):
            try:
                check_topic_name(fields[name])
            except InvalidRequestError as exc:
                raise ConfigError(str(exc).replace("topic name", name, 1)) from exc
        if fields["token"] and fields["token_file"]:
            raise ConfigError("token and token_file are both given; leave out one")
        if fields["admin_tls"] and not fields["tls_cert"]:
            raise ConfigError("admin_tls without tls_cert and tls_key: name the files of both")
        _check_cluster(fields)
        config = cls(topics=topics, listeners=listeners, oidc=oidc, aws_iam=aws_iam, **fields)
        _check_exposure(config)
        _check_credentials(config)
        return config


BROKER_OPTIONS = options_of(BrokerConfig)
"""Every option of a broker but `topics`, `listeners`, `oidc` and `aws_iam`, tables of its file."""


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


def _check_exposure(config: BrokerConfig) -> None:
    """Refuse to let in everybody on a listener that other machines reach.

    Raises:
        ConfigError: naming it, and the ways out.
    """
    tokens = bool(config.token or config.token_file)
    for name, listener in config.all_listeners().items():
        secured = "required" in (listener.authentication, listener.client_auth)
        secret = tokens and bool(listener.tls_cert)  # without TLS it is read by others
        if not (secured or secret or config.insecure or _is_loopback(listener.host)):
            raise ConfigError(
                f"listener {name!r} on {listener.host} is reached by other machines and asks "
                "nobody who they are: set authentication = required, or client_auth = required, "
                "or a token with TLS; or insecure = true, if the network lets in only friends"
            )


def is_safe_url(url: str) -> bool:
    """Return whether nobody in between can change what comes from there."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or (
            parts.scheme == "http" and _is_loopback(parts.hostname or "")
        )
    except ValueError:  # of a host in brackets that is none
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_cluster(fields: Mapping[str, Any]) -> None:
    """Refuse a broker of a cluster that shares less than all with the others.

    Raises:
        ConfigError: naming what is missing.
    """
    if not fields["zookeeper"]:
        if fields["role"] != "all":
            raise ConfigError(
                f"role = {fields['role']!r} without zookeeper: a broker that governs itself has "
                "all topics; name the ZooKeeper of its cluster"
            )
        return
    ZooKeeperOptions.read(fields["zookeeper"], fields["zookeeper_options"])
    if not fields["queue"]:
        raise ConfigError(
            "zookeeper without queue: the brokers of a cluster share one Kafka; set "
            "queue = kafka://host:port"
        )
    if not fields["storage"]:
        raise ConfigError(
            "zookeeper without storage: the brokers of a cluster share one storage; set it to a "
            "bucket, such as s3://bucket/prefix, or to a file system that all of them mount"
        )


def _check_credentials(config: BrokerConfig) -> None:
    """Refuse to hand out credentials to anybody, or for what no policy can tell apart.

    Raises:
        ConfigError: naming the values, and what is expected.
    """
    role, storage = config.credentials_role, config.storage
    if not role:
        return
    if not (_ARN.fullmatch(role) and _BUCKET.fullmatch(storage)):
        expected = "an ARN, and s3://BUCKET/PREFIX that is no directory bucket"
        raise ConfigError(
            f"credentials_role = {role!r}, storage = {storage!r}: expected {expected}"
        )
    if all(each.authentication != "required" for each in config.all_listeners().values()):
        raise ConfigError(
            "credentials_role without authentication: anybody could read the bucket; set "
            "authentication = required"
        )


def _listeners(given: object) -> dict[str, ListenerConfig]:
    return {name: _listener(name, each) for name, each in _tables("listeners", given).items()}


def _listener(name: str, options: object) -> ListenerConfig:
    if name == DEFAULT_LISTENER:
        raise ConfigError(f"listeners.{name}: that is the listener of `host` and `port`")
    found = _table(f"listeners.{name}", options, ListenerConfig, LISTENER_OPTIONS)
    if isinstance(options, dict) and "port" not in options:
        raise ConfigError(f"listeners.{name}: port is missing; each listener has its own")
    return found


def _issuers(given: object, *, aws: bool) -> dict[str, IssuerConfig]:
    found: dict[str, IssuerConfig] = {}
    prefixes: dict[str, str] = {}
    for name, options in _tables("oidc", given).items():
        issuer = _table(f"oidc.{name}", options, IssuerConfig, ISSUER_OPTIONS)
        for url in (issuer.issuer, issuer.keys or issuer.issuer):
            if not is_safe_url(url):
                raise ConfigError(f"oidc.{name}: {url!r}: issuer and keys must be https URLs")
        if not (issuer.audience and issuer.claim):
            raise ConfigError(f"oidc.{name}: audience is missing, or claim is empty")
        for other, prefix in [("aws_iam", AWS_PREFIX)] * aws + [*prefixes.items()]:
            if issuer.prefix.startswith(prefix) or prefix.startswith(issuer.prefix):
                raise ConfigError(
                    f"oidc.{name}: prefix {issuer.prefix!r} and {prefix!r} of {other}: neither may "
                    "begin with the other, or users could be confused"
                )
        prefixes[f"oidc.{name}"] = issuer.prefix
        found[name] = issuer
    return found


def _aws_iam(given: object) -> AwsIamConfig | None:
    if given is None:
        return None
    found = _table("aws_iam", given, AwsIamConfig, AWS_IAM_OPTIONS)
    if not (found.audience and found.accounts and found.regions):
        raise ConfigError("aws_iam: audience, accounts and regions are needed, and one is missing")
    if found.endpoint and not is_safe_url(found.endpoint):
        raise ConfigError(f"aws_iam: endpoint = {found.endpoint!r}: it must be an https URL")
    return found


def _tables(option: str, given: object) -> dict[str, object]:
    if not isinstance(given, dict):
        raise ConfigError(f"{option}: write a table [{option}.NAME] for each, with its options")
    return given


def _table(name: str, given: object, kind: Callable[..., T], options: tuple[Option, ...]) -> T:
    """Read a table of options, and make what has them.

    Raises:
        ConfigError: naming the table.
    """
    if not isinstance(given, dict):
        raise ConfigError(f"{name}: expected a table of options, got {given!r}")
    try:
        return kind(**defaults(options) | parse_options(options, given))
    except ConfigError as exc:
        raise ConfigError(f"{name}: {exc}") from exc


def _topics(given: object) -> tuple[TopicConfig, ...]:
    return tuple(_topic(name, options) for name, options in _tables("topics", given).items())


def _topic(name: str, options: object) -> TopicConfig:
    if not isinstance(options, dict):
        raise ConfigError(f"topics.{name}: expected a table of options, got {options!r}")
    if "schema" in options:
        raise ConfigError(
            f"topics.{name}: a schema is Arrow, not text; use `memq topic create --schema FILE`"
        )
    try:
        return TopicConfig.create(name, **options)
    except (ConfigError, InvalidRequestError) as exc:
        raise ConfigError(f"topics.{name}: {exc}") from exc
