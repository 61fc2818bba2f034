"""What the broker does with the requests of operators: figures, clients, configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.broker.config import BrokerConfig
from memq.broker.effective import shown_options
from memq.core.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memq.broker.access_log import AccessLog
    from memq.broker.figures import FiguresKeeper
    from memq.core.access.rules import Access

MAX_FIGURES = 2_000  # topics and groups of an answer: below 1 MiB
MAX_CONNECTIONS = 1_000  # of an answer, as well


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
        options, defaults = shown_options(self._config), shown_options(BrokerConfig.create())
        return m.DescribeBrokerAnswer(
            options=options,
            changed=[name for name, text in options.items() if text != defaults.get(name, "")],
            logs_access=self._access_log.is_on,
            lines=list(self._access_log.kept)[::-1][: max(0, request.lines)],
        )
