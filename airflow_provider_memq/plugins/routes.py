"""The pages over HTTP: read only, for those who may read assets in Airflow.

Each page is HTML, and the same as JSON at `index.json` beside it. What a user may not read in
Airflow is not there. No script runs, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.api_fastapi.app import API_ROOT_PATH, get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response, status
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_provider_memq.plugins import PREFIX, pages
from airflow_provider_memq.plugins.outside import in_a_line
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HERE = Path(__file__).parent
ROOT = API_ROOT_PATH.rstrip("/")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def _in_html(value: Any) -> Any:
    """Put a value as a page shows it: what nobody knows is a question mark."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return "?" if value is None else value


_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_in_html,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters["quoted"] = partial(quote, safe="")  # as a part of an address
_templates.globals.update(root=ROOT, home=f"{ROOT}{PREFIX}/")

app = FastAPI(title="MemQ", docs_url=None, redoc_url=None, openapi_url=None)


def _check_names(request: Request) -> None:
    """Refuse a name that a database takes for an error."""
    for name in (request.path_params.get("topic", ""), request.query_params.get("ranges", "")):
        if not name.isprintable():
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
def topics(request: Request, user: GetUserDep) -> Response:
    """Show the topics."""
    return _shown(request, "index.html", pages.topics_page(user))


@pages_for_users.get("/topics/{topic}/index.json")
@pages_for_users.get("/topics/{topic}/")
def topic_page(request: Request, user: GetUserDep, topic: str, ranges: str = "") -> Response:
    """Show a topic; `ranges` names the asset of its ranges, where that has a name of its own."""
    return _shown(request, "topic.html", pages.topic_page(user, topic, ranges), ranges)


@pages_for_users.get("/topics/{topic}/find")
def find(user: GetUserDep, topic: str, partition: int, offset: int, ranges: str = "") -> Response:
    """Lead to the range that an offset was planned in."""
    key = pages.find_range(user, topic, partition, offset, ranges)
    return RedirectResponse(f"ranges/{key}/{_query(ranges)}", status.HTTP_303_SEE_OTHER)


@pages_for_users.get("/topics/{topic}/ranges/{key}/index.json")
@pages_for_users.get("/topics/{topic}/ranges/{key}/")
def range_page(
    request: Request, user: GetUserDep, topic: str, key: str, ranges: str = ""
) -> Response:
    """Show a range: its runs, its manifest, its snapshots."""
    return _shown(request, "range.html", pages.range_page(user, topic, key, ranges), ranges)


@app.get("/style.css")
def style() -> Response:
    """Give the looks of the pages; to everybody, for those who are refused see a page too."""
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
    return HTMLResponse(_html("trouble.html", code=code, text=text, login=login), code)


def _shown(request: Request, template: str, page: Any, ranges: str = "") -> Response:
    if _wants_json(request):
        return JSONResponse(jsonable_encoder(page))
    return HTMLResponse(_html(template, page=page, asset=ranges, query=_query(ranges)))


def _query(ranges: str) -> str:
    """The end of an address that names an asset of ranges."""
    return f"?{urlencode({'ranges': ranges})}" if ranges else ""


def _html(template: str, **values: Any) -> str:
    return _templates.get_template(template).render(**values)


def _wants_json(request: Request) -> bool:
    return request.url.path.endswith(".json")
