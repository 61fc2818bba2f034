"""A real browser without a window: Chromium, driven by Selenium.

Debian's packages are installed when they are missing, where that is allowed.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from tests.harness.services.debian import install, one_at_a_time
from tests.harness.services.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from typing import Self

PACKAGES = ("chromium", "chromium-driver")
PAGE_S = 30
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip


class Browser:
    """A browser for many tests; as a context manager it leaves no process behind.

    Attributes:
        driver: of Selenium.

    Raises:
        ServiceUnavailableError: there is none, and none can be installed.
    """

    def __init__(self) -> None:
        get()
        try:
            from selenium import webdriver
            from selenium.webdriver.chrome.service import Service
        except ImportError as exc:
            raise ServiceUnavailableError("Chromium", f"no selenium: {exc}") from exc
        self._profile = tempfile.mkdtemp(prefix="memq-browser-")
        options = webdriver.ChromeOptions()
        for option in (*OPTIONS, f"--user-data-dir={self._profile}"):
            options.add_argument(option)
        options.binary_location = str(shutil.which("chromium"))
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(shutil.which("chromedriver"))
        self.driver: Any = webdriver.Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(PAGE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the page a size, also one that no window may have, and light or dark colors."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def complaints(self) -> list[str]:
        """Take what the console has said since this was asked last: errors, violations of CSP."""
        return [each["message"] for each in self.driver.get_log("browser")]


def get() -> None:
    """Install it where it is missing.

    Raises:
        ServiceUnavailableError: that is not allowed, or failed.
    """
    with one_at_a_time():
        if not (shutil.which("chromium") and shutil.which("chromedriver")):
            install(*PACKAGES)
