"""Run a broker until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING

from memq.broker.server import Broker

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.broker.config import BrokerConfig

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def run(config: BrokerConfig, on_ready: Callable[[Broker], None] | None = None) -> int:
    """Run a broker in this process until SIGTERM or SIGINT.

    Args:
        config: of the broker.
        on_ready: called once, when the broker serves.

    Returns:
        Exit code: 0 when it drained whole, 1 when it did not or failed.

    Raises:
        MemqError: it could not start.
    """
    logging.basicConfig(
        level=config.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr, force=True
    )
    return asyncio.run(serve(Broker(config), on_ready))


async def serve(broker: Broker, on_ready: Callable[[Broker], None] | None) -> int:
    """Start a broker, serve until SIGTERM, SIGINT or an unexpected error, and stop it.

    Returns and raises as `run` does.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await broker.start()
    if on_ready is not None:
        on_ready(broker)
    stopping = loop.create_task(stop.wait())
    failing = loop.create_task(broker.failed())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    failed = failing.done()
    stopping.cancel()
    failing.cancel()
    drained = await broker.stop()
    return 0 if drained and not failed else 1
