"""The pages over HTTP: read only, for those who may read assets in Airflow.

Each page is HTML, and the same as JSON at `index.json` beside it. What a user may not read in
Airflow is not there. No script runs, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path as File
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.common.db.common import SessionDep  # noqa: TC002 - FastAPI reads it
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.templating import Jinja2Templates
from jinja2 import StrictUndefined
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_provider_memq.page import PREFIX, queries, views
from airflow_provider_memq.planning.ranges import range_key
from memq.core.ranges import OffsetRange  # noqa: TC001 - FastAPI reads it
from memq.errors import MemqError

TEMPLATES = File(__file__).parent / "templates"
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


_templates = Jinja2Templates(TEMPLATES)
_templates.env.finalize = _in_html
_templates.env.undefined = StrictUndefined
_templates.env.filters["quoted"] = partial(quote, safe="")  # as a part of an address
_templates.env.globals.update(root=ROOT, home=f"{ROOT}{PREFIX}/")


def reader(session: SessionDep, user: GetUserDep) -> queries.PageReader:
    """Say who reads."""
    return queries.PageReader(session, user)


may_read_assets = requires_access_asset("GET")
app = FastAPI(title="MemQ", docs_url=None, redoc_url=None, openapi_url=None)
pages = APIRouter(dependencies=[Depends(may_read_assets)])

Reader = Annotated[queries.PageReader, Depends(reader)]
Topic = Annotated[str, Path(pattern=r"^[\w.-]{1,200}$")]  # a database fails of other names


@pages.get("/index.json")
@pages.get("/")
def topics_page(request: Request, reader: Reader) -> Response:
    """Show the topics that a user may see."""
    return _shown(request, "index.html", {"topics": queries.topics_of(reader)})


@pages.get("/topics/{topic}/index.json")
@pages.get("/topics/{topic}/")
def topic_page(request: Request, reader: Reader, topic: Topic) -> Response:
    """Show how far a topic is; where nobody plans it, only what was audited."""
    now = datetime.now(UTC)
    planned = queries.planned_of(reader, topic)
    audited = queries.audits_of(reader, topic)
    if not planned and not audited:
        raise _nothing(f"topic {topic!r}")
    audit = views.audit_of(audited, now) if audited else None
    page = {"topic": topic, "at": now, "audit": audit, "notes": []}
    page |= _progress(reader, planned, now).page() if planned else {}
    return _shown(request, "topic.html", page)


@pages.get("/topics/{topic}/find")
def find(reader: Reader, topic: Topic, partition: int, offset: int) -> Response:
    """Lead to the range that an offset was planned in."""

    def has_it(each: OffsetRange) -> bool:
        return each.partition == partition and each.start <= offset < each.end

    planned = queries.planned_of(reader, topic, has_it)
    if planned is None:
        raise _nothing(f"topic {topic!r}, partition {partition}, offset {offset}")
    (offsets,) = planned.planned_at
    return RedirectResponse(f"ranges/{range_key(offsets)}/", 303)


@pages.get("/topics/{topic}/ranges/{key}/index.json")
@pages.get("/topics/{topic}/ranges/{key}/")
def range_page(request: Request, reader: Reader, topic: Topic, key: str) -> Response:
    """Show a range: its runs, what they returned, its snapshots."""
    planned = queries.planned_of(reader, topic, lambda each: range_key(each) == key)
    if planned is None:
        raise _nothing(f"topic {topic!r}, range {key}")
    (offsets,) = planned.planned_at
    results = queries.manifests_of(reader, planned.runs.get(key, ()))
    progress = _progress(reader, planned, datetime.now(UTC))
    page = {"topic": topic, "tables": planned.pipeline.tables, "results": results}
    page |= {"range": progress.row(offsets), "notes": progress.notes}
    return _shown(request, "range.html", page)


@app.get("/style.css")
def style() -> Response:
    """Give the looks of the pages; to everybody, for those who are refused see a page too."""
    return Response((TEMPLATES / "style.css").read_text(), media_type="text/css")


app.include_router(pages)


def _nothing(what: str) -> HTTPException:
    plans = f"the newest {queries.MAX_LOOKED} plans"
    return HTTPException(404, f"{what}: nothing is in {plans}, as far as you may see")


def _progress(reader: Reader, planned: queries.Planned, now: datetime) -> views.TopicProgress:
    reader.session.close()  # brokers and tables may take their time
    return views.TopicProgress(planned, *queries.ask_outside(planned), now)


def _shown(request: Request, template: str, page: dict[str, Any], code: int = 200) -> Response:
    if request.url.path.endswith(".json"):
        return JSONResponse(jsonable_encoder(page), code, HEADERS)
    return _templates.TemplateResponse(request, template, {"page": page}, code, HEADERS)


@app.exception_handler(AnyHTTPException)
@app.exception_handler(RequestValidationError)
@app.exception_handler(MemqError)
def _refused(request: Request, exc: Any) -> Response:
    """Say why there is no page: a name that is none, or a plan in Airflow that is damaged."""
    code, text = getattr(exc, "status_code", 409), getattr(exc, "detail", exc)
    if isinstance(exc, RequestValidationError):
        code, text = 400, "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in exc.errors())
    page = {"detail": queries.in_a_line(text), "code": code}
    return _shown(request, "trouble.html", page, code)
