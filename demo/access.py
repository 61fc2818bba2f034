"""With SECURE=1: a user of the demo and what it may do, and a stranger who gets nowhere.

The bucket knows one key, which the broker has. The user reads it by credentials for one topic.
"""

from __future__ import annotations

import os
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import quote

from memq import AdminClient, Consumer, Producer, audit_topic, read_range
from memq.cli.dev_security import PASSWORD_FILE
from memq.client.cluster import Cluster
from memq.client.topic import SyncTopicClient
from memq.core.access.rules import Rule
from memq.core.defaults import SECURITY_VARIABLE, STORAGE_OPTIONS_VARIABLE
from memq.core.named_values import NamedValues
from memq.core.topic import AUDIT_TOPIC
from memq.errors import MemqError
from memq.reading.objects import read_storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from demo.broker import DemoBroker
    from tests.harness.services.signed_s3 import SignedS3

USER, STRANGER = "demo", "stranger"
ANOTHER = "another"  # topic that the stranger may read
MAY = [
    ("read", "topic", AUDIT_TOPIC),
    ("write", "topic", AUDIT_TOPIC),
    ("read", "group", "*"),
]


class Access:
    """Users of brokers that ask who their clients are.

    Args:
        address: of one of them.
        admin: what an administrator shows, with the CA.
        s3: where they lend credentials for one topic; None for brokers that lend none.
    """

    def __init__(self, address: str, admin: dict[str, str], s3: SignedS3 | None = None) -> None:
        self._address = address
        self._admin = admin
        self._s3 = s3
        self._ca = admin["ca"]
        self._passwords = {name: secrets.token_urlsafe(16) for name in (USER, STRANGER)}

    @classmethod
    def of_dev(cls, broker: DemoBroker, s3: SignedS3) -> Access:
        """Those of a broker that was started with a server."""
        ca = str(broker.folder / "tls" / "ca.pem")
        password_file = str(broker.folder / PASSWORD_FILE)
        admin = {"ca": ca, "user": "admin", "password_file": password_file}
        return cls(broker.address, admin, s3)

    def security(self, user: str) -> dict[str, str]:
        """Return what clients of a user show."""
        if user == "admin":
            return self._admin
        return {"ca": self._ca, "user": user, "password": self._passwords[user]}

    def let_in(self, topic: str) -> None:
        """Make the users, and let every client of this process and of its programs be one."""
        may = [("read", "topic", topic), ("write", "topic", topic), *MAY]
        with AdminClient(self._address, security=self.security("admin")) as admin:
            for name in (USER, STRANGER):
                admin.create_user(name, self._passwords[name])
            admin.alter_rules(
                add=[
                    Rule(principal=f"User:{USER}", operation=operation, type=kind, name=name)
                    for operation, kind, name in may
                ]
            )
            admin.create_topic(ANOTHER)
            read = {"operation": "read", "type": "topic", "name": ANOTHER}
            admin.alter_rules(add=[Rule(principal=f"User:{STRANGER}", **read)])
        os.environ[SECURITY_VARIABLE] = _text(self.security(USER))
        if self._s3 is not None:
            os.environ[STORAGE_OPTIONS_VARIABLE] = _text(self._lent(self._s3))

    @staticmethod
    def _lent(s3: SignedS3) -> dict[str, str]:
        return {"credentials": "broker", **s3.place}

    def connection(self, user: str) -> str:
        """Return the URI of an Airflow connection of a user."""
        login = f"{user}:{quote(self._passwords[user], safe='')}"
        return f"memq://{login}@{self._address}?security={quote(f'ca={self._ca}', safe='')}"

    def refusals(self, topic: str, running: Any) -> list[str]:
        """Return how a stranger is refused on each path, in words.

        Raises:
            AssertionError: it gets somewhere.
        """
        security = self.security(STRANGER)
        where = {"topic": topic, "security": security}
        address = self._address

        def produce() -> None:
            with Producer(address, **where, max_block="5s") as producer:
                producer.write(b"x").result(10)

        def consume() -> None:
            with Consumer(address, **where, group="strangers") as consumer:
                consumer.poll(5)

        def audit() -> None:
            from memq.client.sync import EventLoopThread  # noqa: PLC0415 - only here

            async def look() -> None:
                cluster = Cluster(address, security=security)
                try:
                    await audit_topic(cluster, topic)
                finally:
                    await cluster.close()

            loop = EventLoopThread("stranger")
            try:
                loop.run(look())
            finally:
                loop.close()

        def delete() -> None:
            with AdminClient(address, security=security) as admin:
                admin.delete_topic(topic)

        def spark() -> None:
            options = {"bootstrap": address, "topic": topic, "security": _text(security)}
            try:
                running.read.format("memq").options(**options).load().count()
            except Exception as exc:  # Spark's own, with ours in it
                found = re.search(r"no topic '.*' that User:stranger may describe", str(exc))
                if found is None:
                    raise
                raise MemqError(found[0]) from exc

        def airflow() -> None:
            from airflow_provider_memq.hooks.memq import MemqHook  # noqa: PLC0415 - loads Airflow

            os.environ["AIRFLOW_CONN_MEMQ_STRANGER"] = self.connection(STRANGER)
            MemqHook("memq_stranger").state(topic)

        paths: dict[str, Callable[[], object]] = {
            "producer": produce,
            "group": consume,
            "range": lambda: read_range(address, **where, partition=0, start=0, end=1, timeout=5),
            "audit": audit,
            "administration": delete,
            "Spark": spark,
            "Airflow": airflow,
        }
        paths |= self._at_the_bucket(topic)
        return [f"{name}: {_refused(act)}" for name, act in paths.items()]

    def _at_the_bucket(self, topic: str) -> dict[str, Callable[[], object]]:
        """Return how a stranger may try to read an object of a topic, past the broker."""
        s3 = self._s3
        if s3 is None:
            return {}
        address = self._address
        with SyncTopicClient(address, topic, security=self.security("admin")) as client:
            [batch, *_] = client.batches(client.ranges_between(None, None))
        uri = batch.notification.uri
        known: dict[str, Any] = {
            "security": self.security(STRANGER),
            "storage_options": self._lent(s3),
        }

        def credentials(of: str) -> NamedValues:
            with SyncTopicClient(address, of, **known) as client:
                return client.options_for(uri)

        def read(*keys: tuple[str, str]) -> None:
            read_storage(uri, 0, 1, NamedValues([*s3.place.items(), *keys]))

        wrong = [("access_key_id", "AKIASTRANGER"), ("secret_access_key", "made-up")]
        return {
            "credentials": lambda: credentials(topic),
            "the bucket, by those of another topic": lambda: read_storage(
                uri, 0, 1, credentials(ANOTHER)
            ),
            "the bucket, by a key that is made up": lambda: read(*wrong),
            "the bucket, without a key": lambda: read(("skip_signature", "true")),
        }


def _refused(act: Callable[[], object]) -> str:
    try:
        act()
    except MemqError as exc:
        if re.search("User:stranger|AccessDenied|InvalidAccessKeyId", str(exc)) is None:
            raise
        return re.sub(r"^cannot read .* in |: create it.*", "", str(exc))
    raise AssertionError(f"a stranger got in by {act}")


def _text(options: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in options.items())
