"""What deploy/ does; `make lint` looks at the files, with `tests.harness.deploy`."""

import json
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import yaml

from memq.core.defaults import DEFAULT_ADMIN_PORT
from tests.harness import helm
from tests.harness.deploy import DEPLOY, EVERYTHING, SHARED, configuration, rendered
from tests.harness.helm import HelmError

CHART = DEPLOY / "helm" / "memq"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "config.zookeeper is empty"),
        ({"config": SHARED | {"storage": ""}}, "config.storage is empty"),
        ({"config": SHARED | {"queue": "kafka-1:9092"}}, "does not match"),
        ({"config": SHARED | {"advertised": "a:1"}}, "config.advertised: the chart sets it itself"),
        ({"config": SHARED | {"token": "x"}}, "give existingSecret a Secret with MEMQ_TOKEN"),
        ({"config": SHARED, "replicas": 3}, "additional properties 'replicas' not allowed"),
    ],
)
def test_wrong_values_are_refused(values, message):
    """What is missing, misspelt or not for users to set is named before anything is installed."""
    with pytest.raises(HelmError, match=re.escape(message)):
        helm.render(CHART, values)


def test_values_reach_the_broker_as_they_were_written():
    """Numbers, flags, texts of any kind and tables are in the TOML what they are in YAML."""
    config = configuration(rendered(CHART, EVERYTHING))
    assert {name: config[name] for name in EVERYTHING["config"]} == EVERYTHING["config"]


def test_a_secret_with_a_certificate_switches_tls_on():
    """It is mounted where the broker's options say; without one there is neither."""
    for values in (EVERYTHING, EVERYTHING | {"tlsSecret": ""}):
        sets = [each for each in rendered(CHART, values) if each["kind"] == "StatefulSet"]
        for pod in (each["spec"]["template"]["spec"] for each in sets):
            (container,) = pod["containers"]
            options = {each["name"]: each.get("value") for each in container["env"]}
            places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
            secrets = {each["name"]: each.get("secret") for each in pod["volumes"]}
            if values["tlsSecret"]:
                assert secrets["tls"]["secretName"] == "memq-tls"
                assert options["MEMQ_TLS_CERT"] == f"{places['tls']}/tls.crt"
                assert options["MEMQ_TLS_KEY"] == f"{places['tls']}/tls.key"
            else:
                assert "tls" not in secrets
                assert "MEMQ_TLS_CERT" not in options


class Admin(BaseHTTPRequestHandler):
    """Admin HTTP that answers each page with the status of its server; any other is an error."""

    def do_GET(self):
        self.send_response(self.server.pages.get(self.path, 404))
        self.end_headers()

    def log_message(self, *_):
        pass


def health_checks():
    """The page and the command of each health check."""
    image = (DEPLOY / "docker" / "Dockerfile").read_text()
    yield "/health", json.loads(re.search(r"^HEALTHCHECK[^[]+(\[.+\])", image, re.MULTILINE)[1])
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    yield "/ready", services["broker-a1"]["healthcheck"]["test"][1:]


@pytest.mark.parametrize(("page", "command"), list(health_checks()), ids=["image", "composition"])
def test_a_health_check_sees_what_the_broker_says(page, command):
    """It succeeds when the page says so, and fails when it does not or nobody answers."""
    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        words = [each.replace(str(DEFAULT_ADMIN_PORT), str(server.server_port)) for each in command]
        assert words[0] == "python"
        words[0] = sys.executable
        for status, succeeds in ((200, True), (503, False)):
            server.pages = {page: status}
            done = subprocess.run(words, capture_output=True, timeout=60, check=False)
            assert (done.returncode == 0) is succeeds
        server.shutdown()
        thread.join()
