"""What the demo's cluster runs on: an S3-compatible server, a Kafka and a ZooKeeper, all real."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.harness.services.kafka import Kafka
from tests.harness.services.s3proxy import S3Proxy
from tests.harness.services.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "memq-demo"


@dataclass(frozen=True)
class DemoServices:
    """The services, on free ports of the loopback.

    Attributes:
        s3: the S3-compatible server, with `BUCKET`.
        kafka: the Kafka.
        zookeeper: the ZooKeeper.
    """

    s3: S3Proxy
    kafka: Kafka
    zookeeper: ZooKeeper


@contextmanager
def services(directory: Path) -> Iterator[DemoServices]:
    """Start all of them; they end with the block.

    Raises:
        ServiceError: one did not start; the message has the end of its log.
    """
    with (
        S3Proxy(directory / "s3") as s3,
        Kafka(directory / "kafka") as kafka,
        ZooKeeper(directory / "zookeeper") as zookeeper,
    ):
        s3.make_bucket(BUCKET)
        yield DemoServices(s3, kafka, zookeeper)
