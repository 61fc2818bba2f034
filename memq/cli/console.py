"""The console of a broker that is run from here: it knows the broker by its configuration."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

    from memq.broker.context import BrokerContext


def add_pages(app: web.Application, context: BrokerContext) -> None:
    """Add the console to a broker's admin HTTP, as a client of the broker's listener."""
    from memq.client.security import SYSTEM_CA  # noqa: PLC0415
    from memq.console.app import add_console  # noqa: PLC0415 - loads Jinja
    from memq.console.settings import ConsoleSettings  # noqa: PLC0415

    config = context.config
    usable = [
        (name, each)
        for name, each in config.all_listeners().items()
        if each.client_auth != "required"
    ]
    name, listener = usable[0] if usable else ("default", config)
    address = context.listeners[name].address
    asks = listener.authentication == "required"
    has_token = bool(config.token or config.token_file)
    why = (
        "each listener asks for a certificate, which a browser's login does not have: give the "
        "broker another listener, with client_auth = none and authentication = required"
    )
    settings = ConsoleSettings(
        address=address,
        unusable="" if usable else why,
        asks=asks or has_token,
        tokens_only=has_token and not asks,
        ca=(config.console_ca or SYSTEM_CA) if listener.tls_cert else "",
        peer=listener.tls_cert,
        https=config.admin_tls,
        insecure=config.insecure,
        hosts=(address.rpartition(":")[0], config.host, socket.gethostname()),
    )
    add_console(app, settings, context.runtime)
