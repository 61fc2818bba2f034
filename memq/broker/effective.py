"""The configuration that a broker really has, as people may see it: what is secret is `***`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from memq.broker.config import BrokerConfig
from memq.broker.listeners import Listener
from memq.broker.metrics import Metrics
from memq.broker.tokens import Tokens
from memq.core.named_values import NamedValues
from memq.core.options import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.core.access.principals import MappingRule
    from memq.runtime.system import Runtime

HIDDEN = "***"

# More than is secret: of options that are handed on nobody knows all names.
_SECRET = re.compile(r"secret|token|key|pass|sas|sig|cred|pem|jaas|auth|conn", re.IGNORECASE)
_USER_OF_URL = re.compile(r"//[^/@\s]*@")


def shown_options(config: BrokerConfig) -> dict[str, str]:
    """Return each option, those of tables under their path, with its value as people write it."""
    return dict(_shown(config, ""))


def _shown(table: Any, path: str) -> Iterator[tuple[str, str]]:
    for row in options_of(type(table)):
        value = getattr(table, row.field)
        if row.name == "token":
            text = HIDDEN if value else ""
        elif isinstance(value, NamedValues):
            text = ",".join(f"{k}={HIDDEN if _SECRET.search(k) else v}" for k, v in sorted(value))
        elif isinstance(value, tuple):
            text = ",".join(map(_text, value))
        else:
            text = row.show(value)
        yield path + row.name, _USER_OF_URL.sub(f"//{HIDDEN}@", text)
    if isinstance(table, BrokerConfig):
        yield "topics", ",".join(each.name for each in table.topics)
        for kind, tables in (("listeners", table.listeners), ("oidc", table.oidc)):
            for name, each in tables.items():
                yield from _shown(each, f"{kind}.{name}.")
        if table.aws_iam is not None:
            yield from _shown(table.aws_iam, "aws_iam.")


def _text(value: str | MappingRule) -> str:
    """Write a value of a list as in the file."""
    if isinstance(value, str):
        return value
    return f"RULE:{value.pattern.pattern}/{value.replacement}/{value.case}"


def changed_options(before: BrokerConfig, now: BrokerConfig) -> list[str]:
    """Return the names of what differs; of a table only its own name."""
    names = {row.field: row.name for row in options_of(BrokerConfig)}
    fields = BrokerConfig.__struct_fields__
    pairs = zip(fields, msgspec.structs.astuple(before), msgspec.structs.astuple(now), strict=True)
    return [names.get(field, field) for field, old, new in pairs if old != new]


def check_files(config: BrokerConfig, runtime: Runtime) -> None:
    """Read the files of tokens and TLS as a start does.

    Raises:
        ConfigError: one cannot be used.
    """
    Tokens(config.token, config.token_file)
    for name, each in config.all_listeners().items():
        checked = Listener(
            name, each, metrics=Metrics(), warn=lambda *_: None, wall_ms=runtime.wall_ms
        )
        checked.check()
