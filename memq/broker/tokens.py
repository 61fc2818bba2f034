"""Which tokens a client may show, so that they can be replaced while clients and brokers run.

To replace one without an error anywhere: add the new token to every broker beside the old one, then
give the new one to the clients, then take the old one away from every broker. A broker reads its
`token_file` again on SIGHUP. Who is connected stays so: a token is asked for at a handshake only.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from memq.core.units import MIB, counted
from memq.errors import ConfigError

log = logging.getLogger(__name__)

MAX_FILE_BYTES = MIB  # more can only be a mistake


class Tokens:
    """The tokens that a broker accepts.

    Args:
        tokens: the tokens; without any every client is welcome.
        path: file that has them instead; empty for none.

    Raises:
        ConfigError: the file cannot be read, or holds no token.
    """

    def __init__(self, tokens: tuple[str, ...], path: str) -> None:
        self._path = path
        self._accepted = _read(path) if path else tokens

    def __repr__(self) -> str:
        return f"<Tokens [{len(self._accepted)}]>"

    def accept(self, token: str) -> bool:
        """Return whether a client with this token is welcome."""
        given = token.encode()
        matches = [hmac.compare_digest(given, each.encode()) for each in self._accepted]
        return any(matches) or not matches

    def reload(self) -> None:
        """Read the file again; where it cannot be used, say so and keep what was read before."""
        try:
            self._accepted = _read(self._path)
        except ConfigError as exc:
            log.warning("the tokens stay as they were: %s", exc)
        else:
            log.info("%s accepted now, from %s", counted(len(self._accepted), "token"), self._path)


def parse_tokens(value: object) -> tuple[str, ...]:
    """Return the tokens of a configuration: a text is one, a list has several.

    Raises:
        ConfigError: it is neither, or one of them is empty.
    """
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value):
        return tuple(value)
    raise ConfigError("token must be a text, or a list of texts that are not empty")


def _read(path: str) -> tuple[str, ...]:
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        lines = content.decode().splitlines()
    except OSError as exc:
        raise ConfigError(f"cannot read token_file {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"token_file {path} is not UTF-8") from exc
    tokens = tuple(line.strip() for line in lines if line.strip())
    if not tokens or len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"token_file {path} must hold tokens, one a line, in up to 1 MiB")
    return tokens
