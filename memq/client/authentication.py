"""How a client logs in with a password: SCRAM-SHA-256 (RFC 5802, RFC 7677).

The password does not leave the client. Each side proves to the other that it knows what was made of
it, so the client learns as well whether the broker does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scramp import ScramClient, ScramException

from memq.core.access.users import ITERATIONS, MECHANISM
from memq.core.wire.messages import Authenticate
from memq.errors import ConfigError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from memq.client.security import Security
    from memq.core.wire.messages import AuthenticateAnswer


async def authenticate(
    security: Security,
    mechanisms: Sequence[str],
    ask: Callable[[Authenticate], Awaitable[AuthenticateAnswer]],
) -> str:
    """Log in; return the principal that the client is for the broker.

    Args:
        security: with the user and the password.
        mechanisms: that the broker takes.
        ask: sends a step, and returns the answer.

    Raises:
        UnauthorizedError: the client has nothing to log in with, or is refused; or the broker does
            not know the user's password either.
        ConfigError: the password cannot be read, or be one.
    """
    if not security.user:
        raise UnauthorizedError(
            "it asks who you are: give `user` and `password_file` in `security`, a `token`, or "
            "a certificate"
        )
    if not mechanisms:
        raise UnauthorizedError(
            f"it does not ask who you are, and so does not show that it knows user "
            f"{security.user!r}: leave out `user`, or use a listener with authentication"
        )
    if MECHANISM not in mechanisms:
        raise UnauthorizedError(
            f"it takes {', '.join(mechanisms)}, and this client has {MECHANISM}: upgrade the older"
        )
    password = await asyncio.to_thread(security.secret)
    try:
        scram = ScramClient([MECHANISM], security.user, password)
    except ScramException as exc:
        raise ConfigError(f"security: that cannot be a user or a password: {exc}") from exc
    first = await ask(Authenticate(mechanism=MECHANISM, data=scram.get_client_first().encode()))
    try:
        scram.set_server_first(first.data.decode())
        if int(scram.iterations) < ITERATIONS:
            raise ScramException(f"it asks for {scram.iterations} iterations only")  # noqa: TRY301
        # A broker names how often to hash: a hostile one could ask for seconds of it.
        proof = await asyncio.to_thread(scram.get_client_final)
        final = await ask(Authenticate(mechanism=MECHANISM, data=proof.encode()))
        scram.set_server_final(final.data.decode())
    except (ScramException, UnicodeDecodeError) as exc:
        raise UnauthorizedError(
            f"it does not know the password of user {security.user!r}, and so is no broker of "
            f"this cluster: {exc}"
        ) from exc
    return final.principal
