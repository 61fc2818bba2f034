"""Ports of the loopback for services that are killed and started again."""

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
FIRST = 15_000  # what is below may be a service of this machine

_given: set[int] = set()  # a port stays its service's while that is dead
_random = random.Random()  # another order in each process, as all of them choose


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, none twice, below those that the kernel gives itself.

    A client that connects again and again to a dead service could otherwise be given the service's
    own port as its local one: it would talk to itself, and the service could not start any more.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _random.randrange(FIRST, first_local_port())
        if port not in _given and _is_free(port):
            _given.add(port)
            ports.append(port)
    return ports


def first_local_port() -> int:
    """Return the first of the ports that the kernel gives to connections."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
