"""The demo's cluster: its brokers, in processes of their own, and what befalls them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from demo.access import Access
from demo.services import BUCKET
from memq import AdminClient
from memq.core.units import counted
from memq.errors import MemqError
from tests.harness.certificates import Certificates
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from demo.services import DemoServices

ZONES = {"broker-1": "zone-a", "broker-2": "zone-b", "broker-3": "zone-a"}
ADDED, ADDED_ZONE = "broker-4", "zone-b"
STOP_S = 60.0
AWAY_S = 20.0
READY_S = 90.0  # for every write partition to have an owner among the brokers that live


class DemoCluster:
    """Three brokers in two zones, and a fourth that may be added.

    Args:
        directory: for their files.
        services: that they share. With those that are secure, brokers are secure as well.

    Attributes:
        services: as given.
        bootstrap: addresses of the first three.
        access: the users, where brokers ask who their clients are.
    """

    def __init__(self, directory: Path, services: DemoServices) -> None:
        self.services = services
        options, admin = _secured(directory) if services.certificates else ({}, {})
        self._brokers = {
            name: DemoClusterBroker(name, zone, directory, services, options)
            for name, zone in [*ZONES.items(), (ADDED, ADDED_ZONE)]
        }
        self._running = [*ZONES]
        self._down: list[str] = []
        self.bootstrap = ",".join(self._brokers[name].address for name in ZONES)
        self.access = Access(self._brokers["broker-1"].address, admin) if admin else None
        self._admin = AdminClient(self.bootstrap, security=admin)

    def start(self) -> None:
        """Start the first three."""
        for name in ZONES:
            self._brokers[name].start()

    def stop(self) -> None:
        """Stop all of them, in good order."""
        self._admin.close()
        for broker in self._brokers.values():
            broker.stop()

    def kill(self, *, governor: bool) -> None:
        """Kill the broker that governs, or one that does not."""
        governs = self._admin.describe_cluster().governor
        name = next(each for each in self._running if (each == governs) == governor)
        self._brokers[name].kill()
        self._down.append(name)

    def start_again(self) -> None:
        """Start again what was killed."""
        while self._down:
            self._brokers[self._down.pop()].start()

    def lose_all(self) -> None:
        """Lose all but the bucket: brokers, Kafka, ZooKeeper; then restore it from the bucket."""
        for name in self._running:
            self._brokers[name].kill()
        self.services.kafka.lose()
        self.services.zookeeper.restore()
        self._brokers["broker-1"].restore()
        for name in self._running:
            self._brokers[name].start()

    def add(self) -> None:
        """Start the fourth."""
        self._brokers[ADDED].start()
        self._running.append(ADDED)

    def wait_whole(self, topic: str = "") -> None:
        """Wait until all brokers that run are known, and each write partition has an owner.

        Raises:
            TimeoutError: it took longer than `READY_S`.
        """
        until_s = time.monotonic() + READY_S
        while (wrong := self._wrong(topic)) is not None:
            if time.monotonic() > until_s:
                count = counted(len(self._running), "broker")
                raise TimeoutError(f"the cluster of {count} is not whole in {READY_S:g} s: {wrong}")
            time.sleep(0.2)

    def _wrong(self, topic: str) -> str | None:
        try:
            cluster = self._admin.describe_cluster()
            names = [each.id for each in cluster.brokers]
            if sorted(names) != sorted(self._running):
                return f"it has {names}"
            if cluster.homeless or cluster.moving:
                return f"homeless: {cluster.homeless}, moving: {cluster.moving}"
            if topic and not all(self._admin.describe_topic(topic).hosts):
                return f"topic {topic!r} has write partitions that no broker serves"
        except MemqError as exc:
            if not exc.retriable:
                raise
            return str(exc)
        return None


def _secured(directory: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Options of brokers that speak TLS and ask who clients are; what an administrator shows."""
    folder = directory / "tls"
    folder.mkdir()
    certificates = Certificates(folder, "demo")
    token, token_file = secrets.token_urlsafe(16), folder / "admin.token"
    token_file.write_text(token)
    options = {
        **certificates.broker_options(),
        "admin_tls": True,
        "authentication": "required",
        "superusers": "User:admin",
        "token": f"admin {token}",
    }
    return options, {"ca": certificates.ca, "token_file": str(token_file)}


def away(stop: Callable[[], None], go_on: Callable[[], None]) -> None:
    """Have a service away for `AWAY_S`."""
    stop()
    try:
        time.sleep(AWAY_S)
    finally:
        go_on()


class DemoClusterBroker:
    """A broker of a cluster: `memq broker` with a configuration file.

    Args:
        name: its broker id.
        zone: where it is.
        directory: for its files and its log.
        services: that the brokers of the cluster share.
        more: options that all of them have.

    Attributes:
        address: where clients reach it; the same after a restart.
    """

    def __init__(
        self,
        name: str,
        zone: str,
        directory: Path,
        services: DemoServices,
        more: Mapping[str, Any],
    ) -> None:
        folder = directory / name
        folder.mkdir()
        port, admin_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        options = {
            "cluster_id": "demo",
            "broker_id": name,
            "zone": zone,
            "data_dir": str(folder / "data"),
            "host": "127.0.0.1",
            "port": port,
            "admin_port": admin_port,
            "zookeeper": f"{services.zookeeper.address}/memq",
            "queue": f"kafka://{services.kafka.address}",
            "storage": f"s3://{BUCKET}",
            **more,
        }
        self._config = folder / "broker.toml"
        tables = [("", options), *services.options().items()]
        self._config.write_text("".join(_table(name, values) for name, values in tables))
        self._log = (folder / "broker.log").open("ab")
        self._env: Mapping[str, str] = {**os.environ, **services.environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it serves a little later."""
        command = [sys.executable, "-m", "memq", "broker", "--config", str(self._config)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=self._env)

    def restore(self) -> None:
        """Restore its cluster, as its configuration says."""
        command = [sys.executable, "-m", "memq", "restore", "--config", str(self._config)]
        subprocess.run([*command, "--execute"], env=self._env, check=True)

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it as an operator would: SIGTERM, and wait until it has drained."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        self._log.close()


def _table(name: str, values: Mapping[str, Any]) -> str:
    head = f"[{name}]\n" if name else ""
    return head + "".join(
        f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in values.items()
    )
