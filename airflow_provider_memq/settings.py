"""What an Airflow connection of type `memq` says, checked.

Host and port name a broker, and the extra field `bootstrap` may name more of them. With a login the
password is that user's; without one it is the token. The extra field `security` says what TLS
needs. Whatever else a connection could hold is refused rather than ignored: an operator who filled
in a field meant something by it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from memq.core.decoding import UNDECODABLE
from memq.core.defaults import DEFAULT_ADMIN_PORT, DEFAULT_PORT
from memq.core.named_values import NO_VALUES, NamedValues, parse_security
from memq.errors import ConfigError, MemqError, UnauthorizedError

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_TYPE = "memq"
DEFAULT_CONN_ID = "memq_default"

# A broker that is restarted is back within 2 s; a wrong address is reported after this.
REQUEST_TIMEOUT_S = 10.0
MAX_REQUEST_TIMEOUT_S = 3600

CLUSTER = re.compile(r"^([a-z0-9._-]+(:\d{1,5})?|\[[0-9a-f:]+\](:\d{1,5})?)$")
"""What a cluster may be called, in URIs of assets and in lineage: a name, or an address."""


class Extra(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The extra fields of a connection; `provider.json` has their labels and descriptions."""

    bootstrap: str = ""
    request_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_REQUEST_TIMEOUT_S)] = (
        REQUEST_TIMEOUT_S
    )
    admin_url: str = ""
    aws_conn_id: str = ""
    cluster: Annotated[str, msgspec.Meta(pattern=CLUSTER.pattern)] = ""
    security: dict[str, str] | str = ""


class ClientSettings(NamedTuple):
    """How to reach a cluster.

    Attributes:
        bootstrap: comma separated `host:port` of some brokers.
        token: credential; empty where the brokers ask for none.
        request_timeout_s: how long brokers are tried before a call fails.
        admin_url: of a broker's admin HTTP, for links; no slash at its end.
        aws_conn_id: connection with which objects in S3 are read; empty for what the machine has.
        cluster: what it is called in lineage, as in the URIs of assets.
        security: what TLS needs, and who logs in; see `memq.client.security`.
    """

    bootstrap: str
    token: str
    request_timeout_s: float
    admin_url: str
    aws_conn_id: str = ""
    cluster: str = ""
    security: NamedValues = NO_VALUES

    def __repr__(self) -> str:
        return f"<ClientSettings {self.bootstrap}>"  # never the token: it may reach a log


def settings_of(connection: Connection) -> ClientSettings:
    """Read the settings in an Airflow connection.

    Raises:
        ConfigError: a field is missing, malformed or has no meaning here.
    """
    conn_id = connection.conn_id
    _check_fields(connection)
    extra = _extra_of(connection)
    brokers = [*_hosts(connection), *filter(None, map(str.strip, extra.bootstrap.split(",")))]
    if not brokers:
        raise ConfigError(
            f"connection {conn_id!r} names no broker: fill in host and port, or the extra field "
            "'bootstrap', such as broker-1:6367,broker-2:6367"
        )
    from memq.client.cluster import parse_bootstrap  # noqa: PLC0415 - loads the client
    from memq.client.security import security_values  # noqa: PLC0415

    try:
        addresses = parse_bootstrap(",".join(brokers))
        security = security_values(_with_login(connection, parse_security(extra.security)))
    except MemqError as exc:
        raise ConfigError(f"connection {conn_id!r}: {exc}") from exc
    admin_url = f"http://{addresses[0].rpartition(':')[0]}:{DEFAULT_ADMIN_PORT}"
    return ClientSettings(
        bootstrap=",".join(addresses),
        token="" if connection.login else connection.password or "",
        request_timeout_s=extra.request_timeout_s,
        admin_url=(extra.admin_url or admin_url).rstrip("/"),
        aws_conn_id=extra.aws_conn_id,
        cluster=extra.cluster or addresses[0].lower(),
        security=security,
    )


def explain(conn_id: str, error: MemqError) -> str:
    """Say an error of a call as a user of Airflow should read it: which connection, what to do."""
    if isinstance(error, UnauthorizedError):
        return f"connection {conn_id!r}: {error}; see its login, password and extra 'security'"
    hint = "; check its host and port, and that a broker runs there" if error.retriable else ""
    return f"connection {conn_id!r}: {error}{hint}"


def _check_fields(connection: Connection) -> None:
    conn_id = connection.conn_id
    if connection.conn_type not in ("", None, CONN_TYPE, "generic"):
        raise ConfigError(
            f"connection {conn_id!r} is of type {connection.conn_type!r}; it must be {CONN_TYPE!r}"
        )
    if connection.login and not connection.password:
        raise ConfigError(
            f"connection {conn_id!r} has a login without a password. A token goes into the "
            "password, in a URI before the @: memq://:TOKEN@host:6367"
        )
    if connection.schema:
        raise ConfigError(
            f"connection {conn_id!r} has a schema or path {connection.schema!r}; it names brokers "
            "only, and each sensor or operator names its topic"
        )


def _with_login(connection: Connection, security: NamedValues) -> NamedValues:
    """Return what security says, with the user and the password of the connection."""
    if not connection.login:
        return security
    if {"user", "password", "password_file"} & {name for name, _ in security}:
        raise ConfigError("a login, and a user or password in 'security': leave out one")
    login = {("user", connection.login), ("password", connection.password or "")}
    return NamedValues(security | login)


def _extra_of(connection: Connection) -> Extra:
    """Decode the extra fields; a form leaves empty ones as null or as an empty text."""
    try:
        given = msgspec.json.decode(connection.extra or "{}", type=dict[str, object])
        filled = {name: value for name, value in given.items() if value not in (None, "")}
        return msgspec.convert(filled, Extra, strict=False)
    except UNDECODABLE as exc:
        raise ConfigError(  # without the text, which may have a password
            f"connection {connection.conn_id!r}: its extra: {exc}. It must be a JSON object of "
            f"{', '.join(Extra.__struct_fields__)}"
        ) from exc


def _hosts(connection: Connection) -> list[str]:
    """List the addresses of the host field, which may name several."""
    port = connection.port or DEFAULT_PORT
    hosts = [host.strip() for host in (connection.host or "").split(",") if host.strip()]
    return [_with_port(host, port) for host in hosts]


def _with_port(host: str, port: int) -> str:
    if host.count(":") > 1 and not host.startswith("["):  # an IPv6 address
        return f"[{host}]:{port}"
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"
