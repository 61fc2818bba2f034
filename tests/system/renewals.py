"""Certificates are replaced and rules change under load, at three brokers; then users are revoked.

    python -m tests.system.renewals --times 200

The brokers share an S3-compatible store, Kafka and ZooKeeper, speak TLS, and ask who their clients
are. A producer and a member of a group work all the time, by a user of their own, and none may get
an error. Meanwhile certificates are replaced (by good ones, by damaged files, by a new authority
that clients know already) and rules of others come and go. Then users lose a rule, their password
or their life, each at one broker: they must be out at all brokers within `OUT_S`.
"""

# ruff: noqa: T201 - it is a command

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memq import AdminClient
from memq.core.access.rules import Rule
from memq.errors import ForbiddenError, MemqError, UnauthorizedError
from memq.testing.broker import BrokerProcess
from tests.harness.certificates import Certificates
from tests.system.load import Load, check, tell, wait_for
from tests.system.services import services

TOPIC = "renewals"
BROKERS = 3
OUT_S = 5.0
WAIT_S = 120.0
RECORD_S = 0.002
REVOKED = 10  # users, one after the other
PASSWORD = "correct horse"  # noqa: S105 - of nobody


def run(folder: Path, times: int) -> list[str]:
    """Carry it out; what was wrong."""
    chance = random.Random(1)
    certificates, others = Certificates(folder), Certificates(folder, "others")
    both = folder / "both.pem"
    both.write_bytes(Path(certificates.ca).read_bytes() + Path(others.ca).read_bytes())
    options = certificates.broker_options() | {
        "authentication": "required",
        "superusers": "User:root",
        "token": "root admin",
    }
    with services(folder, bucket=TOPIC) as found, ExitStack() as stack:
        brokers = found.brokers(stack, folder, TOPIC, BROKERS, **options)
        bootstrap = ",".join(each.address for each in brokers)
        root: dict[str, Any] = {
            "bootstrap": bootstrap,
            "token": "admin",
            "security": {"ca": str(both)},
        }
        admin = stack.enter_context(AdminClient(**root))
        wait_for(lambda: len(admin.describe_cluster().brokers), lambda n: n == BROKERS, WAIT_S)
        admin.create_topic(TOPIC, write_partitions=9, read_partitions=4)
        admin.create_user("worker", PASSWORD)
        admin.alter_rules(add=_rules("worker"))
        security = {"ca": str(both), "user": "worker", "password": PASSWORD}
        wait_for(lambda: _may(brokers, security), all, OUT_S)
        given = {"bootstrap": bootstrap, "topic": TOPIC, "security": security}
        load = Load(given, "", producers=2, record_s=RECORD_S)
        stack.callback(load.end)
        for number in range(times):
            _replace_certificate(chance, certificates, others)
            for each in brokers:
                os.kill(each.pid, signal.SIGHUP)
            name = f"User:other-{chance.randrange(20)}"
            rule = Rule(principal=name, operation="read", type="topic", name=str(number))
            admin.alter_rules(add=[rule], remove=[rule] if number % 2 else [])
            if load.errors:
                break
        print(f"{times} replaced certificates and changes of rules", flush=True)
        certificates.write(certificates.issue())
        wrong = [] if load.errors else _revoke(brokers, admin, str(both), chance)
        load.end(WAIT_S)
        return wrong + check({"topic": TOPIC} | root, load)


def _rules(user: str) -> list[Rule]:
    """What a user of the load may do."""
    rules = [("write", "topic", TOPIC), ("read", "topic", TOPIC), ("read", "group", "readers")]
    rules.append(("write", "topic", "_memq_audit"))
    return [
        Rule(principal=f"User:{user}", operation=operation, type=kind, name=name)
        for operation, kind, name in rules
    ]


def _replace_certificate(
    chance: random.Random, certificates: Certificates, others: Certificates
) -> None:
    kind = chance.choice(["good", "good", "damaged", "others"])
    cert, _ = (others if kind == "others" else certificates).write(
        (others if kind == "others" else certificates).issue()
    )
    if kind == "damaged":
        Path(cert).write_bytes(Path(cert).read_bytes()[:-40])


def _may(brokers: list[BrokerProcess], security: dict[str, str]) -> list[bool]:
    """Whether a user gets at the topic, at each broker."""
    return [_gets_in(each.address, security) for each in brokers]


def _gets_in(address: str, security: dict[str, str]) -> bool:
    try:
        with AdminClient(address, security=security, request_timeout_s=5.0) as client:
            client.offsets(TOPIC)
    except (UnauthorizedError, ForbiddenError):
        return False
    except MemqError as exc:
        if exc.retriable:
            raise
        return False  # the topic does not exist for it
    return True


def _revoke(
    brokers: list[BrokerProcess], admin: AdminClient, ca: str, chance: random.Random
) -> list[str]:
    """Let users lose what lets them in; what was wrong."""
    wrong, slowest_s = [], 0.0
    ways: Counter[str] = Counter()
    for number in range(REVOKED):
        name = f"user-{number}"
        admin.create_user(name, PASSWORD)
        admin.alter_rules(add=_rules(name))
        security = {"ca": ca, "user": name, "password": PASSWORD}
        wait_for(lambda security=security: _may(brokers, security), all, OUT_S)
        way = chance.choice(["rule", "password", "user"])
        ways[way] += 1
        begun_s = time.monotonic()
        if way == "rule":
            admin.alter_rules(remove=_rules(name))
        elif way == "password":
            admin.alter_user(name, "another password")
        else:
            admin.delete_user(name)
        while any(_may(brokers, security)):
            if time.monotonic() - begun_s > OUT_S:
                wrong.append(f"{name}, whose {way} is gone, is not out after {OUT_S:g} s")
                break
        slowest_s = max(slowest_s, time.monotonic() - begun_s)
    print(f"{dict(ways)} revoked; out at all brokers after {slowest_s:.2f} s at most", flush=True)
    return wrong


def main() -> int:
    """Run it, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return tell(run(Path(folder), given.times))


if __name__ == "__main__":
    sys.exit(main())
