"""How a client knows the brokers, and shows them who it is: what the option `security` says.

    ca=/etc/memq/ca.pem,cert=/etc/memq/alice.pem,key=/etc/memq/alice.key
    ca=/etc/memq/ca.pem,user=alice,password_file=/etc/memq/alice.password
    ca=/etc/memq/ca.pem,aws_iam=memq-prod

With `ca` the client speaks TLS, and the broker's certificate must be of that CA and have the name
that the client connects to, or `server_name`. `cert` and `key` are the client's own certificate.
With `user` it logs in with a password, which does not leave the client; with `aws_iam` as who it is
for AWS. Files are read at each
connection, so those that were replaced are taken at the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
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
        peer: File with a broker's own certificate, in PEM, that is trusted as it is, beside `ca`.
        server_name: Name in the brokers' certificates, where it is not the one connected to.
        user: Name of the user who logs in.
        password: The user's password.
        password_file: File with the password, in place of `password`.
        token_file: File with a token, which is read again at each connection, and before it ends.
        aws_iam: Logs in as the AWS user or role of the environment; the audience that the brokers
            have.
    """

    ca: Annotated[str, Option("text", "")] = ""
    cert: Annotated[str, Option("text", "")] = ""
    key: Annotated[str, Option("text", "")] = ""
    peer: Annotated[str, Option("text", "")] = ""
    server_name: Annotated[str, Option("text", "")] = ""
    user: Annotated[str, Option("text", "")] = ""
    password: Annotated[str, Option("text", "")] = field(default="", repr=False)
    password_file: Annotated[str, Option("text", "")] = ""
    token_file: Annotated[str, Option("text", "")] = ""
    aws_iam: Annotated[str, Option("text", "")] = ""

    def __repr__(self) -> str:
        who = f", {self.user}" if self.user else ""
        return f"<Security {'TLS' if self.ca else 'plain'}{who}>"

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
        for name, needs in _NEEDS:
            if getattr(found, name) and not getattr(found, needs):
                raise ConfigError(f"security: {name} without {needs}; give both")
        logins = [name for name in ("user", "token_file", "aws_iam") if getattr(found, name)]
        if logins[1:]:
            raise ConfigError(f"security: {' and '.join(logins)}; leave out all but one")
        if found.user and bool(found.password) == bool(found.password_file):
            raise ConfigError("security: a user needs a password, or a password_file")
        return found

    def secret(self) -> str:
        """Return the password of the user.

        Raises:
            ConfigError: the file cannot be read, or is empty.
        """
        return self.password or _read("password_file", self.password_file).rstrip("\r\n")

    def token(self) -> str:
        """Return the token that the file has now; empty without a file.

        Raises:
            ConfigError: the file cannot be read, or is empty.
        """
        return _read("token_file", self.token_file).strip() if self.token_file else ""

    def context(self) -> ssl.SSLContext | None:
        """Read the files; None where no TLS is wanted.

        Raises:
            ConfigError: one of them cannot be used.
        """
        if not self.ca:
            return None
        from memq.runtime.tls import TlsFiles, client_context  # noqa: PLC0415 - loads OpenSSL

        return client_context(TlsFiles(self.ca, self.cert, self.key, peer=self.peer))


def _read(option: str, path: str) -> str:
    try:
        found = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot read {option} = {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{option} = {path} is not UTF-8") from exc
    if not found.strip():
        raise ConfigError(f"{option} = {path} is empty")
    return found


_NEEDS = (
    ("cert", "ca"), ("key", "cert"), ("peer", "ca"), ("server_name", "ca"),
    ("password", "user"), ("password_file", "user"), ("aws_iam", "ca"),
)  # fmt: skip

SECURITY_OPTIONS = options_of(Security)

PLAIN = Security()

FILES = ("ca", "cert", "key", "peer", "password_file", "token_file")
"""What names a file."""


def security_values(given: GivenValues) -> NamedValues:
    """Return the option's values once they are checked; see `Security.parse`."""
    values = parse_security(given) if given else NO_VALUES
    Security.parse(values)
    return values
