"""What all operators of one topic have in common."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator

from airflow_provider_memq.links import MemqTopicLink
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from memq.core.units import parse_duration_ms, parse_size_bytes
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from memq.client.cluster import Cluster

T = TypeVar("T")


def ask_brokers(conn_id: str, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """Ask the brokers of a connection, and wait for the answer.

    Raises:
        MemqError: what `work` raises; brokers that do not answer are tried until the deadline.
    """
    from airflow_provider_memq.hooks.memq import MemqHook  # noqa: PLC0415 - DAGs parse sooner
    from airflow_provider_memq.published import ask  # noqa: PLC0415 - likewise

    return ask(MemqHook(conn_id).settings(), work)


class MemqTopicOperator(BaseOperator):
    """Base of the operators that ask the brokers about one topic.

    Args:
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).
    """

    template_fields: Sequence[str] = ("topic", "memq_conn_id")
    operator_extra_links = (MemqTopicLink(),)
    ui_color = "#d7e8fa"

    def __init__(self, *, topic: str, memq_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.memq_conn_id = memq_conn_id

    def ask(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Ask the brokers of the connection, and wait for the answer."""
        return ask_brokers(self.memq_conn_id, work)


def number_of(name: str, value: object, default: int) -> int:
    """A count, also as the text that a template makes of it; nothing given is the default.

    Raises:
        ConfigError: it is no whole number.
    """
    text = str(value).strip()
    if value is None or text in ("", "None"):
        return default
    if not text.isdecimal():
        raise ConfigError(f"{name} = {value!r}: must be a whole number")
    return int(text)


def size_of(name: str, value: object, default: int) -> int:
    """Bytes: a number, or a text such as "64MiB"."""
    text = str(value).strip()
    return (
        number_of(name, value, default)
        if not text[-1:].isalpha() or text == "None"
        else (parse_size_bytes(text))
    )


def duration_of(value: str | None, default: int) -> int:
    """Milliseconds of a text such as "10m"; nothing given is the default."""
    return default if value in (None, "", "None") else parse_duration_ms(str(value))


def flag_of(name: str, value: object) -> bool:
    """A flag, also as the text that a template makes of it.

    Raises:
        ConfigError: it is neither true nor false.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} = {value!r}: must be true or false")
    return text == "true"


def time_of(name: str, value: object) -> int | None:
    """Milliseconds since 1970 UTC of a time or its ISO text; None when there is none.

    Raises:
        ConfigError: it is no time, or has no time zone.
    """
    if value is None or str(value).strip() in ("", "None"):
        return None
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
    except ValueError as exc:
        raise ConfigError(
            f"{name} = {value!r}: must be a time such as 2026-01-02T03:00:00+00:00"
        ) from exc
    if at.tzinfo is None:
        raise ConfigError(f"{name} = {value!r} has no time zone; add one, such as +00:00")
    return round(at.timestamp() * 1000)


def shown(time_ms: int | None) -> str | None:
    """A time as ISO text in UTC."""
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return int(time.time() * 1000)
