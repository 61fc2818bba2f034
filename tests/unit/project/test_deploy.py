"""What is in deploy/: units, images, compositions and charts that a linter and a broker accept."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import kubernetes_validate
import pytest
import yaml

from memq.broker.config import BROKER_OPTIONS, BrokerConfig
from memq.broker.metrics import Metrics
from memq.core.defaults import DEFAULT_ADMIN_PORT, DEFAULT_PORT
from memq.core.units import parse_duration_ms, parse_size_bytes
from tests.harness import helm
from tests.harness.helm import HelmError
from tests.unit.project.test_docs import FENCE, check_command

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "memq-broker@.service"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
CHART = DEPLOY / "helm" / "memq"
RULES = DEPLOY / "prometheus" / "memq.rules.yaml"

KUBERNETES = ("1.32", "1.37")  # the oldest and the newest that the linter knows
TIMEOUT_S = 60

SHARED = {
    "zookeeper": "zk-1:2181,zk-2:2181,zk-3:2181/memq",
    "queue": "kafka://kafka-1:9092",
    "storage": "s3://bucket/memq",
}
"""What a chart cannot know."""

EVERYTHING = {
    "config": SHARED
    | {
        "max_connections": 1_000_000,
        "auto_create_topics": False,
        "storage_options": {"region": "eu-west-1", "tag.team": 'a "b" \\ <c> ü'},
        "topics": {"web.clicks": {"batch_age": "1s", "read_partitions": 4}},
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
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}],
    "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/memq"}],
}
"""Every value that adds something."""

VALUES = {
    "least": {"config": SHARED},
    "everything": EVERYTHING,
    "own account": {"config": SHARED, "serviceAccount": {"create": False}},
}


def run(*command, **how):
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **how,
    )


def check_schema(*arguments):
    """What check-jsonschema has against files; empty when they are right."""
    done = run(Path(sys.executable).with_name("check-jsonschema"), *arguments)
    return "" if done.returncode == 0 else done.stdout + done.stderr


# -- systemd --------------------------------------------------------------------------------


@cache
def unit():
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


def seconds(text):
    return parse_duration_ms(text) / 1_000


def variables_of(path):
    """Of an environment file, with those that are commented out."""
    lines = [line.removeprefix("#") for line in path.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))


def test_the_unit_gives_a_broker_what_it_needs():
    """It may drain, open its files and write its folder; it is started again whatever ended it."""
    service = unit()["Service"]
    config = tomllib.loads((UNIT.parent / "broker.toml").read_text())
    (most,) = (option.default for option in BROKER_OPTIONS if option.name == "max_connections")

    assert seconds(service["TimeoutStopSec"]) >= seconds(config["drain_timeout"]) + 30
    assert int(service["LimitNOFILE"]) >= most + 2_000
    assert (service["Restart"], unit()["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    assert "MEMQ_DATA_DIR=%S/" + service["StateDirectory"] in UNIT.read_text()
    tokens = shlex.split(service["ExecStart"])
    check_command(["memq", *tokens[1:]], complete=True)
    assert Path(tokens[-1]).name == "broker.toml"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("NoNewPrivileges", "yes"),
        ("DynamicUser", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("CapabilityBoundingSet", ""),
        ("SystemCallFilter", "@system-service"),
        ("UMask", "0077"),
    ],
)
def test_the_unit_is_confined(key, value):
    """A broker that is broken into reaches nothing else of its machine."""
    assert unit()["Service"][key] == value


def test_secrets_stand_in_a_file_of_their_own():
    """The file that all may read has none, and a broker that needs none starts without it."""
    assert re.search(r"token|password", (UNIT.parent / "broker.toml").read_text()) is None
    assert unit()["Service"]["EnvironmentFile"] == "-/etc/memq/secrets.env"
    assert "MEMQ_TOKEN" in variables_of(UNIT.parent / "secrets.env")


@pytest.fixture
def analyzed(tmp_path):
    """The unit as an instance, with a program that this machine has."""
    path = tmp_path / UNIT.name.replace("@", "@1")
    path.write_text(UNIT.read_text().replace("/opt/memq/bin/memq", sys.executable))
    return path


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze"
)


@needs_systemd
def test_systemd_understands_the_unit(analyzed):
    """It finds nothing wrong; before 254 it does not know how pauses between starts grow."""
    done = run("systemd-analyze", "verify", "--man=no", analyzed)
    newer = re.compile(r"Unknown key (name )?'(RestartSteps|RestartMaxDelaySec)'")

    assert done.returncode == 0
    # Other units of the machine are looked at too, and their faults are not ours.
    lines = [line for line in done.stderr.splitlines() if analyzed.name in line]
    assert [line for line in lines if not newer.search(line)] == []


@needs_systemd
def test_systemd_finds_the_unit_little_exposed(analyzed):
    """Of 10, where 10 is a service without any limits, 2 at most."""
    done = run("systemd-analyze", "security", "--offline=true", "--threshold=20", analyzed)

    assert done.returncode == 0, done.stdout[-200:]


# -- images ---------------------------------------------------------------------------------


@cache
def instructions():
    """Those of the Dockerfile, as pairs; of each stage after the other."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def last(name):
    """The argument of the last such instruction: the one that holds."""
    return [argument for each, argument in instructions() if each == name][-1]


def test_the_image_runs_a_broker_that_is_not_root():
    """With a number for its user, as Kubernetes asks, and as the broker's own process."""
    user, group = last("USER").split(":")
    command = json.loads(last("ENTRYPOINT")) + json.loads(last("CMD"))

    assert (int(user), int(group)) == (10_001, 10_001)
    assert f"--uid {user}" in DOCKERFILE.read_text()
    assert last("STOPSIGNAL") == "SIGTERM"
    assert last("EXPOSE").split() == [str(DEFAULT_PORT), str(DEFAULT_ADMIN_PORT)]
    check_command(command, complete=True)


def test_the_image_has_what_a_cluster_needs():
    """The extras that there are, from the pins, and no more of the checkout than the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = re.findall(r"--extra (\w+)", DOCKERFILE.read_text())
    installs = [argument for name, argument in instructions() if "uv pip install" in argument]

    assert extras == ["s3", "kafka", "zookeeper"]
    assert set(extras) <= set(project["project"]["optional-dependencies"])
    assert all("constraint requirements.txt" in argument for argument in installs)


def test_the_context_of_the_image_is_what_the_wheel_is_made_of():
    """Nothing else is sent to Docker: no data, no environment, no tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {"LICENSE", "README.md", "pyproject.toml", "requirements.txt"}
    wanted |= set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
    lines = (ROOT / ".dockerignore").read_text().splitlines()

    assert lines[1] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == wanted


@pytest.fixture
def admin():
    """Admin HTTP whose pages are as `pages` says; any other is an error."""
    pages = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(pages.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port, pages
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("where", ["Dockerfile", "compose.yaml"])
def test_a_health_check_sees_what_the_broker_says(where, admin):
    """It succeeds when the page says so, and fails when it does not or nobody answers."""
    port, pages = admin
    if where == "Dockerfile":
        page, command = "/health", json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    else:
        page, (_, *command) = (
            "/ready",
            composition()["services"]["broker-a1"]["healthcheck"]["test"],
        )
    assert command[0] == "python"
    command = [
        sys.executable,
        *(each.replace(str(DEFAULT_ADMIN_PORT), str(port)) for each in command[1:]),
    ]

    for status, succeeds in ((200, True), (503, False)):
        pages[page] = status
        assert (run(*command).returncode == 0) is succeeds


# -- compose --------------------------------------------------------------------------------


@cache
def composition():
    return yaml.safe_load(COMPOSE.read_text())


def brokers():
    """Services that are brokers, with their environment."""
    return {
        name: service["environment"]
        for name, service in composition()["services"].items()
        if "MEMQ_BROKER_ID" in service.get("environment", {})
    }


def test_the_composition_is_one():
    """It is as the specification of Compose says."""
    assert check_schema("--builtin-schema", "vendor.compose-spec", COMPOSE) == ""


def test_a_wrong_composition_is_seen(tmp_path):
    """The linter finds a key that does not exist."""
    path = tmp_path / COMPOSE.name
    path.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace"))

    assert "stop_grace" in check_schema("--builtin-schema", "vendor.compose-spec", path)


def test_images_are_pinned():
    """Each has the number of its version; ours has that of the package."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {service["image"] for service in composition()["services"].values()}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert all(re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", image) for image in images), images
    assert f"memq:{version}" in images
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert set(re.findall(r"memq:(\d\S+)", DOCKERFILE.read_text())) == {version}


def test_every_service_is_looked_after():
    """It is started again, its health is looked at, and whoever needs it waits for that."""
    services = {
        name: service
        for name, service in composition()["services"].items()
        if "profiles" not in service
    }
    for service in services.values():
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"]
    for name in brokers():
        assert services[name]["depends_on"].keys() == {"zookeeper", "kafka", "s3"}
        assert seconds(services[name]["stop_grace_period"]) > seconds(
            tomllib.loads((COMPOSE.parent / "broker.toml").read_text())["drain_timeout"]
        )


def test_data_outlives_containers():
    """What ZooKeeper, Kafka and the object store keep is in volumes that have names."""
    mounted = {
        mount.partition(":")[0]
        for service in composition()["services"].values()
        for mount in service.get("volumes", [])
    }
    assert mounted == composition()["volumes"].keys()


def test_brokers_of_the_composition_are_a_cluster():
    """Three in two zones and one that only reads, each under the name that the others look up."""
    roles = [variables.get("MEMQ_ROLE", "all") for variables in brokers().values()]
    config = tomllib.loads((COMPOSE.parent / "broker.toml").read_text())
    named = re.findall(r"(?:^|//)([a-z0-9]+):", config["zookeeper"] + " " + config["queue"])

    assert sorted(roles) == ["all", "all", "all", "read"]
    assert len({variables["MEMQ_ZONE"] for variables in brokers().values()}) == 2
    for name, variables in brokers().items():
        assert variables["MEMQ_BROKER_ID"] == name
        assert variables["MEMQ_ADVERTISED"] == f"{name}:{DEFAULT_PORT}"
    assert set(named) <= composition()["services"].keys()


def test_the_bucket_of_the_composition_is_there():
    """The store takes a folder for a bucket, and the volume makes the folder."""
    store = composition()["services"]["s3"]
    config = tomllib.loads((COMPOSE.parent / "broker.toml").read_text())
    bucket = re.match(r"s3://(\w+)/", config["storage"])[1]

    assert store["volumes"] == [f"s3-data:{store['command'][1]}/{bucket}"]


# -- Helm -----------------------------------------------------------------------------------


def render(values):
    """Objects by kind and name."""
    texts = [text for path, text in helm.render(CHART, values).items() if path.endswith(".yaml")]
    found = [each for text in texts for each in yaml.safe_load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def container(objects, kind="broker"):
    return objects["StatefulSet", f"cl-memq-{kind}"]["spec"]["template"]["spec"]["containers"][0]


def environment(objects, kind="broker"):
    return {each["name"]: each for each in container(objects, kind)["env"]}


def configuration(objects):
    return tomllib.loads(objects["ConfigMap", "cl-memq"]["data"]["broker.toml"])


def test_the_schema_of_values_is_one():
    """It is a schema, and the values that the chart comes with fit it."""
    schema = CHART / "values.schema.json"

    assert check_schema("--check-metaschema", schema) == ""
    assert check_schema("--schemafile", schema, CHART / "values.yaml") == ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "config.zookeeper is empty"),
        ({"config": SHARED | {"storage": ""}}, "config.storage is empty"),
        ({"config": SHARED | {"queue": "kafka-1:9092"}}, "does not match"),
        ({"config": SHARED | {"advertised": "a:1"}}, "config.advertised: the chart sets it itself"),
        ({"config": SHARED | {"token": "x"}}, "give existingSecret a Secret with MEMQ_TOKEN"),
        ({"config": SHARED, "drainTimeoutSeconds": 601}, "drainTimeoutSeconds"),
        ({"config": SHARED, "replicas": 3}, "additional properties 'replicas' not allowed"),
        ({"config": SHARED, "readers": {"replicas": -1}}, "readers/replicas"),
    ],
)
def test_wrong_values_are_refused(values, message):
    """What is missing, misspelt or not for users to set is named before anything is installed."""
    with pytest.raises(HelmError, match=re.escape(message)):
        helm.render(CHART, values)


@pytest.mark.parametrize("values", [{}, *VALUES.values()], ids=["none", *VALUES])
def test_helm_has_nothing_against_the_chart(values):
    """`helm lint --strict` is content, whatever the values add."""
    assert helm.lint(CHART, values) == []


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_kubernetes_knows_what_the_chart_makes(values):
    """Each object is one of Kubernetes, old and new, with no field that it does not know."""
    objects = [each for (kind, _), each in render(values).items() if kind != "ServiceMonitor"]

    assert len(objects) >= 5
    for each in objects:
        for version in KUBERNETES:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_seen():
    """The linter finds it."""
    objects = render(VALUES["least"])
    objects["StatefulSet", "cl-memq-broker"]["spec"]["replica"] = 3

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            objects["StatefulSet", "cl-memq-broker"], KUBERNETES[0], strict=True
        )


def test_values_reach_the_broker_as_they_were_written():
    """Numbers, flags, texts of any kind and tables are in the TOML what they are in YAML."""
    config = configuration(render(EVERYTHING))
    added = {"host", "cluster_id", "memory_bytes", "log_format", "drain_timeout", "queue_options"}

    assert {name: config[name] for name in config.keys() - added} == EVERYTHING["config"]
    assert config["queue_options"] == {
        "topic.replication.factor": 3,
        "topic.min.insync.replicas": 2,
    }


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_kubernetes_waits_for_a_broker_that_drains(values):
    """It kills none before its drain_timeout is over, and takes one away at a time."""
    objects = render(values)
    sets = [each["spec"] for (kind, _), each in objects.items() if kind == "StatefulSet"]
    budget = objects["PodDisruptionBudget", "cl-memq"]["spec"]

    assert len(sets) == (2 if values is EVERYTHING else 1)
    for each in sets:
        grace_s = each["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s >= seconds(configuration(objects)["drain_timeout"]) + 30
        assert each["updateStrategy"] == {"type": "RollingUpdate"}
        labels = each["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
        assert each["selector"]["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] == 1


@pytest.mark.parametrize("kind", ["broker", "reader"])
def test_a_pod_is_a_broker_of_its_own_name(kind):
    """Clients find it under the name that its headless service gives it, ready or not."""
    objects = render(EVERYTHING)
    pods = objects["StatefulSet", f"cl-memq-{kind}"]["spec"]
    service = objects["Service", pods["serviceName"]]["spec"]
    variables = environment(objects, kind)

    assert variables["MEMQ_BROKER_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert variables["NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    assert variables["MEMQ_ADVERTISED"]["value"] == (
        f"$(MEMQ_BROKER_ID).{pods['serviceName']}.$(NAMESPACE).svc.cluster.local:{DEFAULT_PORT}"
    )
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"].items() <= pods["template"]["metadata"]["labels"].items()
    assert variables["MEMQ_ROLE"]["value"] == {"broker": "all", "reader": "read"}[kind]


def test_a_broker_knows_its_zone():
    """By the label of its pod; or by the zone that the release is for, where it then runs."""
    path = environment(render(VALUES["least"]))["MEMQ_ZONE"]["valueFrom"]["fieldRef"]["fieldPath"]
    objects = render(EVERYTHING)
    pod = objects["StatefulSet", "cl-memq-broker"]["spec"]["template"]["spec"]

    assert path == "metadata.labels['topology.kubernetes.io/zone']"
    assert environment(objects)["MEMQ_ZONE"]["value"] == "eu-west-1a"
    assert pod["nodeSelector"] == {"pool": "memq", "topology.kubernetes.io/zone": "eu-west-1a"}


def test_no_service_changes_the_options_of_a_broker():
    """Kubernetes would set MEMQ_PORT for a service called memq, and so the port of each broker."""
    objects = render(EVERYTHING)
    for kind in ("broker", "reader"):
        pod = objects["StatefulSet", f"cl-memq-{kind}"]["spec"]["template"]["spec"]
        assert pod["enableServiceLinks"] is False


def test_probes_ask_what_the_admin_http_answers():
    """A broker that hangs is started again, one that is not ready is left alone."""
    broker = container(render(VALUES["least"]))
    ports = {each["name"]: each["containerPort"] for each in broker["ports"]}
    pages = {
        name: broker[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }

    assert ports == {"memq": DEFAULT_PORT, "admin": DEFAULT_ADMIN_PORT}
    assert {page["port"] for page in pages.values()} == {"admin"}
    assert {name: page["path"] for name, page in pages.items()} == {
        "startup": "/health",
        "liveness": "/health",
        "readiness": "/ready",
    }


def test_a_pod_may_do_nothing_that_a_broker_need_not():
    """It is no root, keeps no capability, and writes only to folders that go with it."""
    objects = render(VALUES["least"])
    pod = objects["StatefulSet", "cl-memq-broker"]["spec"]["template"]["spec"]
    writable = {each["name"] for each in pod["volumes"] if "emptyDir" in each}
    mounts = {each["mountPath"]: each["name"] for each in container(objects)["volumeMounts"]}

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(last("USER").split(":")[0])
    assert pod["automountServiceAccountToken"] is False
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {name for path, name in mounts.items() if path != "/etc/memq"} == writable
    assert last("WORKDIR") in mounts


def test_memory_of_a_pod_is_more_than_its_messages_may_take():
    """Half of it is left for Python, Arrow and answers to readers."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    most = parse_size_bytes(values["config"]["memory_bytes"])
    for kind in ("brokers", "readers"):
        limit = values[kind]["resources"]["limits"]["memory"]
        assert parse_size_bytes(f"{limit}B") >= 2 * most


def test_secrets_come_from_a_secret():
    """The chart keeps none: it names the Secret whose keys become variables."""
    objects = render(EVERYTHING)

    assert container(objects)["envFrom"] == [{"secretRef": {"name": "memq"}}]
    assert "Secret" not in {kind for kind, _ in objects}


def test_each_broker_is_scraped_once():
    """Of the services that the monitor selects, one has the port that it names."""
    objects = render(EVERYTHING)
    (endpoint,) = objects["ServiceMonitor", "cl-memq"]["spec"]["endpoints"]
    ports = [
        port["name"]
        for (kind, _), each in objects.items()
        if kind == "Service"
        for port in each["spec"]["ports"]
    ]
    assert endpoint["path"] == "/metrics"
    assert ports.count(endpoint["port"]) == 1


# -- the guide ------------------------------------------------------------------------------

GUIDE = ROOT / "docs" / "aws.md"


def blocks_of(page, language):
    return [block for found, block in FENCE.findall(page.read_text()) if found == language]


def policies(page):
    """Documents of IAM and of buckets, in the order of the page."""
    documents = [json.loads(block) for block in blocks_of(page, "json")]
    return [each["Statement"] for each in documents if "Statement" in each]


def test_policies_allow_what_is_needed_and_no_more():
    """Brokers read, write, delete and list below their prefix, readers read and list there."""
    bucket, broker, reader = policies(GUIDE)
    (elsewhere,) = policies(ROOT / "docs" / "object-storage.md")
    list_below = {"s3:prefix": ["memq/*"]}

    assert [each["Effect"] for each in bucket] == ["Deny"]
    for statements, on_objects in (
        (broker, ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]),
        (reader, "s3:GetObject"),
    ):
        objects, listings = statements
        assert objects["Action"] == on_objects
        assert objects["Resource"] == "arn:aws:s3:::my-bucket/memq/*"
        assert listings["Action"] == "s3:ListBucket"
        assert listings["Condition"] == {"StringLike": list_below}
    assert [{**each, "Sid": ""} for each in elsewhere] == [{**each, "Sid": ""} for each in broker]


def test_no_lifecycle_rule_expires_batches():
    """The rule that the guide gives ends uploads, and touches no object."""
    (rules,) = [
        document["Rules"]
        for document in map(json.loads, blocks_of(GUIDE, "json"))
        if "Rules" in document
    ]
    assert [each.keys() & {"Expiration", "NoncurrentVersionExpiration"} for each in rules] == [
        set()
    ]


def test_the_values_of_the_guide_can_be_installed():
    """The chart takes them as they stand there."""
    (values,) = map(yaml.safe_load, blocks_of(GUIDE, "yaml"))
    objects = render(values)

    assert helm.lint(CHART, values) == []
    assert configuration(objects)["storage_options"] == {"region": "eu-west-1"}
    assert objects["StatefulSet", "cl-memq-broker"]["spec"]["replicas"] == 6


def test_the_queue_of_the_guide_is_one():
    """Its TOML is a part of a broker's configuration."""
    (table,) = map(tomllib.loads, blocks_of(GUIDE, "toml"))

    assert dict(BrokerConfig.create(table).queue_options)["topic.replication.factor"] == "3"


def test_queries_of_the_guide_are_on_metrics_that_there_are():
    """A panel that is copied from the page shows something."""
    asked = set(re.findall(r"\bmemq_\w+", GUIDE.read_text().partition("## Watch it")[2]))

    assert len(asked) > 5
    assert asked <= metrics()


# -- options and metrics --------------------------------------------------------------------

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
NOT_OF_BROKERS = {"bootstrap"}
"""Variables that are for clients."""


def test_every_file_is_looked_at():
    """A new file in deploy/ needs a test of its kind above; then it is added here."""
    assert {str(path.relative_to(DEPLOY)) for path in FILES} == {
        "compose/broker.toml",
        "compose/compose.yaml",
        "docker/Dockerfile",
        "helm/memq/.helmignore",
        "helm/memq/Chart.yaml",
        *(str(path.relative_to(DEPLOY)) for path in CHART.glob("templates/*")),
        "helm/memq/values.schema.json",
        "helm/memq/values.yaml",
        "prometheus/memq.rules.yaml",
        "systemd/1.env",
        "systemd/broker.toml",
        "systemd/memq-broker@.service",
        "systemd/secrets.env",
    }


def options_in(path):
    """Broker options that a file names, as variables, in TOML or among the values of the chart."""
    text = path.read_text()
    names = {name.lower() for name in re.findall(r"\bMEMQ_([A-Z_]+[A-Z])\b", text)}
    if path.suffix == ".toml":
        names |= tomllib.loads(text).keys()
    if path.name == "values.yaml":
        names |= yaml.safe_load(text)["config"].keys()
    if path.name == "values.schema.json":
        names |= json.loads(text)["properties"]["config"]["properties"].keys()
    if path.name == "configmap.yaml":
        names |= set(re.findall(r'"([a-z_]+)"', text)) - {"map", "path"}
    return names - NOT_OF_BROKERS


def known_options():
    return {option.name for option in BROKER_OPTIONS} | {"topics"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_options_exist(path):
    """A broker knows every option that a file of deploy/ sets or mentions."""
    assert options_in(path) - known_options() == set()


def test_options_are_found():
    """The check above sees what is in files of each kind."""
    assert {"drain_timeout", "zookeeper_options"} <= options_in(UNIT.parent / "broker.toml")
    assert {"advertised", "zone"} <= options_in(UNIT.parent / "1.env")
    assert {"token", "queue_options"} <= options_in(UNIT.parent / "secrets.env")
    assert {"broker_id", "data_dir"} <= options_in(UNIT)
    assert {"role", "zone", "advertised"} <= options_in(COMPOSE)
    assert {"role", "zone", "port"} <= options_in(CHART / "templates" / "brokers.yaml")
    assert {"drain_timeout", "token", "role"} <= options_in(CHART / "templates" / "configmap.yaml")
    assert {"queue_options", "memory_bytes"} <= options_in(CHART / "values.yaml")
    assert {"storage", "topics"} <= options_in(CHART / "values.schema.json")


def configurations():
    """Each broker of deploy/, by what it is in: the table of its file, and its environment."""
    systemd = tomllib.loads((UNIT.parent / "broker.toml").read_text())
    composed = tomllib.loads((COMPOSE.parent / "broker.toml").read_text())
    here = variables_of(UNIT.parent / "1.env") | variables_of(UNIT.parent / "secrets.env")
    found = {"systemd": (systemd, {}), "systemd with secrets": (systemd, here)}
    found |= {f"compose {name}": (composed, variables) for name, variables in brokers().items()}
    return found


@pytest.mark.parametrize("name", configurations())
def test_a_broker_takes_its_configuration(name):
    """Each value, of file and environment together, is one that its option allows."""
    table, variables = configurations()[name]
    given = {
        key.removeprefix("MEMQ_").lower(): value
        for key, value in variables.items()
        if key.startswith("MEMQ_")
    }
    BrokerConfig.create(table | given)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_broker_takes_what_the_chart_configures(values):
    """The rendered TOML is a configuration, with the topics that were given."""
    config = BrokerConfig.create(configuration(render(values)))

    assert [topic.name for topic in config.topics] == list(values["config"].get("topics", {}))


@cache
def metrics():
    """Names as queries have them."""
    return {
        each.name + {"counter": "_total", "histogram": "_bucket"}.get(each.type, "")
        for each in Metrics().registry.collect()
    }


def test_alerts_are_on_metrics_that_there_are():
    """Each rule asks for metrics of a broker, and says how bad it is and what happened."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]

    assert len(set(names)) == len(names) > 10
    for rule in group["rules"]:
        asked = set(re.findall(r"\bmemq_\w+", rule["expr"]))
        assert asked <= metrics(), rule["alert"]
        assert asked or rule["expr"].startswith("up{")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary"}
