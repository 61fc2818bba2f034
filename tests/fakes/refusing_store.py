"""An object store for chaos: a real S3-compatible server behind a proxy that makes it fail."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from memq.storage.object_store import ObjectStorage
from tests.harness.services.http_faults import (
    SLOW_DOWN,
    CutBody,
    HttpFaultProxy,
    Latency,
    LoseAnswer,
    Reset,
    Rule,
)
from tests.harness.services.jars import Jars
from tests.harness.services.s3proxy import REGION, S3Proxy
from tests.system.plan import Plan, over_a_network

BUCKET = "chaos"


def _latency_s(chance: random.Random) -> float:
    """A few milliseconds, and a stall now and then."""
    return chance.uniform(0.3, 3.0) if chance.random() < 0.01 else chance.expovariate(100)


def rules() -> list[Rule]:
    """How the store fails: often enough that each run meets most of it."""
    return [
        Rule(Latency(_latency_s), times=None),
        Rule(SLOW_DOWN, times=None, probability=0.1),
        Rule(LoseAnswer(), method="PUT", times=None, probability=0.05),
        Rule(Reset(), times=None, probability=0.02),
        Rule(Reset(after_body=True), method="PUT", times=None, probability=0.02),
        Rule(CutBody(100), method="GET", times=None, probability=0.1),
    ]


@contextmanager
def store(folder: Path, jars: Jars | None = None) -> Iterator[dict[str, str]]:
    """Options for brokers of an S3-compatible server that fails for them."""
    with proxied_store(folder, BUCKET, jars) as (options, proxy):
        for rule in rules():
            proxy.add(rule)
        yield options


@contextmanager
def proxied_store(
    folder: Path, bucket: str, jars: Jars | None = None
) -> Iterator[tuple[dict[str, str], HttpFaultProxy]]:
    """Options for brokers of an S3-compatible server, and the proxy that they reach it by.

    This process, which checks, has the server itself in its environment. Brokers have not: the
    process that they are forked from may be older.
    """
    with (
        S3Proxy(folder / "s3", jars=jars) as server,
        HttpFaultProxy("127.0.0.1", server.port) as proxy,
        pytest.MonkeyPatch.context() as environment,
    ):
        server.make_bucket(bucket)
        for name, value in server.environment.items():
            environment.setenv(name, value)
        options = {
            "endpoint": f"http://{proxy.address}",
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "region": REGION,
        }
        yield options, proxy


def in_store(plan: Plan, options: dict[str, str]) -> Plan:
    """The same run with its Batches in the store."""
    seams = plan.seams._replace(storage=partial(storage_of, options))
    return replace(over_a_network(plan), seams=seams)


def storage_of(options: dict[str, str], folder: Path) -> ObjectStorage:
    """The storage of a broker, in place of a folder."""
    return ObjectStorage(f"s3://{BUCKET}", str(folder).strip("/"), options)
