"""What the broker does with the requests of operators: figures, clients, configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from memq.broker.config import (
    AWS_IAM_OPTIONS,
    BROKER_OPTIONS,
    DEFAULT_LISTENER,
    ISSUER_OPTIONS,
    LISTENER_OPTIONS,
)
from memq.core.named_values import NamedValues
from memq.core.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memq.broker.access_log import AccessLog
    from memq.broker.config import BrokerConfig
    from memq.broker.figures import FiguresKeeper
    from memq.core.access.rules import Access
    from memq.core.options import Option

MAX_FIGURES = 2_000  # topics and groups of an answer: below 1 MiB
MAX_CONNECTIONS = 1_000  # of an answer, as well
HIDDEN = "***"
_CREDENTIALS = re.compile("//[^/@]*@")  # in a URI


class OperatorHandlers:
    """Answers them.

    Args:
        config: of the broker.
        figures: of its topics.
        access_log: whose newest lines are told.
        clients: describes those after a number, up to so many.
    """

    def __init__(
        self,
        config: BrokerConfig,
        figures: FiguresKeeper,
        access_log: AccessLog,
        clients: Callable[[int, int], list[m.ConnectionInfo]],
    ) -> None:
        self._config, self._clients = config, clients
        self._figures, self._access_log = figures, access_log
        self.history = figures.history

    def __repr__(self) -> str:
        return f"<OperatorHandlers {self._figures!r}>"

    def describe_topics(
        self, names: Sequence[str], access: Access, *, list_groups: bool
    ) -> m.DescribeTopicsAnswer:
        """Tell the figures of the first of these topics."""
        found: list[m.TopicFigures] = []
        left = MAX_FIGURES
        for name in names:
            if left <= 0:
                break
            found.append(self._figures.of(name, access, list_groups=list_groups))
            left -= 1 + len(found[-1].of_groups)
        return m.DescribeTopicsAnswer(topics=found, more=len(found) < len(names))

    async def list_connections(self, request: m.ListConnections) -> m.ListConnectionsAnswer:
        """List the clients."""
        found = self._clients(request.after, MAX_CONNECTIONS + 1)
        more = len(found) > MAX_CONNECTIONS
        return m.ListConnectionsAnswer(connections=found[:MAX_CONNECTIONS], more=more)

    async def describe_broker(self, request: m.DescribeBroker) -> m.DescribeBrokerAnswer:
        """Tell the configuration, and lines of the access log."""
        rows = list(_rows(self._config))
        return m.DescribeBrokerAnswer(
            options={name: text for name, text, _ in rows},
            changed=[name for name, _, changed in rows if changed],
            logs_access=self._access_log.is_on,
            lines=list(self._access_log.kept)[::-1][: max(0, request.lines)],
        )


def _rows(config: BrokerConfig) -> Iterator[tuple[str, str, bool]]:
    """Yield name, text and whether it was changed of each option, those of tables included."""
    yield from _of_table("", config, BROKER_OPTIONS)
    for name, listener in config.all_listeners().items():
        if name != DEFAULT_LISTENER:
            yield from _of_table(f"listeners.{name}.", listener, LISTENER_OPTIONS)
    for name, issuer in config.oidc.items():
        yield from _of_table(f"oidc.{name}.", issuer, ISSUER_OPTIONS)
    if config.aws_iam is not None:
        yield from _of_table("aws_iam.", config.aws_iam, AWS_IAM_OPTIONS)


def _of_table(
    prefix: str, values: object, options: Sequence[Option]
) -> Iterator[tuple[str, str, bool]]:
    for option in options:
        value = getattr(values, option.field)
        changed = value != option.parse(option.default)
        yield prefix + option.name, _text(option, value), changed


def _text(option: Option, value: Any) -> str:
    """Write a value as people do; what may be secret is hidden, whatever it is."""
    if option.name == "token":
        return HIDDEN if value else ""
    if isinstance(value, NamedValues):
        return ",".join(f"{name}={HIDDEN}" for name, _ in sorted(value))
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return _CREDENTIALS.sub(f"//{HIDDEN}@", option.show(value))
