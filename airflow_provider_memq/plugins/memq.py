"""`MemqPlugin`: the page *MemQ* in Airflow's UI.

Every process of Airflow loads plugins, workers too. So this module imports nothing of the page: the
API server does, when somebody opens it.

The menu opens the page outside Airflow's UI and not in a frame of it: Airflow puts pages of plugins
into a frame that no link leaves, and this page consists of links to runs.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_memq.page import PREFIX


async def page(scope: Any, receive: Any, send: Any) -> None:
    """Serve the page, as an application of ASGI."""
    from airflow_provider_memq.page.routes import app  # noqa: PLC0415 - see above

    await app(scope, receive, send)


_PAGE = {"name": "MemQ", "app": page, "url_prefix": PREFIX}
_MENU = {"name": "MemQ", "href": f"{PREFIX.removeprefix('/')}/", "category": "browse"}


class MemqPlugin(AirflowPlugin):
    """What is planned, processed, in tables and audited of each topic."""

    name = "memq"
    fastapi_apps: list[Any] = [_PAGE]  # noqa: RUF012 - as Airflow declares it
    external_views: list[Any] = [_MENU]  # noqa: RUF012 - as Airflow declares it
