"""What an Airflow connection of type `memq` says, checked.

Host and port name a broker, and the extra field `bootstrap` may name more of them; the password is
the token. Whatever else a connection could hold is refused rather than ignored: an operator who
filled in a field meant something by it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_provider_memq.get_provider_info import (
    CONN_TYPE,
    EXTRAS,
    MAX_REQUEST_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
)
from memq.core.decoding import UNDECODABLE
from memq.core.defaults import DEFAULT_ADMIN_PORT, DEFAULT_PORT
from memq.errors import ConfigError, MemqError, UnauthorizedError

if TYPE_CHECKING:
    from airflow.sdk import Connection

DEFAULT_CONN_ID = "memq_default"

CLUSTER = re.compile(r"[a-z0-9._-]+(:\d{1,5})?|\[[0-9a-f:]+\](:\d{1,5})?")
"""What a cluster may be called, in URIs of assets and in lineage: a name, or an address."""


class ClientSettings(NamedTuple):
    """How to reach a cluster.

    Attributes:
        bootstrap: comma separated `host:port` of some brokers.
        token: credential; empty where the brokers ask for none.
        request_timeout_s: how long brokers are tried before a call fails.
        admin_url: of a broker's admin HTTP, for links; no slash at its end.
        aws_conn_id: connection with which objects in S3 are read; empty for what the machine has.
        cluster: what it is called in lineage, as in the URIs of assets.
    """

    bootstrap: str
    token: str
    request_timeout_s: float
    admin_url: str
    aws_conn_id: str = ""
    cluster: str = ""

    def __repr__(self) -> str:
        return f"<ClientSettings {self.bootstrap}>"  # never the token: it may reach a log


def settings_of(connection: Connection) -> ClientSettings:
    """The settings in an Airflow connection.

    Raises:
        ConfigError: a field is missing, malformed or has no meaning here.
    """
    conn_id = connection.conn_id
    _check_fields(connection)
    extra = _extra_of(connection)
    brokers = _brokers(connection, str(extra.get("bootstrap") or ""))
    if not brokers:
        raise ConfigError(
            f"connection {conn_id!r} names no broker: fill in host and port, or the extra field "
            "'bootstrap', such as broker-1:6367,broker-2:6367"
        )
    from memq.client.cluster import parse_bootstrap  # noqa: PLC0415 - loads the client

    try:
        addresses = parse_bootstrap(",".join(brokers))
    except MemqError as exc:
        raise ConfigError(f"connection {conn_id!r}: {exc}") from exc
    admin_host = addresses[0].rpartition(":")[0]
    return ClientSettings(
        bootstrap=",".join(addresses),
        token=connection.password or "",
        request_timeout_s=_timeout_s(conn_id, extra.get("request_timeout_s")),
        admin_url=str(extra.get("admin_url") or f"http://{admin_host}:{DEFAULT_ADMIN_PORT}").rstrip(
            "/"
        ),
        aws_conn_id=str(extra.get("aws_conn_id") or ""),
        cluster=_cluster(conn_id, str(extra.get("cluster") or "")) or addresses[0].lower(),
    )


def explain(conn_id: str, error: MemqError) -> str:
    """An error of a call as a user of Airflow should read it: which connection, and what to do."""
    if isinstance(error, UnauthorizedError):
        hint = "put the brokers' token into its password"
    elif error.retriable:
        hint = "check its host and port, and that a broker runs there"
    else:
        return f"connection {conn_id!r}: {error}"
    return f"connection {conn_id!r}: {error}; {hint}"


def _check_fields(connection: Connection) -> None:
    conn_id = connection.conn_id
    if connection.conn_type not in ("", None, CONN_TYPE, "generic"):
        raise ConfigError(
            f"connection {conn_id!r} is of type {connection.conn_type!r}; it must be {CONN_TYPE!r}"
        )
    if connection.login:
        raise ConfigError(
            f"connection {conn_id!r} has a login; brokers know none. A token goes into the "
            "password, in a URI before the @: memq://:TOKEN@host:6367"
        )
    if connection.schema:
        raise ConfigError(
            f"connection {conn_id!r} has a schema or path {connection.schema!r}; it names brokers "
            "only, and each sensor or operator names its topic"
        )


def _extra_of(connection: Connection) -> dict[str, Any]:
    if not connection.extra:
        return {}
    try:
        extra = msgspec.json.decode(connection.extra)
    except UNDECODABLE as exc:
        raise ConfigError(f"connection {connection.conn_id!r}: extra is not JSON: {exc}") from exc
    if not isinstance(extra, dict):
        raise ConfigError(f"connection {connection.conn_id!r}: extra must be a JSON object")
    unknown = sorted(set(extra) - set(EXTRAS))
    if unknown:
        raise ConfigError(
            f"connection {connection.conn_id!r}: unknown extra field {unknown[0]!r}; there are "
            f"{', '.join(EXTRAS)}"
        )
    return extra


def _brokers(connection: Connection, bootstrap: str) -> list[str]:
    """Addresses of the host field (which may list several) and of the extra field."""
    port = connection.port or DEFAULT_PORT
    hosts = [host.strip() for host in (connection.host or "").split(",") if host.strip()]
    brokers = [_with_port(host, port) for host in hosts]
    return brokers + [each.strip() for each in bootstrap.split(",") if each.strip()]


def _with_port(host: str, port: int) -> str:
    if host.count(":") > 1 and not host.startswith("["):  # an IPv6 address
        return f"[{host}]:{port}"
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"


def _cluster(conn_id: str, given: str) -> str:
    if given and not CLUSTER.fullmatch(given):
        raise ConfigError(
            f"connection {conn_id!r}: cluster = {given!r}; it must be a name of small letters, "
            "digits, '.', '_' and '-', or host:port, as in the URIs of assets"
        )
    return given


def _timeout_s(conn_id: str, given: object) -> float:
    if given in (None, ""):
        return float(REQUEST_TIMEOUT_S)
    try:
        timeout_s = float(str(given))
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= MAX_REQUEST_TIMEOUT_S:
        raise ConfigError(
            f"connection {conn_id!r}: request_timeout_s = {given!r}; it must be a number of "
            f"seconds above 0, at most {MAX_REQUEST_TIMEOUT_S}"
        )
    return timeout_s
