"""Alerts, as a real Prometheus sees them: each failure raises its own, and no other."""

import asyncio
import re
import subprocess
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from memq.broker.alerts import rules_text
from memq.broker.data_dir import DiskSpace
from memq.core.wire import messages as m
from memq.errors import StorageError
from memq.testing.broker import BrokerProcess
from memq.testing.storage import InMemoryStorage
from tests.harness.certificates import DAY, Certificates
from tests.harness.services.prometheus import Prometheus, program
from tests.integration.broker.support import TIMEOUT_S, broker, client, until

ROUNDS = 6  # evaluations in which no other alert may come up
TOKEN = "7f3a"  # noqa: S105 - of no other broker

EXPECTED = {
    ("dead", "MemqBrokerDown"),
    ("refused", "MemqServiceRefuses"),
    ("full", "MemqServiceRefuses"),
    ("behind", "MemqGroupBehind"),
    ("old", "MemqCertificateEnds"),
    ("older", "MemqCertificateEndsSoon"),
    ("unknown", "MemqUnauthorized"),
}


class RefusingStorage(InMemoryStorage):
    """A store that is asked now and then, and refuses."""

    remote = True

    def get_range(self, key, start, length):
        raise StorageError("503 SlowDown")


def soon(rules: str) -> str:
    """The rules, whose alerts of up to five minutes come after a second."""
    return re.sub(r"for: [1-5]m", "for: 1s", rules)


async def fall_behind(running) -> None:
    """Leave records of 1970 that a group has not read."""
    async with client(running) as c:
        await c.create("t", batch_age="1ms")
        await c.write(1)  # its timestamp
        offsets = [m.PartitionOffset(0, 0)]
        await c.ask(m.CommitOffsets(topic="t", group="g", member_id="", offsets=offsets))


async def is_refused(running) -> None:
    """Come with a wrong token."""
    with pytest.raises(Exception, match="token"):
        async with client(running, "wrong"):
            pass


async def test_each_failure_raises_its_alert_and_no_other(tmp_path):
    """With seven brokers that fail and one that does not, seven alerts fire, each for its own."""
    certificates = {name: tmp_path / name for name in ("old", "older")}
    for folder in certificates.values():
        folder.mkdir()
    with BrokerProcess(tmp_path / "dead") as process:
        dead = process.admin
        process.kill()
    async with AsyncExitStack() as stack:

        async def start(name, **options):
            return await stack.enter_async_context(broker(tmp_path / name, **options))

        running = {
            "fine": await start("fine"),
            "refused": await start("refused", storage=RefusingStorage()),
            "full": await start("full"),
            "behind": await start("behind"),
            "unknown": await start("unknown", token=TOKEN),
        }
        for days, (name, folder) in zip((10, 2), certificates.items(), strict=True):
            options = Certificates(folder).broker_options(lasts=days * DAY + timedelta(minutes=1))
            running[name] = await start(f"{name}-data", **options)
        running["full"].context.disk = DiskSpace([tmp_path], free=lambda _: 0)
        await fall_behind(running["behind"])
        await is_refused(running["unknown"])
        targets = {name: f"127.0.0.1:{each.admin_port}" for name, each in running.items()}
        targets["dead"] = dead.removeprefix("http://")
        with Prometheus(tmp_path / "prometheus", targets, soon(rules_text())) as prometheus:
            await until(lambda: answers(prometheus))
            seen = set()

            async def look():
                await is_refused(running["unknown"])
                found = await asyncio.to_thread(prometheus.firing)
                seen.update(found)
                return found

            deadline_s = time.monotonic() + TIMEOUT_S
            while not (found := await look()) >= EXPECTED:
                assert time.monotonic() < deadline_s, EXPECTED - found
                await asyncio.sleep(0.2)
            last = prometheus.evaluations() + ROUNDS
            while await asyncio.to_thread(prometheus.evaluations) < last:
                await look()
                await asyncio.sleep(0.2)
            assert seen == EXPECTED


def answers(prometheus) -> bool:
    """Whether Prometheus serves."""
    try:
        return prometheus.evaluations() > 0
    except OSError:
        return False


def test_prometheus_takes_the_rules():
    """The file that is copied passes the check of Prometheus itself."""
    rules = Path(__file__).parents[3] / "deploy" / "prometheus" / "memq.rules.yaml"
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(rules)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
