"""What the demo's cluster runs on: an S3-compatible server, a Kafka and a ZooKeeper, all real."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.core.named_values import (
    parse_queue_options,
    parse_storage_options,
    parse_zookeeper_options,
)
from memq.errors import MemqError
from memq.queue import open_kafka
from memq.storage.open import open_storage
from memq.zookeeper import open_zookeeper
from memq.zookeeper.options import ZooKeeperOptions
from tests.harness.services.certificates import make_certificate
from tests.harness.services.kafka import Kafka
from tests.harness.services.s3proxy import S3Proxy
from tests.harness.services.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.services.certificates import Certificate

BUCKET = "memq-demo"
SESSION = "4s"  # the shortest that ZooKeeper allows as it comes


@dataclass(frozen=True)
class DemoServices:
    """The services, on free ports of the loopback.

    Attributes:
        s3: the S3-compatible server, with `BUCKET`.
        kafka: the Kafka.
        zookeeper: the ZooKeeper.
        certificates: of each, by name, when they speak TLS and ask who their clients are.
        zookeeper_user: name and password of the brokers there.
    """

    s3: S3Proxy
    kafka: Kafka
    zookeeper: ZooKeeper
    certificates: dict[str, Certificate] = field(default_factory=dict)
    zookeeper_user: tuple[str, str] = field(
        default_factory=lambda: ("memq", secrets.token_urlsafe(16)), repr=False
    )

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which whoever reads goes to the store itself."""
        if not self.certificates:
            return self.s3.environment
        return self.s3.environment | {"AWS_CA_BUNDLE": str(self.certificates["s3"].pem)}

    def options(self) -> dict[str, dict[str, str]]:
        """Tables of a broker's file that say how it reaches them."""
        found = {"zookeeper_options": {"session_timeout": SESSION}}
        if self.certificates:
            user, password = self.zookeeper_user
            found["zookeeper_options"] |= {
                "ca_certificate": str(self.certificates["zookeeper"].pem),
                "user": user,
                "password": password,
            }
            found["queue_options"] = {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": self.kafka.user,
                "sasl.password": self.kafka.password,
                "ssl.ca.location": str(self.certificates["kafka"].pem),
            }
            found["storage_options"] = {"ca_certificate": str(self.certificates["s3"].pem)}
        return found

    def refusals(self) -> list[str]:
        """Return how each of them refuses who has its CA, but only guesses a password; in words.

        Raises:
            AssertionError: one of them lets in a stranger.
        """
        options = self.options()
        guess = secrets.token_urlsafe(16)
        options["queue_options"]["sasl.password"] = guess
        options["zookeeper_options"]["password"] = guess
        options["storage_options"]["secret_access_key"] = guess

        async def to_kafka() -> None:
            values = parse_queue_options(options["queue_options"])
            await open_kafka(
                f"kafka://{self.kafka.address}", values, cluster_id="stranger", broker_id="s"
            )

        async def to_zookeeper() -> None:
            values = parse_zookeeper_options(options["zookeeper_options"])
            await open_zookeeper(ZooKeeperOptions.read(f"{self.zookeeper.address}/memq", values))

        def to_s3() -> None:
            open_storage(f"s3://{BUCKET}", parse_storage_options(options["storage_options"]))

        paths: dict[str, Callable[[], object]] = {
            "Kafka": lambda: asyncio.run(to_kafka()),
            "ZooKeeper": lambda: asyncio.run(to_zookeeper()),
            "S3": to_s3,
        }
        return [f"{name}: {_refused(act)}" for name, act in paths.items()]


def _refused(act: Callable[[], object]) -> str:
    try:
        act()
    except MemqError as exc:
        return str(exc)
    raise AssertionError(f"a stranger got in by {act}")


@contextmanager
def services(directory: Path, *, secure: bool = False) -> Iterator[DemoServices]:
    """Start all of them; they end with the block.

    Args:
        directory: for their files.
        secure: they speak TLS alone, and let in whom they know.

    Raises:
        ServiceError: one did not start; the message has the end of its log.
    """
    names = ("s3", "kafka", "zookeeper") if secure else ()
    made = {name: make_certificate(directory, name) for name in names}
    stores = {
        name: {"keystore": each.keystore, "keystore_password": each.password}
        for name, each in made.items()
    }
    with (
        S3Proxy(directory / "s3", **stores.get("s3", {})) as s3,
        Kafka(directory / "kafka", **stores.get("kafka", {})) as kafka,
        ZooKeeper(directory / "zookeeper", **stores.get("zookeeper", {})) as zookeeper,
    ):
        s3.make_bucket(BUCKET)
        yield DemoServices(s3, kafka, zookeeper, made)
