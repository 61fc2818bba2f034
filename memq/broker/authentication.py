"""Who a client is: by its certificate, a token, or a user's password.

A listener with `authentication = "required"` lets in only whom it knows. A client that wants to log
in proves that it knows a user's password, by SCRAM-SHA-256 (RFC 5802, RFC 7677), in two steps; or
its AWS identity, in one (`aws_iam`). Else a certificate that the listener has verified says who it
is, or a token in the handshake; one with neither must log in. On a listener without authentication
everybody is `User:anonymous`, who needs a token where the broker has some.

A user that does not exist is asked for a proof as any other, and fails as a wrong password does. A
client has one attempt: then the connection ends.
"""

from __future__ import annotations

import hmac
import math
from typing import TYPE_CHECKING, NamedTuple

from scramp import ScramException, ScramMechanism

from memq.core.access import aws_iam
from memq.core.access.principals import ANONYMOUS, certificate_principal
from memq.core.access.users import MECHANISM, new_user, pretended_user
from memq.core.wire.messages import AuthenticateAnswer
from memq.errors import InvalidRequestError, ProtocolError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from memq.broker.access_control import AccessControl
    from memq.core.access.users import User
    from memq.core.wire.messages import Authenticate, Handshake

STEPS = 2
TOKEN = "TOKEN"  # noqa: S105 - a mechanism: it renews a session
MAX_STEP_BYTES = 1_024  # a name of 100 characters and two nonces; scramp is slow with more
_SCRAM = ScramMechanism(MECHANISM)


class Identity(NamedTuple):
    """Who a client is.

    Attributes:
        principal: for rules.
        holds: whether it still is, when users or tokens have changed.
        until_s: when it ends, seconds since 1970.
    """

    principal: str
    holds: Callable[[AccessControl], bool] = lambda _: True
    until_s: float = math.inf


def identify(
    control: AccessControl,
    asked: Handshake,
    *,
    required: bool,
    certificate: Mapping[str, Any],
) -> Identity | None:
    """Say who a client is by what it has shown, or None: it must log in.

    Args:
        control: tokens, and how certificates are mapped.
        asked: by the client.
        required: the listener must know who it is.
        certificate: that the listener has verified, as `ssl` describes it; empty without one.

    Raises:
        UnauthorizedError: it is not welcome.
    """
    token = asked.token
    if not required:
        if not control.tokens.accept(token):
            raise _refused_token()
        return Identity(ANONYMOUS, lambda now: now.tokens.accept(token))
    if asked.log_in:
        return None
    if certificate:
        principal = certificate_principal(certificate, control.config.certificate_principals)
        if principal is None:
            raise UnauthorizedError(
                "no rule of certificate_principals has the name of the client's certificate: use "
                "another certificate, or add a rule for it to the broker's configuration"
            )
        return Identity(principal)
    return identify_token(control, token) if token else None


def identify_token(control: AccessControl, token: str) -> Identity:
    """Say who holds a token.

    Raises:
        UnauthorizedError: nobody; or it is signed, and not valid.
        UnavailableError: the keys are not known now with which it is signed.
    """
    name = control.tokens.holder(token)
    if name is not None:
        return Identity(name, lambda now: now.tokens.holder(token) == name)
    signed = control.issuers.identify(token)
    if signed is None:
        raise _refused_token()
    return Identity(signed[0], until_s=signed[1])


def mechanisms(control: AccessControl) -> list[str]:
    """Return by what clients can log in."""
    return [MECHANISM] if control.aws_iam is None else [MECHANISM, aws_iam.MECHANISM]


async def authenticate(
    control: AccessControl, known: Identity | None, login: Login | None, step: Authenticate
) -> tuple[AuthenticateAnswer, Identity | None]:
    """Take a step of a client; with the last one its identity comes.

    Args:
        control: that knows who clients can be.
        known: who the client is up to now.
        login: that it has begun, by a password.
        step: that it takes.

    Raises:
        UnauthorizedError: it is not who it says, or was somebody else before.
        UnavailableError: that cannot be known now.
        ProtocolError: it is known, and the mechanism renews nothing.
    """
    if step.mechanism == aws_iam.MECHANISM and control.aws_iam is not None:
        principal, until_s = await control.aws_iam.identify(step.data)
        identity = Identity(principal, until_s=until_s)
    elif login is not None:
        return login.step(step)
    elif step.mechanism == TOKEN:
        identity = identify_token(control, step.data.decode(errors="replace"))
    else:
        raise ProtocolError("Authenticate: the broker knows who this client is")
    if known is not None and identity.principal != known.principal:
        raise UnauthorizedError(f"a proof of {identity.principal}, not of the client")
    return AuthenticateAnswer(data=b""), identity


def check_password(control: AccessControl, name: str, password: str) -> Identity:
    """Say who somebody is that has sent a password, as browsers do. It takes some milliseconds.

    Raises:
        UnauthorizedError: there is no such user, or it has another password.
    """
    document = control.document
    nobody = pretended_user(name, document.secret)
    user = document.users.get(name, nobody)
    try:
        shown = new_user(user.name, password, user.salt)
    except InvalidRequestError as exc:
        raise _refused_password(name) from exc
    if not hmac.compare_digest(shown.stored_key, user.stored_key) or user is nobody:
        raise _refused_password(name)
    return Identity(user.principal)


def _refused_password(name: str) -> UnauthorizedError:
    return UnauthorizedError(
        f"the broker refused user {name[:100]!r}, or the password: correct `user` and `password`"
    )


def _refused_token() -> UnauthorizedError:
    return UnauthorizedError(
        "the broker refused the token of this client: set `token` (--token or MEMQ_TOKEN for "
        "commands)"
    )


class Login:
    """One client's attempt to log in by a password.

    Args:
        control: that has the users.
    """

    def __init__(self, control: AccessControl) -> None:
        self._control = control
        self._server = _SCRAM.make_server(self._verifier)
        self._asked: User | None = None
        self._steps = 0

    @property
    def user(self) -> str:
        """The name that was given; it is not to be believed."""
        return self._asked.name[:100] if self._asked else ""

    def __repr__(self) -> str:
        return f"<Login {self._asked!r} [{self._steps} steps]>"

    def step(self, request: Authenticate) -> tuple[AuthenticateAnswer, Identity | None]:
        """Take a step; with the last one the identity comes.

        Raises:
            UnauthorizedError: the client is not who it says, or does not follow the protocol.
        """
        self._steps += 1
        if request.mechanism != MECHANISM or self._steps > STEPS:
            raise UnauthorizedError(
                f"step {self._steps} of {request.mechanism[:100]!r}: the broker takes {STEPS} "
                f"steps of {MECHANISM}"
            )
        # Folding a long name, or one that is not ASCII, takes time; no user has one.
        if len(request.data) > MAX_STEP_BYTES or not request.data.isascii():
            raise _refused_password(self.user)
        try:
            said = request.data.decode()
            if self._steps < STEPS:
                self._server.set_client_first(said)
                return AuthenticateAnswer(data=self._server.get_server_first().encode()), None
            self._server.set_client_final(said)
            final = self._server.get_server_final().encode()
        except ScramException as exc:
            raise _refused_password(self.user) from exc
        assert self._asked is not None  # noqa: S101 - since the first step
        user = self._control.document.users.get(self._asked.name)
        if user is None or user != self._asked:  # or it was deleted or altered since the first step
            raise _refused_password(self._asked.name)
        identity = Identity(user.principal, lambda now: now.document.users.get(user.name) == user)
        return AuthenticateAnswer(data=final, principal=user.principal), identity

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        document = self._control.document
        nobody = pretended_user(name, document.secret)  # made in any case, which takes its time
        user = self._asked = document.users.get(name, nobody)
        return user.salt, user.stored_key, user.server_key, user.iterations
