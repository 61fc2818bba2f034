"""A broker with a console in the test process, and a browser without a screen or scripts."""

import re
from contextlib import asynccontextmanager
from html import unescape

import aiohttp

from memq.broker.config import BrokerConfig
from memq.broker.server import Broker
from memq.cli.console import add_pages

PASSWORD = "correct horse"  # noqa: S105 - of nobody
ASKING = {"authentication": "required", "superusers": "User:root", "token": "root admin-token"}


@asynccontextmanager
async def console_broker(tmp_path, **options):
    """A started broker with real files, and its console."""
    given = {"data_dir": str(tmp_path / "data"), "port": 0, "admin_port": 0} | options
    running = Broker(BrokerConfig.create(given), pages=add_pages)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


class Visitor:
    """Follows links and sends forms, with cookies, as a browser does."""

    def __init__(self, broker, session, scheme="http"):
        self.base = f"{scheme}://127.0.0.1:{broker.admin_port}/console"
        self.origin = self.base.removesuffix("/console")
        self.session = session

    async def get(self, path, **headers):
        """Status, text and address of a page, after redirects."""
        async with self.session.get(self.base + path, headers=headers) as answer:
            return answer.status, await answer.text(), str(answer.url)

    async def raw(self, method, path, data=None, **headers):
        """An answer as it comes."""
        async with self.session.request(
            method, self.base + path, data=data, headers=headers, allow_redirects=False
        ) as answer:
            await answer.read()
            return answer

    async def post(self, page, action, **fields):
        """Send a form, with the token that a page has."""
        _, text, _ = await self.get(page)
        fields = {"form_token": token_in(text)} | fields
        async with self.session.post(
            self.base + action, data=fields, headers={"Origin": self.origin}
        ) as answer:
            return answer.status, await answer.text(), str(answer.url)

    async def log_in(self, user, secret, then="/console/"):
        """Log in by the form."""
        return await self.post(f"/login?next={then}", "/login", user=user, secret=secret, next=then)


@asynccontextmanager
async def visitor(broker, **options):
    """A browser of its own."""
    jar = aiohttp.CookieJar(unsafe=True)  # of an address as well
    async with aiohttp.ClientSession(cookie_jar=jar, **options) as session:
        yield Visitor(broker, session)


def token_in(text):
    """The form token of a page."""
    found = re.search(r'name="form_token" value="([^"]*)"', text)
    return found[1] if found else ""


def shown(text):
    """What a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())
