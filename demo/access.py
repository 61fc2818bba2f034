"""With SECURE=1: a user of the demo and what it may do, and a stranger who gets nowhere."""

from __future__ import annotations

import os
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import quote

from memq import AdminClient, Consumer, Producer, audit_topic, read_range
from memq.cli.dev_security import PASSWORD_FILE
from memq.client.cluster import Cluster
from memq.core.access.rules import Rule
from memq.core.defaults import SECURITY_VARIABLE
from memq.core.topic import AUDIT_TOPIC
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from demo.broker import DemoBroker

USER, STRANGER = "demo", "stranger"
MAY = [
    ("read", "topic", AUDIT_TOPIC),
    ("write", "topic", AUDIT_TOPIC),
    ("read", "group", "*"),
]


class Access:
    """Users of a broker that asks who its clients are.

    Args:
        broker: which was started with `secure`.
    """

    def __init__(self, broker: DemoBroker) -> None:
        self._broker = broker
        self._ca = str(broker.folder / "tls" / "ca.pem")
        self._passwords = {name: secrets.token_urlsafe(16) for name in (USER, STRANGER)}
        self._passwords["admin"] = (broker.folder / PASSWORD_FILE).read_text()

    def security(self, user: str) -> dict[str, str]:
        """Return what clients of a user show."""
        return {"ca": self._ca, "user": user, "password": self._passwords[user]}

    def let_in(self, topic: str) -> None:
        """Make the users, and let every client of this process and of its programs be one."""
        may = [("read", "topic", topic), ("write", "topic", topic), *MAY]
        with AdminClient(self._broker.address, security=self.security("admin")) as admin:
            for name in (USER, STRANGER):
                admin.create_user(name, self._passwords[name])
            admin.alter_rules(
                add=[
                    Rule(principal=f"User:{USER}", operation=operation, type=kind, name=name)
                    for operation, kind, name in may
                ]
            )
        os.environ[SECURITY_VARIABLE] = self._text(USER)

    def _text(self, user: str) -> str:
        return ",".join(f"{name}={value}" for name, value in self.security(user).items())

    def connection(self, user: str) -> str:
        """Return the URI of an Airflow connection of a user."""
        login = f"{user}:{quote(self._passwords[user], safe='')}"
        return f"memq://{login}@{self._broker.address}?security={quote(f'ca={self._ca}', safe='')}"

    def refusals(self, topic: str, running: Any) -> list[str]:
        """Return how a stranger is refused on each path, in words.

        Raises:
            AssertionError: it gets somewhere.
        """
        security = self.security(STRANGER)
        where = {"topic": topic, "security": security}
        address = self._broker.address

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
            options = {"bootstrap": address, "topic": topic, "security": self._text(STRANGER)}
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
        return [f"{name}: {_refused(act)}" for name, act in paths.items()]


def _refused(act: Callable[[], object]) -> str:
    try:
        act()
    except MemqError as exc:
        if "User:stranger" not in str(exc):
            raise
        return str(exc).split(": create it")[0]
    raise AssertionError(f"a stranger got in by {act}")
