"""The pages over HTTP: read only, for those who may read assets in Airflow.

Each page is HTML, and the same as JSON at `index.json` beside it, or where JSON is asked for. What
a user may not read in Airflow is not there. No script runs, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_provider_memq.plugins import pages
from airflow_provider_memq.plugins.access import Access
from airflow_provider_memq.plugins.addresses import HOME, ROOT, to_range
from airflow_provider_memq.plugins.looks import in_a_line
from airflow_provider_memq.plugins.sources import plan_of
from airflow_provider_memq.range_assets import ranges_asset
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

app = FastAPI(title="MemQ", docs_url=None, redoc_url=None, openapi_url=None)


def _check_names(request: Request) -> None:
    """Refuse a name that no topic and no asset can have; PostgreSQL takes some for an error."""
    for name in filter(
        None, (request.path_params.get("topic"), request.query_params.get("ranges"))
    ):
        try:
            can_be = "\0" not in name and ranges_asset(name) and plan_of(name)
        except ValueError:  # of Airflow, about the name of an asset
            can_be = None
        if not can_be:
            text = f"{in_a_line(repr(name))} is the name of nothing"
            raise HTTPException(status.HTTP_404_NOT_FOUND, text)


pages_for_users = APIRouter(
    dependencies=[Depends(requires_access_asset("GET")), Depends(_check_names)]
)


@app.middleware("http")
async def _with_headers(
    request: Request, answer: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


# -- pages ----------------------------------------------------------------------------------


@pages_for_users.get("/index.json")
@pages_for_users.get("/")
def index(request: Request, user: GetUserDep) -> Response:
    """The topics."""
    return _shown(request, "index.html", pages.index_page(Access(user)))


@pages_for_users.get("/topics/{topic}/index.json")
@pages_for_users.get("/topics/{topic}/")
def topic_page(  # noqa: PLR0917 - each is of the query
    request: Request,
    user: GetUserDep,
    topic: str,
    ranges: str = "",
    before: Annotated[datetime | None, Query()] = None,
    skip: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """A topic; `ranges` names the asset where several plan it, `before` and `skip` older ranges."""
    if before is not None:
        if not MINYEAR < before.year < MAXYEAR:  # so no time zone takes it out of time
            raise HTTPException(status.HTTP_400_BAD_REQUEST, f"before: the year {before.year}")
        before = before.replace(tzinfo=before.tzinfo or UTC)
    view = pages.topic_page(Access(user), topic, ranges, before, skip)
    return _shown(request, "topic.html", view)


@pages_for_users.get("/topics/{topic}/find")
def find(
    user: GetUserDep,
    topic: str,
    partition: Annotated[int, Query(ge=0)],
    offset: Annotated[int, Query(ge=0)],
    ranges: str = "",
) -> Response:
    """To the range that an offset was planned in."""
    key = pages.find_range(Access(user), topic, partition, offset, ranges)
    return RedirectResponse(to_range(topic, key, ranges), status.HTTP_303_SEE_OTHER)


@pages_for_users.get("/topics/{topic}/ranges/{key}/index.json")
@pages_for_users.get("/topics/{topic}/ranges/{key}/")
def range_page(
    request: Request, user: GetUserDep, topic: str, key: str, ranges: str = ""
) -> Response:
    """A range: its runs, its manifest, its snapshots."""
    return _shown(request, "range.html", pages.range_page(Access(user), topic, key, ranges))


@app.get("/style.css")
def style() -> Response:
    """How the pages look; for everybody, for those who are refused see a page too."""
    return Response((HERE / "templates" / "style.css").read_text(), media_type="text/css")


app.include_router(pages_for_users)


# -- what cannot be shown -------------------------------------------------------------------


@app.exception_handler(AnyHTTPException)
def _refused(request: Request, exc: HTTPException) -> Response:
    return _trouble(request, exc.status_code, str(exc.detail))


@app.exception_handler(RequestValidationError)
def _malformed(request: Request, exc: RequestValidationError) -> Response:
    wrong = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in exc.errors())
    return _trouble(request, status.HTTP_400_BAD_REQUEST, wrong)


@app.exception_handler(MemqError)
def _failed(request: Request, exc: MemqError) -> Response:
    # Such as a plan that is damaged: what Airflow has kept cannot be told.
    return _trouble(request, status.HTTP_409_CONFLICT, in_a_line(exc))


def _trouble(request: Request, code: int, text: str) -> Response:
    if _wants_json(request):
        return JSONResponse({"detail": text}, code)
    login = ""
    if code == status.HTTP_401_UNAUTHORIZED:
        login = get_auth_manager().get_url_login(next_url=str(request.url))
    return _html("trouble.html", code, code=code, text=text, login=login)


def _shown(request: Request, template: str, view: Any) -> Response:
    if _wants_json(request):
        return JSONResponse(asdict(view))
    return _html(template, status.HTTP_200_OK, page=view, json=_json_beside(request))


def _json_beside(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"index.json{query}"


def _html(template: str, status_code: int, **values: Any) -> Response:
    text = _templates.get_template(template).render(home=HOME, root=ROOT, **values)
    return HTMLResponse(text, status_code)


def _wants_json(request: Request) -> bool:
    """Whether JSON is asked for, by the address or by what is accepted first."""
    if request.url.path.endswith(".json"):
        return True
    accepted = request.headers.get("accept", "").partition(",")[0]
    return accepted.partition(";")[0].strip() == "application/json"
