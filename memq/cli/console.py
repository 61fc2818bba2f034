"""The console of a broker that is run from here: it knows the broker by its configuration."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from memq.broker.config import DEFAULT_LISTENER

if TYPE_CHECKING:
    from aiohttp import web

    from memq.broker.context import BrokerContext


def add_pages(app: web.Application, context: BrokerContext) -> None:
    """Add the console to a broker's admin HTTP, as a client of the broker's listener."""
    from memq.client.security import SYSTEM_CA  # noqa: PLC0415
    from memq.console.app import add_console  # noqa: PLC0415 - loads Jinja
    from memq.console.settings import ConsoleSettings  # noqa: PLC0415

    config = context.config
    listener = context.listeners[DEFAULT_LISTENER]
    asks = config.authentication == "required"
    has_token = bool(config.token or config.token_file)
    settings = ConsoleSettings(
        address=listener.address,
        certificates=config.client_auth == "required",
        asks=asks or has_token,
        tokens_only=has_token and not asks,
        ca=(config.console_ca or SYSTEM_CA) if config.tls_cert else "",
        peer=config.tls_cert,
        https=config.admin_tls,
        insecure=config.insecure,
        hosts=(listener.address.rpartition(":")[0], config.host, socket.gethostname()),
    )
    add_console(app, settings, context.runtime)
