"""Who is at the console: logins, cookies, and what a form must show to change something.

Where brokers ask who clients are, a session is a client with the login of a person. It holds the
password or token as any client does, to connect again, until it ends: at logout, when nobody has
asked for a page for `IDLE_S`, after `MAX_AGE_S`, or when others need its place. A page that renews
itself does not keep a session alive.

Where brokers ask nobody, all browsers share one client, and a cookie only ties forms to a browser.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.admin import AsyncAdminClient
from memq.errors import UnauthorizedError

if TYPE_CHECKING:
    from memq.console.settings import ConsoleSettings
    from memq.runtime.system import Runtime

MAX_SESSIONS = 64  # each has a connection to each broker; operators are few
IDLE_S = 3_600.0
MAX_AGE_S = 12 * 3_600.0  # a working day
LOGINS = 2  # at a time: each hashes a password, which takes a processor some milliseconds
REQUEST_S = 5.0  # of a call; a page has less than ten seconds
ID_BYTES = 32
MAX_SECRET = 16_384  # characters of a password or token


@dataclass(eq=False)
class Session:
    """A person at a browser.

    Attributes:
        name: of the session, a secret that its cookie has.
        admin: the client with the login.
        principal: who that is for the brokers.
        begun_s: when it began.
        used_s: when a page was asked for last.
    """

    name: str
    admin: AsyncAdminClient
    principal: str = ""
    begun_s: float = 0.0
    used_s: float = 0.0

    def __repr__(self) -> str:
        return f"<Session of {self.principal or 'anybody'}>"  # its name is a secret


class Sessions:
    """All of them.

    Args:
        settings: of the console.
        runtime: clocks and chance.
    """

    def __init__(self, settings: ConsoleSettings, runtime: Runtime) -> None:
        self._settings, self._runtime = settings, runtime
        self._secret = bytes.fromhex(runtime.token_hex(ID_BYTES))
        self._open: dict[str, Session] = {}  # the one used last is last
        self._shared: AsyncAdminClient | None = None
        self._logins = asyncio.Semaphore(LOGINS)

    def __repr__(self) -> str:
        return f"<Sessions [{len(self._open)} open]>"

    def new_name(self) -> str:
        """Make a name for a session that nobody can guess."""
        return self._runtime.token_hex(ID_BYTES)

    def form_token(self, name: str) -> str:
        """Return what the forms of a session show."""
        return hmac.digest(self._secret, name.encode(), "sha256").hex()

    def is_form_of(self, name: str, shown: str) -> bool:
        """Return whether a form is of that session."""
        return hmac.compare_digest(self.form_token(name).encode(), shown.encode())

    async def get(self, name: str, *, renews: bool) -> Session | None:
        """Return the session of a cookie; None when it has none, or it has ended.

        Args:
            name: as the cookie has it.
            renews: the page renews itself, which does not keep a session alive.
        """
        if not self._settings.asks:
            if self._shared is None:
                self._shared = self._client("", {})
            return Session(name, self._shared)
        await self._sweep()
        found = self._open.get(name)
        if found is not None and not renews:
            found.used_s = self._runtime.mono_s()
            self._open[name] = self._open.pop(name)  # the last one again
        return found

    async def log_in(self, remote: str, user: str, secret: str) -> Session:
        """Begin a session.

        Args:
            remote: address of the browser, which the access log and lists of clients show.
            user: name of the user; empty where the secret is a token.
            secret: password or token.

        Raises:
            UnauthorizedError: the brokers refuse them.
            ConfigError: they can be none.
            MemqError: no broker answers.
        """
        if not secret or len(secret) > MAX_SECRET or len(user) > MAX_SECRET:
            raise UnauthorizedError("give a user and a password, or a token alone")
        login = {"user": user, "password": secret} if user else {}
        client = self._client(remote, login, "" if user else secret)
        try:
            async with self._logins:
                await client.cluster.metadata([])
        except BaseException:
            await client.close()
            raise
        now_s = self._runtime.mono_s()
        session = Session(self.new_name(), client, client.cluster.principal, now_s, now_s)
        await self._sweep(room_for=1)
        self._open[session.name] = session
        return session

    def _client(self, remote: str, login: dict[str, str], token: str = "") -> AsyncAdminClient:
        return AsyncAdminClient(
            self._settings.address,
            client=f"console {remote}".strip(),
            token=token,
            security=self._settings.security | login,
            request_timeout_s=REQUEST_S,
            inherit=False,  # what the broker's own environment has is not this person's
            runtime=self._runtime,
        )

    async def end(self, session: Session) -> None:
        """End a session; its login is forgotten."""
        if self._open.pop(session.name, None) is not None:
            await session.admin.close()

    async def close(self) -> None:
        """End all."""
        for session in list(self._open.values()):
            await self.end(session)
        if self._shared is not None:
            await self._shared.close()

    async def _sweep(self, room_for: int = 0) -> None:
        now_s = self._runtime.mono_s()
        for each in list(self._open.values()):
            old = now_s - each.used_s > IDLE_S or now_s - each.begun_s > MAX_AGE_S
            if old or len(self._open) + room_for > MAX_SESSIONS:
                await self.end(each)
