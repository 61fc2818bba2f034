"""Users with a password, of which only what SCRAM-SHA-256 verifies it with is stored.

See RFC 5802 (§3, `StoredKey` and `ServerKey`) and RFC 7677. From a verifier nobody can log in;
whoever has it can try passwords, at the cost of `ITERATIONS` hashes each.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata

import msgspec

from memq.errors import InvalidRequestError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 16_384
"""Of every user, so that the number does not tell a user that is there from one that is not."""
KEY_BYTES = 32
SALT_BYTES = 32
MIN_PASSWORD_CHARS = 8
MAX_PASSWORD_CHARS = 256

RESERVED = ("anonymous", "token")
"""Names of those whom a broker knows no better."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}")


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user's verifier.

    Attributes:
        name: of the user; its principal is `User:NAME`.
        salt: random.
        stored_key: verifies the client.
        server_key: with which the broker shows that it knows the user.
        iterations: of the hash; always `ITERATIONS`.
    """

    name: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int = ITERATIONS

    def __repr__(self) -> str:
        return f"<User {self.name}>"

    @property
    def principal(self) -> str:
        """Whom rules name."""
        return f"User:{self.name}"


def check_user(user: User) -> None:
    """Refuse a user that cannot log in.

    Raises:
        InvalidRequestError: naming what is wrong.
    """
    if not _NAME.fullmatch(user.name) or user.name in RESERVED:
        raise InvalidRequestError(
            f"user {user.name[:100]!r} is not valid: use 1 to 100 of letters, digits, '.', '_', "
            f"'@' and '-', starting with a letter, digit or '_'; and none of {', '.join(RESERVED)}"
        )
    sizes = (len(user.salt), len(user.stored_key), len(user.server_key), user.iterations)
    if sizes != (SALT_BYTES, KEY_BYTES, KEY_BYTES, ITERATIONS):
        raise InvalidRequestError(
            f"user {user.name!r}: a verifier has {SALT_BYTES} bytes of salt, two keys of "
            f"{KEY_BYTES} and {ITERATIONS} iterations: use `memq user` of this version"
        )


def new_user(name: str, password: str, salt: bytes) -> User:
    """Make the verifier of a password.

    Args:
        name: of the user.
        password: it is not kept.
        salt: `SALT_BYTES` random bytes.

    Raises:
        InvalidRequestError: the name or the password is not allowed.
    """
    seen = sum(unicodedata.category(each)[0] in "LNPSZ" for each in password)  # others may vanish
    if seen < MIN_PASSWORD_CHARS or len(password) > MAX_PASSWORD_CHARS:
        raise InvalidRequestError(
            f"a password has at least {MIN_PASSWORD_CHARS} characters that are seen, and up to "
            f"{MAX_PASSWORD_CHARS}"
        )
    from scramp import ScramException, ScramMechanism  # noqa: PLC0415 - only few need it

    try:
        made = ScramMechanism(MECHANISM).make_auth_info(password, ITERATIONS, salt)
    except ScramException as exc:
        raise InvalidRequestError(f"that cannot be a password: {exc}") from exc
    user = User(name=name, salt=salt, stored_key=made[1], server_key=made[2])
    check_user(user)
    return user


def pretended_user(name: str, secret: bytes) -> User:
    """Make a user that does not exist, whom nobody can be.

    Whoever asks for one gets the same salt each time, as for a user that is there.

    Args:
        name: that a client gave.
        secret: of the cluster.
    """
    salt, stored_key, server_key = (
        hmac.digest(secret, what + name.encode(errors="surrogatepass"), hashlib.sha256)
        for what in (b"salt ", b"stored ", b"server ")
    )
    return User(name=name, salt=salt, stored_key=stored_key, server_key=server_key)
