"""A real Prometheus on the loopback, of Debian's package, and its `promtool`.

One that is installed is used. Otherwise the package is fetched by `apt-get download`, and unpacked
into `.services` at the root of the repository, which needs no rights.
"""

import json
import platform
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.harness.ports import free_ports
from tests.harness.services.debian import one_at_a_time, run
from tests.harness.services.errors import ServiceError, ServiceUnavailableError
from tests.harness.services.jars import DIES_WITH_PARENT, FOLDER

DOWNLOAD = ("apt-get", "download", "prometheus")


def program(name: str) -> str:
    """Path of `prometheus` or `promtool`.

    Raises:
        ServiceUnavailableError: it is not installed, and cannot be fetched.
    """
    if found := shutil.which(name):
        return found
    folder = FOLDER / f"prometheus-{platform.machine()}"
    with one_at_a_time():
        if not folder.exists():
            _fetch(folder)
    return str(folder / "usr" / "bin" / name)


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as part:
        try:
            run("prometheus", DOWNLOAD, part)
        except ServiceUnavailableError:  # the lists of packages may be missing
            run("prometheus", ["apt-get", "-qq", "update"])
            run("prometheus", DOWNLOAD, part)
        (package,) = Path(part).glob("prometheus_*.deb")
        run("prometheus", ["dpkg-deb", "-x", str(package), "unpacked"], part)
        (Path(part) / "unpacked").rename(folder)


class Prometheus:
    """A Prometheus that scrapes brokers twice a second, and evaluates rules as often.

    Args:
        folder: for everything that it keeps.
        targets: `host:port` of the admin HTTP of each broker, by name; it is the label `instance`.
        rules: a file of rules.
    """

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: str) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True)
        (folder / "rules.yaml").write_text(rules)
        scrape = [
            {"targets": [address], "labels": {"instance": name}}
            for name, address in targets.items()
        ]
        settings = {
            "global": {
                "scrape_interval": "500ms",
                "scrape_timeout": "500ms",
                "evaluation_interval": "500ms",
            },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "memq", "static_configs": scrape}],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(settings))

    def __enter__(self) -> Self:
        command = [
            *DIES_WITH_PARENT,
            program("prometheus"),
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()

    def firing(self) -> set[tuple[str, str]]:
        """Instance and name of each alert that fires."""
        found = self._get("/api/v1/alerts")["data"]["alerts"]
        return {
            (each["labels"].get("instance", ""), each["labels"]["alertname"])
            for each in found
            if each["state"] == "firing"
        }

    def evaluations(self) -> float:
        """How often the rules were evaluated, with what all targets said."""
        name = "prometheus_rule_group_iterations_total"
        lines = [each for each in self._page("/metrics").splitlines() if each.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def _get(self, path: str) -> Any:
        return json.loads(self._page(path))

    def _page(self, path: str) -> str:
        if self._process.poll() is not None:
            raise ServiceError(f"Prometheus ended:\n{(self._folder / 'log').read_text()}")
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
