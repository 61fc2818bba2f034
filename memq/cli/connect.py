"""Reaching the brokers, with an answer soon where there are none.

Clients go on trying for as long as a program wants; somebody at a terminal has forgotten to start
a broker, or mistyped its address, and should not have to wait to learn it.
"""

from __future__ import annotations

import socket
import time

from memq.client.admin import AdminClient
from memq.client.cluster import parse_bootstrap
from memq.client.connection import parse_address
from memq.errors import UnavailableError

REACH_S = 3.0  # a broker that was started just now listens within this time
RETRY_S = 0.1


def connect_admin(bootstrap: str, token: str) -> AdminClient:
    """A client to ask the brokers with.

    Raises:
        UnavailableError: none of them can be reached.
    """
    check_reachable(bootstrap)
    return AdminClient(bootstrap, token=token, client="memq")


def check_reachable(bootstrap: str, *, timeout_s: float = REACH_S) -> None:
    """Refuse to go on where no broker listens.

    Raises:
        ConfigError: an address is malformed.
        UnavailableError: none of them can be reached.
    """
    addresses = [parse_address(each) for each in parse_bootstrap(bootstrap)]
    deadline_s = time.monotonic() + timeout_s
    while True:
        for address in addresses:
            try:
                socket.create_connection(address, timeout_s).close()
            except OSError as exc:
                reason = exc
            else:
                return
        if time.monotonic() >= deadline_s:
            raise UnavailableError(
                f"no broker at {bootstrap}: {reason.strerror or reason}; start one with "
                "`memq dev`, or name another with --bootstrap"
            ) from reason
        time.sleep(RETRY_S)
