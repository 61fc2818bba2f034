"""What deploy/ does; `make lint` looks at the files, with `tests.harness.deploy`."""

import contextlib
import json
import re
import shutil
import ssl
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from memq.core.defaults import DEFAULT_ADMIN_PORT
from memq.runtime.tls import TlsFiles, check_certificate, client_context, server_context
from tests.harness import helm
from tests.harness.certificates import Certificates
from tests.harness.deploy import (
    DEPLOY,
    EVERYTHING,
    SHARED,
    composed,
    configuration,
    rendered,
)
from tests.harness.helm import HelmError

CHART = DEPLOY / "helm" / "memq"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "config.zookeeper is empty"),
        ({"config": SHARED | {"storage": ""}}, "config.storage is empty"),
        ({"config": SHARED | {"queue": "kafka-1:9092"}}, "does not match"),
        ({"config": SHARED | {"advertised": "a:1"}}, "config.advertised: the chart sets it itself"),
        ({"config": SHARED | {"admin_tls": True}}, "config.admin_tls: the chart sets it itself"),
        ({"config": SHARED, "certManager": {"enabled": True}}, "certManager.issuerRef is empty"),
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
    """It is mounted where the broker's options say, and probes and Prometheus speak TLS; without
    one there is none of it.
    """
    given = EVERYTHING | {"certManager": {"enabled": False}}
    for values in (given, given | {"tlsSecret": ""}):
        objects = rendered(CHART, values)
        (monitor,) = [each for each in objects if each["kind"] == "ServiceMonitor"]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert ("scheme" in endpoint) is ("tlsConfig" in endpoint) is bool(values["tlsSecret"])
        sets = [each for each in objects if each["kind"] == "StatefulSet"]
        for pod in (each["spec"]["template"]["spec"] for each in sets):
            (container,) = pod["containers"]
            options = {each["name"]: each.get("value") for each in container["env"]}
            places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
            secrets = {each["name"]: each.get("secret") for each in pod["volumes"]}
            probes = [container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
            schemes = {each["httpGet"]["scheme"] for each in probes}
            assert schemes == {"HTTPS" if options.get("MEMQ_ADMIN_TLS") else "HTTP"}
            if values["tlsSecret"]:
                assert secrets["tls"]["secretName"] == "memq-tls"
                assert options["MEMQ_TLS_CERT"] == f"{places['tls']}/tls.crt"
                assert options["MEMQ_TLS_KEY"] == f"{places['tls']}/tls.key"
                assert options["MEMQ_ADMIN_TLS"] == "true"
            else:
                assert "tls" not in secrets
                assert not {"MEMQ_TLS_CERT", "MEMQ_ADMIN_TLS"} & options.keys()


@pytest.mark.parametrize("secret", ["", "ours"])
def test_cert_manager_makes_the_certificate_of_the_pods(secret):
    """It has the names by which brokers are advertised and clients find a first one, and lies in
    the Secret that the pods have.
    """
    objects = rendered(CHART, EVERYTHING | {"tlsSecret": secret})
    (certificate,) = [each["spec"] for each in objects if each["kind"] == "Certificate"]
    names = certificate["dnsNames"]
    assert certificate["issuerRef"] == EVERYTHING["certManager"]["issuerRef"]
    for each in objects:
        if each["kind"] == "StatefulSet":
            pod, name = each["spec"]["template"]["spec"], each["metadata"]["name"]
            options = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
            host = options["MEMQ_ADVERTISED"].rpartition(":")[0]
            host = host.replace("$(MEMQ_BROKER_ID)", f"{name}-0").replace("$(NAMESPACE)", "data")
            assert f"*.{host.partition('.')[2]}" in names
            (tls,) = [each["secret"] for each in pod["volumes"] if each["name"] == "tls"]
            assert tls["secretName"] == certificate["secretName"]
        if each["kind"] == "ServiceMonitor":
            (endpoint,) = each["spec"]["endpoints"]
            assert f"*.{endpoint['tlsConfig']['serverName'].partition('.')[2]}" in names
            assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == certificate["secretName"]
        if each["kind"] == "Service" and "clusterIP" not in each["spec"]:
            service = each["metadata"]["name"]
            assert {service, f"{service}.data.svc.cluster.local"} < set(names)
    assert "memq.example.com" in names


def test_brokers_of_the_composition_take_the_certificate_of_the_script(tmp_path):
    """It has the name of each; clients know it by the CA; and nobody else comes to its key."""
    script = shutil.copy(DEPLOY / "compose" / "certificates.sh", tmp_path)
    files = [tmp_path / "tls" / f"{name}.pem" for name in ("ca", "broker", "broker-key")]
    for _ in range(2):
        subprocess.run([script], check=True, capture_output=True)
        assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
        assert sorted((tmp_path / "tls").iterdir()) == sorted(files)
    ca, cert, key = map(str, files)
    context, theirs = server_context(TlsFiles(ca, cert, key), "none"), client_context(TlsFiles(ca))
    compose = DEPLOY / "compose"
    services = composed(compose / "compose.yaml", compose / "compose.tls.yaml")
    brokers = [each["environment"] for each in services.values() if "secrets" in each]
    hosts = [each["MEMQ_ADVERTISED"].partition(":")[0] for each in brokers if "MEMQ_ROLE" in each]
    hosts += [each["MEMQ_BROKER_ID"] for each in brokers if "MEMQ_BROKER_ID" in each]
    assert len(hosts) == 5
    for host in [*hosts, "127.0.0.1"]:
        check_certificate(context, cert, host, time.time())
        shake_hands(context, theirs, host)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """A handshake of both in memory; raises when the client does not know the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert ours.version() == theirs.version() is not None


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
    compose = DEPLOY / "compose"
    plain, tls = compose / "compose.yaml", compose / "compose.tls.yaml"
    for paths in ([plain], [plain, tls]):
        yield "/ready", composed(*paths)["broker-a1"]["healthcheck"]["test"][1:]


@pytest.mark.parametrize(
    ("page", "command"), list(health_checks()), ids=["image", "composition", "with TLS"]
)
def test_a_health_check_sees_what_the_broker_says(page, command, tmp_path):
    """It succeeds when the page says so, and fails when it does not or nobody answers."""
    certificates = Certificates(tmp_path)
    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        if "https:" in command[-1]:
            cert, key = certificates.write(certificates.issue())
            context = server_context(TlsFiles(certificates.ca, cert, key), "none")
            server.socket = context.wrap_socket(server.socket, server_side=True)
            command = [each.replace("/run/secrets/ca.pem", certificates.ca) for each in command]
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
