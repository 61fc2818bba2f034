"""The tokens that a broker accepts, which can be replaced while clients and brokers run.

To replace one without an error: add the new token to every broker, give it to the clients, then
take the old one away from every broker. On SIGHUP a broker reads its `token_file` again; clients
with a token that is gone are disconnected.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from memq.core.access.principals import TOKEN_USER
from memq.core.access.rules import check_principal
from memq.core.units import MIB, counted
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

MAX_FILE_BYTES = MIB  # more can only be a mistake


class Tokens:
    """See above.

    Args:
        lines: the tokens, each with the name of its holder before it, or without; without any
            every client is welcome.
        path: file that has them instead; empty for none.

    Raises:
        ConfigError: the file cannot be read, or holds no token.
    """

    def __init__(self, lines: Iterable[str], path: str) -> None:
        self._path = path
        self._holders = _holders(_read(path) if path else lines)

    def __repr__(self) -> str:
        return f"<Tokens [{len(self._holders)}]>"

    def accept(self, token: str) -> bool:
        """Return whether a client with this token is welcome where nobody is asked for a name."""
        return self.holder(token) is not None or not self._holders

    def holder(self, token: str) -> str | None:
        """Return the principal that holds a token; None where nobody does."""
        given = token.encode(errors="surrogatepass")
        found = None
        for principal, each in self._holders:  # all of them, so that the time tells nothing
            if hmac.compare_digest(given, each):
                found = principal
        return found

    def reload(self) -> None:
        """Read the file again; where it cannot be used, say so and keep what was read before."""
        if not self._path:
            return
        try:
            self._holders = _holders(_read(self._path))
        except ConfigError as exc:
            log.warning("tokens not reloaded: %s", exc)
        else:
            log.info("%s accepted now, from %s", counted(len(self._holders), "token"), self._path)


def _holders(lines: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return who holds which token.

    Raises:
        ConfigError: a line is no token, no name and token, or has the token of another.
    """
    found: dict[bytes, str] = {}
    for line in lines:
        words = line.split()
        if len(words) not in (1, 2) or line != line.strip() or not all(map(str.isprintable, words)):
            raise ConfigError("a token has no space in it; write it alone, or after a name")
        holder = f"User:{words[0]}" if words[1:] else TOKEN_USER
        try:
            check_principal(holder)
        except InvalidRequestError as exc:
            raise ConfigError(f"a token: {exc}") from exc
        token = words[-1].encode(errors="surrogatepass")
        if found.setdefault(token, holder) != holder:
            raise ConfigError(f"{holder} and {found[token]} have the same token")
    return [(holder, token) for token, holder in found.items()]


def _read(path: str) -> list[str]:
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        lines = content.decode().splitlines()
    except OSError as exc:
        raise ConfigError(f"cannot read token_file {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"token_file {path} is not UTF-8") from exc
    tokens = [line.strip() for line in lines if line.strip()]
    if not tokens or len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"token_file {path} must hold tokens, one a line, in up to 1 MiB")
    return tokens
