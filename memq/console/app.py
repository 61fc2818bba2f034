"""The console's HTTP: routes, logins, what is refused, and how a model becomes a page.

What changes something is a POST that shows the form token of its session and comes from the
console's own origin. Where brokers ask nobody for a login, it answers only to addresses and to the
broker's own names: else a page elsewhere, whose name comes to mean this address, could use it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from contextvars import ContextVar
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from memq.console import graph
from memq.console.pages import audit, batch, cluster, group, lists, topic
from memq.console.sessions import Session, Sessions
from memq.console.visit import Visit
from memq.core.units import human_age, human_size, iso_ms
from memq.core.version import __version__
from memq.errors import ConfigError, ForbiddenError, MemqError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.typedefs import Handler

    from memq.console.settings import ConsoleSettings
    from memq.runtime.system import Runtime

    Make = Callable[[Visit], Awaitable[Any]]

log = logging.getLogger(__name__)

_session: ContextVar[Session | None] = ContextVar("session", default=None)  # of a request

PREFIX = "/console"
LOGIN = f"{PREFIX}/login"
PAGE_S = 8.5  # the admin HTTP ends a connection after ten
FORM_BYTES = 64 << 10
HEAVY = 2  # pages that look into Batches at a time, each with one of up to 64 MiB in memory
REFRESH_S = 5
UNKNOWN = "\N{EN DASH}"
STATIC = {"htmx-2.0.11.min.js": "text/javascript", "style.css": "text/css"} | {
    "icon.svg": "image/svg+xml"
}
PAGES: dict[str, tuple[str, Make]] = {
    "/": ("overview", cluster.overview),
    "/topics": ("topics", lists.topics),
    "/topics/{topic}": ("topic", topic.page),
    "/topics/{topic}/batches/{partition}/{offset}": ("batch", batch.page),
    "/topics/{topic}/audit": ("audit", audit.page),
    "/topics/{topic}/groups/{group}": ("group", group.page),
    "/groups": ("groups", lists.groups),
    "/brokers": ("brokers", cluster.brokers),
    "/brokers/{broker}": ("settings", cluster.broker),
    "/clients": ("clients", lists.clients),
    "/access-log": ("access_log", cluster.broker),
}
"""The template and what makes the model of each page."""
_STATUS = {
    "unknown_topic": 404, "unknown_group": 404, "offset_out_of_range": 404, "forbidden": 403,
    "unauthorized": 401, "invalid_request": 400, "config": 400, "limit_reached": 400,
    "unavailable": 503, "timeout": 504,
}  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def add_console(app: web.Application, settings: ConsoleSettings, runtime: Runtime) -> None:
    """Add the console to the admin HTTP of a broker."""
    console = _Console(settings, runtime)
    inner = web.Application(middlewares=[console.guard], client_max_size=FORM_BYTES)
    for path, (template, make) in PAGES.items():
        inner.router.add_get(path, partial(console.show, template, make))
    reset = "/topics/{topic}/groups/{group}/reset"
    inner.router.add_post(reset, partial(console.show, "reset", group.reset))
    inner.router.add_get("", console.home)
    inner.router.add_post("/brokers", console.drain)
    inner.router.add_get("/static/{file}", console.static)
    inner.router.add_get("/login", console.login_form)
    inner.router.add_post("/login", console.log_in)
    inner.router.add_post("/logout", console.log_out)
    inner.on_cleanup.append(console.close)
    app.add_subapp(PREFIX, inner)


class _Console:
    def __init__(self, settings: ConsoleSettings, runtime: Runtime) -> None:
        self._settings, self._runtime = settings, runtime
        self._sessions = Sessions(settings, runtime)
        self._executor = runtime.threads(HEAVY, "memq-console")
        self._heavy = asyncio.Semaphore(HEAVY)
        loader = PackageLoader("memq.console")
        self._templates = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.lstrip_blocks = True
        words: dict[str, Callable[[Any], str]] = {"size": human_size, "age": human_age}
        words |= {"count": _count, "rate": _rate, "time": iso_ms}
        self._templates.filters |= {name: _known(each) for name, each in words.items()}
        self._templates.filters["part"] = partial(quote, safe="")
        self._templates.globals |= {"base": PREFIX, "version": __version__, "graph": graph}
        self._templates.globals["refresh_s"] = REFRESH_S
        folder = files("memq.console") / "static"
        self._static = {name: (folder / name).read_bytes() for name in STATIC}

    async def close(self, _: web.Application) -> None:
        """Forget all logins."""
        await self._sessions.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    # -- who, and from where ----------------------------------------------------------------

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who is logged in, and what comes from the console itself; say what is wrong."""
        response: web.StreamResponse
        _session.set(None)
        try:
            async with asyncio.timeout(PAGE_S):
                response = await self._guarded(request, handler)
        except web.HTTPException as exc:
            response = self._trouble(request, exc.status, exc.reason)
        except TimeoutError:
            response = self._trouble(request, 504, f"no answer within {PAGE_S:g} s; try again")
        except MemqError as exc:
            response = self._trouble(request, _STATUS.get(exc.code, 500), str(exc))
        except Exception:
            log.exception("unexpected error making %s", request.path)
            response = self._trouble(request, 500, "an unexpected error; the broker's log has it")
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if "file" in request.match_info:
            return await handler(request)
        if self._settings.certificates:
            raise ConfigError(
                "the broker's listener asks for a certificate, which no login here has: let those "
                "of [listeners.NAME] ask for one, and the one of host and port for a password"
            )
        self._check_host(request)
        name = request.cookies.get(self._cookie(request), "")
        if request.method == "POST":
            await self._check_form(request, name)
        if request.path == LOGIN:
            return await handler(request)
        session = await self._sessions.get(name, renews="HX-Request" in request.headers)
        if session is None:
            return self._to_login(request)
        _session.set(session)
        try:
            return await handler(request)
        except UnauthorizedError:
            if not self._settings.asks:
                raise
            await self._sessions.end(session)  # its password or token is over
            return self._to_login(request)

    def _check_host(self, request: web.Request) -> None:
        """Refuse another name, where everybody is let in.

        Raises:
            ForbiddenError: it is one.
        """
        host = urlsplit(f"//{request.host}").hostname or ""
        known = host in ("localhost", *self._settings.hosts) or _address(host) is not None
        if not (self._settings.asks or known):
            raise ForbiddenError(
                f"the console lets in everybody here, and so is not served as {host[:100]!r}: "
                "use the broker's address, or have the broker ask who clients are"
            )

    async def _check_form(self, request: web.Request, name: str) -> None:
        """Refuse a form that is not of this session, or comes from elsewhere.

        Raises:
            ForbiddenError: it is one.
        """
        if urlsplit(request.headers.get("Origin", "")).netloc != request.host:
            raise ForbiddenError("the form comes from another site, or does not say from which")
        shown = str((await request.post()).get("form_token", ""))
        if not (name and self._sessions.is_form_of(name, shown)):
            raise ForbiddenError("the form is out of date, or not of this session: load it again")

    @staticmethod
    def _cookie(request: web.Request) -> str:
        """Return the cookie's name; browsers keep those of all ports of a host together."""
        return f"memq_console_{urlsplit(f'//{request.host}').port or 0}"

    def _keep(self, request: web.Request, response: web.Response, name: str) -> None:
        kind: dict[str, Any] = {"httponly": True, "samesite": "Strict", "path": PREFIX}
        response.set_cookie(self._cookie(request), name, secure=self._settings.https, **kind)

    def _to_login(self, request: web.Request) -> web.Response:
        if "HX-Request" in request.headers:  # a part of a page cannot be a login
            return web.Response(status=401, headers={"HX-Redirect": LOGIN})
        then = quote(request.path_qs if request.method == "GET" else f"{PREFIX}/", safe="")
        return _go(f"{LOGIN}?next={then}")

    # -- logins -----------------------------------------------------------------------------

    async def login_form(self, request: web.Request) -> web.Response:
        """Ask who it is."""
        return self._login(request, {"next": request.query.get("next", "")})

    async def log_in(self, request: web.Request) -> web.Response:
        """Begin a session, under a new name."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        try:
            self._check_private(request)
            user, secret = form.get("user", "").strip(), form.get("secret", "")
            session = await self._sessions.log_in(request.remote or "?", user, secret)
            if old := await self._sessions.get(request.cookies[self._cookie(request)], renews=True):
                await self._sessions.end(old)
        except MemqError as exc:
            return self._login(request, form, str(exc), _STATUS.get(exc.code, 500))
        then = form.get("next", "")
        response = _go(then if then.startswith(f"{PREFIX}/") else f"{PREFIX}/")
        self._keep(request, response, session.name)
        return response

    def _check_private(self, request: web.Request) -> None:
        """Refuse a password that others could have read on its way.

        Raises:
            ConfigError: naming the ways out.
        """
        near = _address((request.remote or "").partition("%")[0])
        private = near is not None and near.is_loopback
        if not (self._settings.https or self._settings.insecure or private):
            raise ConfigError(
                "the admin HTTP has no TLS, so no password is taken from other machines: set "
                "admin_tls = true, or insecure = true where TLS ends before the broker"
            )

    def _login(
        self, request: web.Request, form: dict[str, str], problem: str = "", status: int = 200
    ) -> web.Response:
        name = request.cookies.get(self._cookie(request), "") or self._sessions.new_name()
        values = {"next": form.get("next", ""), "user": form.get("user", ""), "problem": problem}
        values |= {"by": "Token" if self._settings.tokens_only else "Password or token"}
        response = self._render(request, "login", values, name, status)
        self._keep(request, response, name)
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """End the session."""
        await self._sessions.end(_known_session())
        response = _go(LOGIN)
        response.del_cookie(self._cookie(request), path=PREFIX)
        return response

    # -- pages ------------------------------------------------------------------------------

    async def show(self, template: str, make: Make, request: web.Request) -> web.Response:
        """Show a page."""
        made, session = await make(await self._visit(request)), _known_session()
        name = session.name or self._sessions.new_name()
        response = self._render(request, template, {"page": made}, name)
        if not session.name:  # forms of this browser will show it
            self._keep(request, response, name)
        return response

    async def home(self, _: web.Request) -> web.Response:
        """Send who left out the last slash to the first page."""
        return _go(f"{PREFIX}/")

    async def drain(self, request: web.Request) -> web.Response:
        """Begin or end a drain, and show the brokers."""
        await cluster.drain(await self._visit(request))
        return _go(f"{PREFIX}/brokers")

    async def static(self, request: web.Request) -> web.Response:
        """Give a file that is the same for everybody."""
        name = request.match_info["file"]
        if name not in self._static:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "public, max-age=3600"}
        return web.Response(body=self._static[name], content_type=STATIC[name], headers=headers)

    async def _visit(self, request: web.Request) -> Visit:
        """Return who looks at what; of a form, only what the form says."""
        said = await request.post() if request.method == "POST" else request.query
        query = {name: str(value) for name, value in said.items()}
        return Visit(
            _known_session().admin,
            request.match_info,
            query,
            self._runtime,
            self._executor,
            self._heavy,
        )

    def _trouble(self, request: web.Request, status: int, why: str) -> web.Response:
        return self._render(request, "trouble", {"why": why, "status": status}, "", status)

    def _render(
        self,
        request: web.Request,
        template: str,
        values: dict[str, Any],
        name: str,
        status: int = 200,
    ) -> web.Response:
        session = _session.get()
        about = {"here": request.path_qs, "path": request.path, "session": session}
        about["form_token"] = self._sessions.form_token(name or (session.name if session else ""))
        text = self._templates.get_template(f"{template}.html").render(about | values)
        return web.Response(text=text, content_type="text/html", status=status)


def _known_session() -> Session:
    session = _session.get()
    assert session is not None  # noqa: S101 - the guard has set it
    return session


def _go(where: str) -> web.Response:
    return web.Response(status=303, headers={"Location": where})


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None  # it is a name


def _known(words: Callable[[Any], str]) -> Callable[[Any], str]:
    """Make a filter that tells 0 from what is not known."""
    return lambda value: UNKNOWN if value is None else words(value)


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _rate(per_second: float) -> str:
    return _count(per_second) if per_second >= 10 or not per_second else f"{per_second:.2g}"
