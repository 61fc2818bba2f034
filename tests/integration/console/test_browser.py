"""The console in a real browser: every page, at each width, by keyboard, and under attack."""

import asyncio
import time
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from memq import AsyncConsumer, AsyncProducer
from memq.client.admin import AsyncAdminClient
from memq.client.figures import group_figures
from memq.errors import MemqError
from memq.testing.broker import BrokerProcess

TOKEN = "admin-token"  # noqa: S105 - of nobody
ATTACK = "<img src=x onerror=window.xss=1><script>window.xss=2</script>"
QUOTES = "\"'><svg/onload=window.xss=3>{{7*7}}"
WAIT_S = 40
COLUMN = '<b onclick="x">n'
PAGES = {
    "/": ["All is well.", "broker-1", "records/s"],
    "/topics": ["clicks", "typed", "Lag, records"],
    "/groups": ["readers", "clicks"],
    "/topics/clicks": ["Batches of partition 0", "timestamp", "readers", "batch_age"],
    "/topics/clicks/batches/0/0": ["100 of 300 in it", "key-0", "kind: test"],
    "/topics/clicks/batches/0/0?verify=1": ["Every byte is sound"],
    "/topics/clicks/batches/0/0?filter=key+%3D+%22key-7%22": ["1 of 1 that match", "value 7"],
    "/topics/clicks/batches/0/0?filter=nope": ["at character 1", "no 'nope'"],
    "/topics/clicks/audit?hours=2": ["Completeness of clicks", "Lost"],
    "/topics/clicks/groups/readers": ["Lag in records", "Members", "Reset offsets"],
    "/topics/typed": [COLUMN, "int64"],
    "/topics/typed/batches/0/0": ["<b onclick=", "onerror"],
    "/brokers": ["broker-1", "governs itself"],
    "/brokers/broker-1": ["token", "***", "data_dir"],
    "/clients": ["User:root", "console 127.0.0.1"],
    "/access-log": ["CreateTopic", "User:root"],
}


def root(broker, **options):
    return AsyncAdminClient(broker.address, token=TOKEN, **options)


async def fill(broker):
    """Topics, records, a group, users: each with names of an attacker, as far as allowed."""
    async with root(broker) as admin:
        await admin.create_topic("clicks", batch_age="10ms", batch_messages=1)
        schema = pa.schema([pa.field(COLUMN, pa.int64()), pa.field(ATTACK, pa.string())])
        await admin.create_topic("typed", schema=schema)
        common = {"token": TOKEN}
        async with AsyncProducer(broker.address, topic="clicks", **common) as producer:
            for number in range(300):
                headers = [("kind", b"test"), (ATTACK, QUOTES.encode())]
                value = f"value {number}"
                await producer.write(value.encode(), key=f"key-{number}".encode(), headers=headers)
        attacker = {"producer_id": ATTACK, "client": ATTACK}
        async with AsyncProducer(broker.address, topic="clicks", **common, **attacker) as producer:
            await producer.write(ATTACK.encode(), key=QUOTES.encode())
            await producer.write(b"\xff\x00<b>", key=None)
        async with AsyncProducer(broker.address, topic="typed", **common) as producer:
            await producer.write_table(pa.table([[1], [ATTACK]], schema=schema))
        await admin.reset_offsets("readers", "clicks", "earliest")
        while not (await group_figures(admin.cluster)).rows:  # the next look finds it
            await asyncio.sleep(0.1)
        for name in (ATTACK, "nobody"):
            with pytest.raises(MemqError):
                async with AsyncAdminClient(
                    broker.address, client=QUOTES, security={"user": name, "password": "wrong"}
                ) as other:
                    await other.cluster.metadata([])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("console")
    options = {
        "authentication": "required",
        "superusers": "User:root",
        "token": f"root {TOKEN}",
        "access_log": str(folder / "access.log"),
    }
    with BrokerProcess(folder / "data", **options) as broker:
        asyncio.run(fill(broker))
        yield broker


class Page:
    """What a person does at the browser."""

    def __init__(self, browser, site):
        self.browser, self.driver, self.base = browser, browser.driver, f"{site.admin}/console"

    def go(self, path):
        self.driver.get(self.base + path)

    def log_in(self):
        self.browser.size(1200, 800)
        self.go("/")
        if not self.driver.find_elements(By.ID, "secret"):
            return
        self.driver.find_element(By.ID, "secret").send_keys(TOKEN, Keys.ENTER)
        self.wait(lambda: "All is well" in self.text)

    def wait(self, condition, timeout_s=WAIT_S):
        stale = [StaleElementReferenceException]  # a page or a part of it was replaced meanwhile
        WebDriverWait(self.driver, timeout_s, ignored_exceptions=stale).until(lambda _: condition())

    @property
    def text(self):
        return self.driver.find_element(By.TAG_NAME, "body").text

    def tab_to(self, text, most=80):
        """Press Tab until the focused element has a name, a label or these words."""
        for _ in range(most):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            focused = self.driver.switch_to.active_element
            if text in (focused.text, focused.get_attribute("id")):
                outline = focused.value_of_css_property("outline-style")
                assert outline != "none", f"the focus on {text} is not seen"
                return focused
        raise AssertionError(f"no {text} is reached by Tab")

    def script(self, code):
        return self.driver.execute_script(f"return {code}")


@pytest.fixture
def page(browser, site):
    page = Page(browser, site)
    page.log_in()
    browser.complaints()
    return page


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_shows_what_it_should(page, path, dark):
    """Its words are there, light and dark, and the browser has nothing to complain about."""
    page.browser.size(1200, 800, dark=dark)
    page.go(path)
    for words in PAGES[path]:
        assert words in page.text
    background = page.script("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark
    assert page.browser.complaints() == []


@pytest.mark.parametrize("path", [*PAGES, "/login", "/nothing"])
def test_a_page_fits_a_phone(page, path):
    """At 360 pixels nothing makes the page wider than the screen; tables scroll by themselves."""
    page.browser.size(360, 700)
    page.go(path)
    assert page.script("innerWidth") == 360
    assert page.script("document.documentElement.scrollWidth") <= 360


def test_from_login_to_reset_by_keyboard(page, site):
    """Every step is reached by Tab, the focus is always seen, and the offsets are reset."""
    page.driver.delete_all_cookies()
    page.go("/login?next=/console/groups")
    page.tab_to("secret").send_keys(TOKEN, Keys.ENTER)
    page.wait(lambda: "readers" in page.text)
    assert page.tab_to("Skip to content").location["x"] >= 0
    page.tab_to("readers").send_keys(Keys.ENTER)
    page.wait(lambda: "Reset offsets" in page.text)
    page.tab_to("to").send_keys("past")
    page.tab_to("Show what would be done").send_keys(Keys.ENTER)
    page.wait(lambda: "Nothing has changed" in page.text)

    async def committed():
        async with root(site) as admin:
            return await admin.committed("readers", "clicks"), await admin.offsets("clicks")

    before, _ = asyncio.run(committed())
    assert before == {0: 0}
    page.tab_to("Do it").send_keys(Keys.ENTER)
    page.wait(lambda: "Done." in page.text)
    after, offsets = asyncio.run(committed())
    assert after == {0: offsets[0].end}
    assert page.browser.complaints() == []


def test_names_of_an_attacker_are_text(page, site):
    """Markup in every name that a client can choose is shown as it is, and nothing runs."""

    @asynccontextmanager
    async def connected():
        options = {"token": TOKEN, "client": ATTACK}
        async with (
            AsyncAdminClient(site.address, token=TOKEN, client=QUOTES) as admin,
            AsyncConsumer(site.address, topic="clicks", group="watched", **options) as consumer,
        ):
            await admin.cluster.metadata([])
            await consumer.poll(5)
            yield

    seen = {}

    def look(*paths):
        for path in paths:
            page.go(path)
            seen[path] = page.text
            assert page.script("window.xss") is None, path

    async def while_connected():
        async with connected():
            await asyncio.to_thread(look, "/clients", "/topics/clicks/groups/watched")

    asyncio.run(while_connected())
    last = asyncio.run(_end(site)) - 1
    look(
        f"/topics/clicks/batches/0/{last}",
        "/topics/clicks/batches/0/0",
        "/topics/typed",
        "/topics/typed/batches/0/0",
        "/access-log",
    )
    assert ATTACK in seen["/clients"]
    assert QUOTES in seen["/clients"]
    assert ATTACK in seen["/topics/clicks/groups/watched"]
    assert ATTACK in seen[f"/topics/clicks/batches/0/{last}"]
    assert ATTACK in seen["/topics/typed"]
    assert QUOTES in seen["/topics/clicks/batches/0/0"]
    assert "onerror" in seen["/access-log"]
    assert page.browser.complaints() == []


async def _end(site):
    async with root(site) as admin:
        return (await admin.offsets("clicks"))[0].end


REFLECTED = "%3Cscript%3Ewindow.xss%3D4%3C%2Fscript%3E%22%27%3E%3Csvg%2Fonload%3Dwindow.xss%3D5%3E"


@pytest.mark.parametrize(
    "path",
    [
        f"/topics/{REFLECTED}",
        f"/topics/clicks/groups/{REFLECTED}",
        f"/brokers/{REFLECTED}",
        f"/topics?find={REFLECTED}&sort={REFLECTED}&page={REFLECTED}",
        f"/topics/clicks?at={REFLECTED}",
        f"/topics/clicks?partition={REFLECTED}",
        f"/topics/clicks/batches/0/{REFLECTED}",
        f"/topics/clicks/batches/0/0?filter={REFLECTED}",
        f"/topics/clicks/audit?hours={REFLECTED}",
        f"/clients?find={REFLECTED}",
        f"/access-log?broker={REFLECTED}",
        f"/{REFLECTED}",
    ],
)
def test_an_address_of_an_attacker_is_text(page, path):
    """What a link brings is shown or left out, and never run; not in forms or links either."""
    page.go(path)
    assert page.script("window.xss") is None
    assert page.script("document.scripts.length") == 1
    assert page.script("document.querySelectorAll('[onload],[onerror],svg[onload]').length") == 0
    bad = [each for each in page.browser.complaints() if "Failed to load resource" not in each]
    assert bad == []


def test_even_markup_that_got_in_would_not_run(page):
    """The policy of the page forbids scripts and styles that are not the console's own."""
    page.go("/")
    page.script("""(() => {
        const it = document.createElement("div");
        it.innerHTML = "<img src=x onerror='window.xss=6'>";
        document.body.append(it);
        const script = document.createElement("script");
        script.textContent = "window.xss=7";
        document.body.append(script);
    })()""")
    page.wait(lambda: any("Content Security Policy" in e for e in page.browser.complaints()), 10)
    assert page.script("window.xss") is None


def test_a_list_renews_itself(page, site):
    """A new topic appears without the page being loaded again; what was typed stays."""
    page.go("/topics")
    page.script("window.mark = 1")
    page.driver.find_element(By.ID, "find").send_keys("typing")

    async def create():
        async with root(site) as admin:
            await admin.create_topic("new-topic")

    asyncio.run(create())
    page.wait(lambda: "new-topic" in page.text)
    assert page.script("window.mark") == 1
    assert page.driver.find_element(By.ID, "find").get_attribute("value") == "typing"


def test_the_lag_is_drawn(page, site):
    """Some looks later the graph has a line and the numbers of now."""

    async def set_back():
        async with root(site) as admin:
            await admin.reset_offsets("drawn", "clicks", {0: 0})

    asyncio.run(set_back())
    page.go("/topics/clicks/groups/drawn")
    page.wait(lambda: page.driver.find_elements(By.TAG_NAME, "polyline"))
    assert "Lag in records: 302" in page.text
    line = page.driver.find_element(By.TAG_NAME, "polyline")
    assert line.value_of_css_property("stroke-width") == "2px"
    started_s = time.monotonic()
    page.wait(lambda: len(line_points(page)) > 1 or time.monotonic() - started_s > 30)


def line_points(page):
    return page.driver.find_element(By.TAG_NAME, "polyline").get_attribute("points").split()
