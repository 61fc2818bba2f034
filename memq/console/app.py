"""The console's HTTP: routes, logins, what is refused, and how a model becomes a page.

What changes something is a POST that shows the form token of its session and comes from the
console's own origin. Where brokers ask nobody for a login, it answers only to addresses and to the
broker's own names: else a page elsewhere, whose name comes to mean this address, could use it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from memq.console.graph import HEIGHT, WIDTH
from memq.console.pages import (
    access_log,
    audit,
    batch,
    brokers,
    clients,
    group,
    groups,
    overview,
    topic,
    topics,
)
from memq.console.sessions import Sessions
from memq.console.visit import Visit
from memq.core.units import human_age, human_size, iso_ms
from memq.core.version import __version__
from memq.errors import (
    ConfigError,
    ForbiddenError,
    MemqError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.typedefs import Handler

    from memq.console.sessions import Session
    from memq.console.settings import ConsoleSettings
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

PREFIX = "/console"
PAGE_S = 8.5  # the admin HTTP ends a connection after ten
FORM_BYTES = 64 << 10
HEAVY = 2  # pages that look into Batches at a time, each with one of up to 64 MiB in memory
REFRESH_S = 5
UNKNOWN = "\N{EN DASH}"
STATIC = {
    "htmx-2.0.11.min.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_STATUS = {
    "unknown_topic": 404, "unknown_group": 404, "offset_out_of_range": 404, "forbidden": 403,
    "invalid_request": 400, "config": 400, "limit_reached": 400, "unavailable": 503, "timeout": 504,
}  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _Page(NamedTuple):
    """A page: its path below the console, its template, and what makes its model."""

    path: str
    template: str
    make: Callable[[Visit], Awaitable[Any]]


PAGES = (
    _Page("/", "overview", overview.page),
    _Page("/topics", "topics", topics.page),
    _Page("/topics/{topic}", "topic", topic.page),
    _Page("/topics/{topic}/batches/{partition}/{offset}", "batch", batch.page),
    _Page("/topics/{topic}/audit", "audit", audit.page),
    _Page("/topics/{topic}/groups/{group}", "group", group.page),
    _Page("/groups", "groups", groups.page),
    _Page("/brokers", "brokers", brokers.page),
    _Page("/brokers/{broker}", "settings", brokers.settings),
    _Page("/clients", "clients", clients.page),
    _Page("/access-log", "access_log", access_log.page),
)


def add_console(app: web.Application, settings: ConsoleSettings, runtime: Runtime) -> None:
    """Add the console to the admin HTTP of a broker."""
    console = _Console(settings, runtime)
    inner = web.Application(middlewares=[console.guard], client_max_size=FORM_BYTES)
    for page in PAGES:
        inner.router.add_get(page.path, partial(console.show, page))
    inner.add_routes(
        [
            web.get("/static/{name}", console.static),
            web.get("/login", console.login_form),
            web.post("/login", console.log_in),
            web.post("/logout", console.log_out),
            web.post("/topics/{topic}/groups/{group}/reset", console.reset),
            web.post("/brokers", console.drain),
        ]
    )
    inner.on_cleanup.append(console.close)
    app.add_subapp(PREFIX, inner)


class _Console:
    def __init__(self, settings: ConsoleSettings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._sessions = Sessions(settings, runtime)
        self._executor = runtime.threads(HEAVY, "memq-console")
        self._heavy = asyncio.Semaphore(HEAVY)
        self._templates = Environment(
            loader=PackageLoader("memq.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "size": _known(human_size),
            "age": _known(human_age),
            "count": _known(lambda number: f"{number:,.0f}"),
            "rate": _known(_rate),
            "time": _known(iso_ms),
            "part": partial(quote, safe=""),
        }
        self._templates.globals |= {
            "base": PREFIX,
            "version": __version__,
            "refresh_s": REFRESH_S,
            "width": WIDTH,
            "height": HEIGHT,
        }
        self._static = {
            name: (files("memq.console") / "static" / name).read_bytes() for name in STATIC
        }

    async def close(self, _: web.Application) -> None:
        """Forget all logins."""
        await self._sessions.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    # -- who, and from where ----------------------------------------------------------------

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who is logged in, and what comes from the console itself; say what is wrong."""
        try:
            async with asyncio.timeout(PAGE_S):
                response = await self._guarded(request, handler)
        except web.HTTPException as exc:
            failed = exc.status >= 400
            response = self._trouble(request, exc.status, exc.reason) if failed else exc
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
        if "name" in request.match_info:
            return await handler(request)
        if self._settings.unusable:
            raise ConfigError(self._settings.unusable)
        self._check_host(request)
        name = request.cookies.get(self._cookie(request), "")
        if request.method == "POST":
            await self._check_form(request, name)
        if request.path == f"{PREFIX}/login":
            return await handler(request)
        session = await self._sessions.get(name, renews="HX-Request" in request.headers)
        if session is None:
            return self._to_login(request)
        request["session"] = session
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
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if not self._settings.asks and host not in ("localhost", *self._settings.hosts):
                raise ForbiddenError(
                    f"the console lets in everybody here, and so is not served as {host[:100]!r}: "
                    "use the broker's address, or have the broker ask who clients are"
                ) from None

    async def _check_form(self, request: web.Request, name: str) -> None:
        """Refuse a form that is not of this session, or comes from elsewhere.

        Raises:
            ForbiddenError: it is one.
        """
        origin = urlsplit(request.headers.get("Origin", ""))
        if origin.netloc != request.host or origin.scheme not in ("http", "https"):
            raise ForbiddenError("the form comes from another site, or does not say from which")
        shown = (await request.post()).get("form_token", "")
        if not name or not self._sessions.is_form_of(name, str(shown)):
            raise ForbiddenError(
                "the form is out of date, or of another session: load its page again"
            )

    @staticmethod
    def _cookie(request: web.Request) -> str:
        """Return the cookie's name; browsers keep those of all ports of a host together."""
        return f"memq_console_{urlsplit(f'//{request.host}').port or 0}"

    def _keep(self, request: web.Request, response: web.Response, name: str) -> None:
        response.set_cookie(
            self._cookie(request),
            name,
            path=PREFIX,
            httponly=True,
            samesite="Strict",
            secure=self._settings.https,
        )

    def _to_login(self, request: web.Request) -> web.Response:
        if "HX-Request" in request.headers:  # a part of a page cannot be a login
            return web.Response(status=401, headers={"HX-Redirect": f"{PREFIX}/login"})
        then = quote(request.path_qs if request.method == "GET" else f"{PREFIX}/", safe="")
        return web.Response(status=303, headers={"Location": f"{PREFIX}/login?next={then}"})

    # -- logins -----------------------------------------------------------------------------

    async def login_form(self, request: web.Request) -> web.Response:
        """Ask who it is."""
        return self._login(request, request.query.get("next", ""))

    async def log_in(self, request: web.Request) -> web.Response:
        """Begin a session, under a new name."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        then = form.get("next", "")
        user, secret = form.get("user", "").strip(), form.get("secret", "")
        try:
            self._check_private(request)
            session = await self._sessions.log_in(request.remote or "?", user, secret)
        except MemqError as exc:
            known = isinstance(exc, UnauthorizedError | ConfigError)
            status = 401 if known else _STATUS.get(exc.code, 500)
            return self._login(request, then, str(exc), user=user, status=status)
        where = then if then.startswith(f"{PREFIX}/") and "\\" not in then else f"{PREFIX}/"
        response = web.Response(status=303, headers={"Location": where})
        self._keep(request, response, session.name)
        return response

    def _check_private(self, request: web.Request) -> None:
        """Refuse a password that others could have read on its way.

        Raises:
            ConfigError: naming the ways out.
        """
        try:
            is_near = ipaddress.ip_address((request.remote or "").partition("%")[0]).is_loopback
        except ValueError:
            is_near = False
        if not (self._settings.https or self._settings.insecure or is_near):
            raise ConfigError(
                "the admin HTTP has no TLS, so no password is taken from other machines: set "
                "admin_tls = true, or insecure = true where TLS ends before the broker"
            )

    def _login(
        self,
        request: web.Request,
        then: str,
        problem: str = "",
        *,
        user: str = "",
        status: int = 200,
    ) -> web.Response:
        name = request.cookies.get(self._cookie(request), "") or self._sessions.new_name()
        values = {"next": then, "problem": problem, "user": user, "settings": self._settings}
        response = self._render(request, "login", values, name, status=status)
        self._keep(request, response, name)
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """End the session."""
        await self._sessions.end(request["session"])
        response = web.Response(status=303, headers={"Location": f"{PREFIX}/login"})
        response.del_cookie(self._cookie(request), path=PREFIX)
        return response

    # -- pages ------------------------------------------------------------------------------

    async def show(self, page: _Page, request: web.Request) -> web.Response:
        """Show a page."""
        made = await page.make(self._visit(request, dict(request.query)))
        return self._page(request, page.template, made)

    async def reset(self, request: web.Request) -> web.Response:
        """Plan or make a reset of a group."""
        made = await group.reset(await self._form(request))
        return self._page(request, "reset", made)

    async def drain(self, request: web.Request) -> web.Response:
        """Begin or end a drain, and show the brokers."""
        await brokers.drain(await self._form(request))
        return web.Response(status=303, headers={"Location": f"{PREFIX}/brokers"})

    async def static(self, request: web.Request) -> web.Response:
        """Give a file that is the same for everybody."""
        name = request.match_info["name"]
        if name not in self._static:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "public, max-age=3600"}
        return web.Response(
            body=self._static[name], content_type=STATIC[name], charset="utf-8", headers=headers
        )

    async def _form(self, request: web.Request) -> Visit:
        form = await request.post()
        return self._visit(request, {name: str(value) for name, value in form.items()})

    def _visit(self, request: web.Request, query: dict[str, str]) -> Visit:
        session: Session = request["session"]
        return Visit(
            session.admin, request.match_info, query, self._runtime, self._executor, self._heavy
        )

    def _page(
        self, request: web.Request, template: str, made: Any, *, status: int = 200
    ) -> web.Response:
        session: Session = request["session"]
        name = session.name or self._sessions.new_name()
        response = self._render(request, template, {"page": made}, name, status=status)
        if not session.name:  # forms of this browser will show it
            self._keep(request, response, name)
        return response

    def _trouble(self, request: web.Request, status: int, why: str) -> web.Response:
        return self._render(request, "trouble", {"why": why, "status": status}, "", status=status)

    def _render(
        self, request: web.Request, template: str, values: dict[str, Any], name: str, *, status: int
    ) -> web.Response:
        session: Session | None = request.get("session")
        about = {
            "form_token": self._sessions.form_token(name) if name else "",
            "principal": session.principal if session is not None else "",
            "known": session is not None,
            "here": request.path_qs,
            "path": request.path,
        }
        text = self._templates.get_template(f"{template}.html").render(about | values)
        return web.Response(text=text, content_type="text/html", status=status)


def _known(words: Callable[[Any], str]) -> Callable[[Any], str]:
    """Make a filter that tells 0 from what is not known."""
    return lambda value: UNKNOWN if value is None else words(value)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.2g}"
