"""How a client knows the brokers, and shows them who it is: what the option `security` says.

    ca=/etc/memq/ca.pem,cert=/etc/memq/alice.pem,key=/etc/memq/alice.key

With `ca` the client speaks TLS, and the broker's certificate must be of that CA and have the name
that the client connects to, or `server_name`. `cert` and `key` are the client's own certificate.
Files are read at each connection, so those that were replaced are taken at the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from memq.core.named_values import NO_VALUES, NamedValues, parse_security
from memq.core.options import Option, options_of, parse_options
from memq.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from memq.core.named_values import GivenValues

SYSTEM_CA = "system"  # the CAs that the operating system knows


@dataclass(frozen=True, kw_only=True)
class Security:
    """Values of the option `security`.

    Attributes:
        ca: File with the CA of the brokers' certificates, in PEM; `system` for those of the
            operating system. Switches TLS on.
        cert: File with this client's certificate, in PEM.
        key: File with its private key.
        server_name: Name in the brokers' certificates, where it is not the one connected to.
    """

    ca: Annotated[str, Option("text", "")] = ""
    cert: Annotated[str, Option("text", "")] = ""
    key: Annotated[str, Option("text", "")] = ""
    server_name: Annotated[str, Option("text", "")] = ""

    def __repr__(self) -> str:
        return f"<Security {'TLS' if self.ca else 'plain'}>"

    @classmethod
    def parse(cls, given: GivenValues) -> Security:
        """Parse what people write, and check that it fits together.

        Raises:
            ConfigError: a name is unknown, or one is missing that another needs.
        """
        values = dict(parse_security(given))
        try:
            found = cls(**parse_options(SECURITY_OPTIONS, values))
        except ConfigError as exc:
            raise ConfigError(f"security: {exc}") from exc
        for name, value in values.items():
            if not value:
                raise ConfigError(f"security: {name} is empty; give it, or leave it out")
        for name, needs in (("cert", "ca"), ("key", "cert"), ("server_name", "ca")):
            if getattr(found, name) and not getattr(found, needs):
                raise ConfigError(f"security: {name} without {needs}; give both")
        return found

    def context(self) -> ssl.SSLContext | None:
        """Read the files; None where no TLS is wanted.

        Raises:
            ConfigError: one of them cannot be used.
        """
        if not self.ca:
            return None
        from memq.runtime.tls import TlsFiles, client_context  # noqa: PLC0415 - loads OpenSSL

        return client_context(TlsFiles(self.ca, self.cert, self.key))


SECURITY_OPTIONS = options_of(Security)

PLAIN = Security()

FILES = ("ca", "cert", "key")
"""What names a file."""


def security_values(given: GivenValues) -> NamedValues:
    """Return the option's values once they are checked; see `Security.parse`."""
    values = parse_security(given) if given else NO_VALUES
    Security.parse(values)
    return values
