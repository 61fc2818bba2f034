"""A broker whose storage discards: what is left is the cost of receiving, checking and acking."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from memq.broker.config import BrokerConfig
from memq.broker.main import serve
from memq.broker.server import Broker
from memq.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memq.core.storage.handler import ObjectInfo


class DiscardingStorage:
    """A storage that forgets what it is given, at once."""

    def put(self, key: str, buffers: Sequence[Any], *, timeout_s: float) -> None:
        """Forget it."""

    def get(self, key: str) -> Any:
        """There is nothing."""
        raise ObjectNotFoundError(f"{key}: this storage discards")

    def get_range(self, key: str, start: int, length: int) -> Any:
        """There is nothing."""
        raise ObjectNotFoundError(f"{key}: this storage discards")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """There is nothing."""
        return iter(())

    def delete(self, key: str) -> None:
        """There is nothing."""

    def uri(self, key: str) -> str:
        """A URI that leads nowhere."""
        return f"discard:///{key}"


def main() -> None:
    """Serve until SIGTERM; prints the address as the first line."""
    with tempfile.TemporaryDirectory() as directory:
        config = BrokerConfig.create(
            {"data_dir": directory, "port": 0, "admin_port": 0, "log_level": "warning"}
        )
        broker = Broker(config, storage=DiscardingStorage())
        sys.exit(asyncio.run(serve(broker, lambda _: print(broker.address, flush=True))))


if __name__ == "__main__":
    main()
