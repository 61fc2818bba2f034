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
import ssl
from typing import TYPE_CHECKING, NamedTuple

from scramp import ScramException, ScramMechanism

from memq.core.access import aws_iam
from memq.core.access.principals import ANONYMOUS, certificate_principal
from memq.core.access.rules import Access, Rules
from memq.core.access.users import MECHANISM, new_user, pretended_user
from memq.core.wire.messages import AuthenticateAnswer, Handshake
from memq.errors import InvalidRequestError, MemqError, ProtocolError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from memq.broker.access_control import AccessControl
    from memq.broker.access_log import AccessLog
    from memq.broker.aws_iam import AwsIam
    from memq.core.access.users import User
    from memq.core.wire.messages import Authenticate

STEPS = 2
TOKEN = "TOKEN"  # noqa: S105 - a mechanism: it renews a session
MAX_STEP_BYTES = 1_024  # a name of 100 characters and two nonces; scramp is slow with more
_SCRAM = ScramMechanism(MECHANISM)
NOBODY = Access(ANONYMOUS, "?", Rules())  # who may do nothing


class Identity(NamedTuple):
    """Who a client is.

    Attributes:
        principal: for rules.
        until_s: when it ends, seconds since 1970.
        holds: whether it still is, when users or tokens have changed.
    """

    principal: str
    until_s: float = math.inf
    holds: Callable[[AccessControl], bool] = lambda _: True


def identify_token(control: AccessControl, token: str) -> Identity:
    """Say who holds a token.

    Raises:
        UnauthorizedError: nobody; or it is signed, and not valid.
        UnavailableError: the keys are not known now with which it is signed.
    """
    name = control.tokens.holder(token)
    if name is not None:
        return Identity(name, holds=lambda now: now.tokens.holder(token) == name)
    signed = control.issuers.identify(token) if control.issuers else None
    if signed is None:
        raise _refused_token()
    return Identity(*signed)


def mechanisms(control: AccessControl) -> list[str]:
    """Return by what clients can log in."""
    return [MECHANISM] if control.aws_iam is None else [MECHANISM, aws_iam.MECHANISM]


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
        return AuthenticateAnswer(data=final), Identity(
            user.principal, holds=lambda now: now.document.users.get(user.name) == user
        )

    def _verifier(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        document = self._control.document
        nobody = pretended_user(name, document.secret)  # made in any case, which takes its time
        user = self._asked = document.users.get(name, nobody)
        return user.salt, user.stored_key, user.server_key, user.iterations


class Session:
    """Who the client of one connection is, from its handshake on. It sends nothing.

    Args:
        control: that knows who clients can be.
        log: where logins are noted.
        listener: by which it came.
        known: called when it is known who the client is.

    Attributes:
        host: address of the client.
        certificate: that its listener has verified, as `ssl` describes it; empty without one.
        identity: who the client is; None before that is known.
        access: what it may do.
        until_s: when its certificate, token or proof ends, seconds since 1970.
        asked: its handshake.
    """

    def __init__(
        self, control: AccessControl, log: AccessLog, listener: str, known: Callable[[], None]
    ) -> None:
        self.host = "?"
        self.certificate: Mapping[str, Any] = {}
        self.identity: Identity | None = None
        self.access = NOBODY
        self.until_s = math.inf
        self.asked = Handshake(versions=[])
        self._control, self._log, self._listener, self._known = control, log, listener, known
        self._login: Login | None = None
        self._proving = self._proved = False  # by AWS

    def __repr__(self) -> str:
        return f"<Session {self.identity.principal if self.identity else 'of nobody'}>"

    def admit(self, asked: Handshake) -> tuple[str, int] | None:
        """Return who a client is that shakes hands, and for how many ms; None: it must log in.

        Raises:
            UnauthorizedError: it is not welcome.
        """
        self.asked = asked
        identity = self._identify(asked)
        if identity is not None:
            return self._become(identity)
        self._login = Login(self._control)
        return None

    def _identify(self, asked: Handshake) -> Identity | None:
        """Say who a client is by what it has shown, or None: it must log in."""
        control, token = self._control, asked.token
        if self._listener not in control.asking:
            if not control.tokens.accept(token):
                raise _refused_token()
            return Identity(ANONYMOUS, holds=lambda now: now.tokens.accept(token))
        if asked.log_in:
            return None
        if self.certificate:
            rules = control.config.certificate_principals
            principal = certificate_principal(self.certificate, rules)
            if principal is None:
                raise UnauthorizedError(
                    "no rule of certificate_principals has the name of the client's certificate: "
                    "use another certificate, or add a rule for it to the broker's configuration"
                )
            return Identity(principal)
        return identify_token(control, token) if token else None

    async def step(self, step: Authenticate) -> AuthenticateAnswer:
        """Take a step of a login, or another proof of the same client.

        Raises:
            UnauthorizedError: it is not who it says, or was somebody else before.
            UnavailableError: that cannot be known now; who it was before, it is.
            ProtocolError: it is known, and the mechanism renews nothing.
        """
        control, answer = self._control, AuthenticateAnswer(data=b"")
        identity: Identity | None
        if step.mechanism == aws_iam.MECHANISM and control.aws_iam is not None:
            identity = await self._prove(control.aws_iam, step.data)
        elif self._login is not None:
            answer, identity = self._login.step(step)
        elif step.mechanism == TOKEN:
            identity = identify_token(control, step.data.decode(errors="replace"))
        else:
            raise ProtocolError("Authenticate: the broker knows who this client is")
        if identity is None:
            return answer
        if self.identity is not None and identity.principal != self.identity.principal:
            raise UnauthorizedError(f"a proof of {identity.principal}, not of the client")
        answer.principal, answer.expires_ms = self._become(identity)
        return answer

    async def _prove(self, aws: AwsIam, proof: bytes) -> Identity:
        """Let AWS say who it is: only for who logs in so, and once at a time."""
        if self._proving or (self.identity is not None and not self._proved):
            raise ProtocolError(f"Authenticate: {aws_iam.MECHANISM} renews only a login by it")
        self._proving = True
        try:
            identity = Identity(*await aws.identify(proof))
        finally:
            self._proving = False
        self._proved = True
        return identity

    def _become(self, identity: Identity) -> tuple[str, int]:
        """Return the principal, and for how many ms the client is it; 0 for ever."""
        self.identity, self.until_s, self._login = identity, identity.until_s, None
        if self.certificate:
            ends_s = ssl.cert_time_to_seconds(self.certificate["notAfter"])
            self.until_s = min(ends_s, identity.until_s)
        self.access = Access(identity.principal, self.host, self._control.rules)
        self._known()
        if not self.access.unrestricted:
            self.note("login")
        left_ms = self.until_s * 1000 - self._control.runtime.wall_ms()
        return identity.principal, 0 if left_ms == math.inf else max(1, int(left_ms))

    def follow(self) -> MemqError | None:
        """Hold to the users, tokens and rules of now; return why the client is nobody any more."""
        if self.identity is None:
            return None
        self.access.follow(self._control.rules)
        if self.identity.holds(self._control):
            return None
        error = UnauthorizedError(f"{self.identity.principal} was deleted, or changed")
        self.note("disconnected", error)
        self.access = NOBODY  # for what of it still waits
        return error

    def note(self, event: str, error: MemqError | None = None, **more: Any) -> None:
        """Note in the access log what this client did."""
        # `NOBODY` knows no host.
        access = Access("", self.host, None) if self.identity is None else self.access
        if self._login is not None:
            more["user"] = self._login.user
        if error is not None:
            more["error"] = str(error)
        self._log.note(event, access, self.asked.client, error.code if error else "ok", **more)
