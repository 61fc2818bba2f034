"""Lint what is in `deploy/`: `make lint` runs this.

Linters look at units, the composition and what the chart renders, with few values and with all. The
broker itself looks at each configuration, and no broker may be killed while it drains. Helm is left
out on machines for which there is none, and systemd where it is not installed.
"""

import configparser
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from memq.broker.config import BrokerConfig
from memq.broker.metrics import Metrics
from memq.core.units import parse_duration_ms
from memq.errors import ConfigError
from tests.harness import helm
from tests.harness.services.errors import ServiceUnavailableError

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "docs" / "aws.md"
KUBERNETES = ("1.32", "1.37")  # the oldest and the newest that the linter knows
NOT_OF_KUBERNETES = ("Certificate", "ServiceMonitor")  # others bring these kinds
TIMEOUT_S = 60

SHARED = {
    "zookeeper": "zk-1:2181,zk-2:2181,zk-3:2181/memq",
    "queue": "kafka://kafka-1:9092",
    "storage": "s3://bucket/memq",
}
"""What a chart cannot know."""

EVERYTHING: dict[str, Any] = {
    "config": SHARED
    | {
        "max_connections": 1_000_000,
        "auto_create_topics": False,
        "storage_options": {"region": "eu-west-1", "tag.team": 'a "b" \\ <c> ü'},
        "topics": {"web.clicks": {"batch_age": "1s", "read_partitions": 4}},
    },
    "tlsSecret": "memq-tls",
    "certManager": {
        "enabled": True,
        "issuerRef": {"kind": "ClusterIssuer", "name": "ca"},
        "duration": "720h",
        "renewBefore": "240h",
        "extraDnsNames": ["memq.example.com"],
    },
    "existingSecret": "memq",
    "zone": "eu-west-1a",
    "imagePullSecrets": [{"name": "registry"}],
    "brokers": {
        "nodeSelector": {"pool": "memq"},
        "tolerations": [{"key": "memq", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "podAnnotations": {"a/b": "true"},
        "priorityClassName": "high",
    },
    "readers": {"replicas": 2},
    "drainTimeoutSeconds": 120,
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/memq"}},
    "service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}},
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "authorization": {"credentials": {"name": "memq-prometheus", "key": "token"}},
    },
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}],
    "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/memq"}],
}
"""Every value that adds something."""


def faults(deploy: Path = DEPLOY) -> Iterator[str]:
    """Yield what is wrong with the files of a folder such as `deploy/`."""
    yield from _units(deploy / "systemd")
    yield from _compositions(deploy / "compose")
    yield from _alerts(deploy / "prometheus" / "memq.rules.yaml")
    yield from _alerts(deploy / "grafana" / "memq.json")
    yield from _versions(deploy)
    try:
        yield from _chart(deploy / "helm" / "memq")
    except ServiceUnavailableError as exc:
        sys.stderr.write(f"the chart is left out: {exc}\n")


def rendered(chart: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that a chart makes.

    Raises:
        HelmError: the values do not fit.
    """
    texts = [text for path, text in helm.render(chart, values).items() if path.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def configuration(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the configuration of the brokers among the objects of a chart."""
    (data,) = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
    return tomllib.loads(data["broker.toml"])


def _broker(where: str, table: dict[str, Any], grace_ms: int, **variables: str) -> Iterator[str]:
    """Yield what a broker has against its configuration, or against when it is killed."""
    given = {name[5:].lower(): text for name, text in variables.items() if name[:5] == "MEMQ_"}
    try:
        config = BrokerConfig.create(table | given)
    except ConfigError as exc:
        yield f"{where}: {exc}"
        return
    if grace_ms <= config.drain_delay_ms + config.drain_timeout_ms:
        yield f"{where}: a broker is killed before its drain_timeout is over"


def _units(folder: Path) -> Iterator[str]:
    unit = folder / "memq-broker@.service"
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
    parser.read_string(unit.read_text())
    grace_ms = parse_duration_ms(parser["Service"]["TimeoutStopSec"])
    lines = [line for each in folder.glob("*.env") for line in each.read_text().splitlines()]
    pairs = [line.removeprefix("#").split("=", 1) for line in lines if re.match("#?[A-Z_]+=", line)]
    table = tomllib.loads((folder / "broker.toml").read_text())
    yield from _broker(str(unit), table, grace_ms)
    yield from _broker(f"{unit}, with its variables", table, grace_ms, **dict(pairs))
    if shutil.which("systemd-analyze") is None:
        return
    with tempfile.TemporaryDirectory() as temporary:
        instance = Path(temporary) / unit.name.replace("@", "@1")
        instance.write_text(unit.read_text().replace("/opt/memq/bin/memq", sys.executable))
        said = _run("systemd-analyze", "verify", "--man=no", instance).stderr.splitlines()
    # Other units of the machine are looked at too; before 254 it does not know growing pauses.
    yield from [
        line for line in said if instance.name in line and not re.search("'Restart[SM]", line)
    ]


def composed(*paths: Path) -> dict[str, Any]:
    """Return the services of a composition, with what further files lay over it."""
    found: dict[str, Any] = {}
    for path in paths:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            known = found.setdefault(name, {})
            environment = known.get("environment", {}) | service.get("environment", {})
            known |= service | {"environment": environment}
    return found


def _compositions(folder: Path) -> Iterator[str]:
    plain, tls = folder / "compose.yaml", folder / "compose.tls.yaml"
    table = tomllib.loads((folder / "broker.toml").read_text())
    for paths in ([plain], [plain, tls]):
        path = paths[-1]
        yield from _schema("--builtin-schema", "vendor.compose-spec", path)
        for name, service in composed(*paths).items():
            if re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service.get("image", "")) is None:
                yield f"{path}: the image of {name} is not pinned"
            if "MEMQ_BROKER_ID" in service["environment"]:
                grace_ms = parse_duration_ms(service.get("stop_grace_period", "10s"))
                yield from _broker(f"{path}: {name}", table, grace_ms, **service["environment"])


def _alerts(rules: Path) -> Iterator[str]:
    known = {
        each.name + {"counter": "_total", "histogram": "_bucket"}.get(each.type, "")
        for each in Metrics().registry.collect()
    }
    for path, text in (
        (rules, rules.read_text()),
        (GUIDE, GUIDE.read_text().partition("## Watch it")[2]),
    ):
        for name in sorted(set(re.findall(r"\bmemq_\w+", text)) - known):
            yield f"{path}: there is no metric {name}"


def _versions(deploy: Path) -> Iterator[str]:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in ("docker/Dockerfile", "compose/compose.yaml", "helm/memq/Chart.yaml"):
        text = (deploy / name).read_text()
        versions = re.findall(r'(?:memq:|^version: |^appVersion: "?)(\d[\d.]+)', text, re.MULTILINE)
        if set(versions) != {own}:
            yield f"{deploy / name}: its versions {versions} are not that of the package, {own}"


def _chart(chart: Path) -> Iterator[str]:
    schema = chart / "values.schema.json"
    yield from _schema("--check-metaschema", schema)
    yield from _schema("--schemafile", schema, chart / "values.yaml")
    (of_guide,) = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    yield from helm.lint(chart, {})
    for name, values in {
        "least": {"config": SHARED},
        "own account": {"config": SHARED, "serviceAccount": {"create": False}},
        "everything": EVERYTHING,
        "the guide": yaml.safe_load(of_guide),
    }.items():
        yield from helm.lint(chart, values)
        objects = rendered(chart, values)
        table = configuration(objects)
        for each in objects:
            yield from _kubernetes(f"{chart} with {name}", each)
            if each["kind"] == "StatefulSet":
                pod = each["spec"]["template"]["spec"]
                grace_ms = 1_000 * pod["terminationGracePeriodSeconds"]
                env = pod["containers"][0]["env"]
                variables = {each["name"]: each["value"] for each in env if "value" in each}
                yield from _broker(f"{chart} with {name}", table, grace_ms, **variables)


def _kubernetes(where: str, found: dict[str, Any]) -> Iterator[str]:
    for version in KUBERNETES if found["kind"] not in NOT_OF_KUBERNETES else ():
        try:
            kubernetes_validate.validate(found, version, strict=True)
        except kubernetes_validate.ValidationError as exc:
            yield f"{where}: {found['kind']} in Kubernetes {version}: {exc}"


def _schema(*arguments: str | Path) -> Iterator[str]:
    done = _run(Path(sys.executable).with_name("check-jsonschema"), *arguments)
    if done.returncode:
        yield done.stdout + done.stderr


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


if __name__ == "__main__":
    found = list(faults())
    sys.exit("\n".join(found) if found else 0)
