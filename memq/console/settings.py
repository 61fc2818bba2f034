"""What the console has to know of the broker that serves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings:
    """See above.

    Attributes:
        address: `host:port` of the broker, as its clients know it.
        certificates: its listener asks for a certificate, which no login at a page has.
        asks: brokers ask who clients are, so the console asks for a login.
        tokens_only: they ask for a token, and know no users.
        ca: file with the CA of brokers' certificates, or `system`; empty where they have none.
        peer: file with this broker's own certificate, which is trusted for itself.
        https: browsers reach the console by TLS.
        insecure: passwords may travel without it.
        hosts: names under which browsers reach it, besides addresses.
    """

    address: str
    certificates: bool = False
    asks: bool = False
    tokens_only: bool = False
    ca: str = ""
    peer: str = ""
    https: bool = False
    insecure: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def security(self) -> dict[str, str]:
        """The option `security` of clients, without a login."""
        return {"ca": self.ca} | ({"peer": self.peer} if self.peer else {}) if self.ca else {}
