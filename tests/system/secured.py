"""A run whose brokers speak TLS and ask who their clients are, and who its clients are.

`root` makes topics, users and rules, by a token. One user writes and another reads, each with a
password and the rules that it needs, and no other. All of them are welcome all the time: where a
broker does not let one in, or breaks the protocol, that is a violation, even though the client
tries again and succeeds.

In some runs certificates are replaced before a broker starts and while it serves, and rules of
somebody else are added. No rule may be lost that was acked.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from memq.client.cluster import Cluster, ClusterArguments
from memq.client.connection import BrokerConnection
from memq.core.access.rules import Rule
from memq.core.access.users import SALT_BYTES, new_user
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire import messages as m
from memq.errors import InvalidRequestError, MemqError, ProtocolError, UnauthorizedError
from tests.harness.certificates import Certificates
from tests.simulation.checkers.violation import Violation
from tests.system.follower import GROUP
from tests.system.workload import STABLE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.system.lives import Lives

TOKEN, PASSWORD = "root-of-runs", "correct horse"
RENEWED = 0.5  # of the runs
RENEW_S = (0.02, 0.6)  # between two changes
ASK_S = 10.0
AGAIN_S = 0.1


class Clients(NamedTuple):
    """Arguments of clients: who they are, and whom they trust."""

    root: ClusterArguments
    writer: ClusterArguments
    reader: ClusterArguments


ANYBODY = Clients({}, {}, {})


class Secured:
    """Users, rules and certificates of a run.

    Args:
        folder: for certificates.
        seed: of what is changed meanwhile, and when.

    Attributes:
        clients: who they are.
        welcomed: set when all may get in.
    """

    def __init__(self, folder: Path, seed: str) -> None:
        self._chance = random.Random(f"{seed}/secured")
        self._renews = self._chance.random() < RENEWED
        self._certificates = Certificates(folder)
        self._lives: list[Lives] = []
        self._acked: set[Rule] = set()
        self._refused: list[str] = []
        self.welcomed = asyncio.Event()
        trusted = {"ca": self._certificates.ca}
        self.clients = Clients(
            {"token": TOKEN, "security": trusted},
            {"security": trusted | {"user": "writer", "password": PASSWORD}},
            {"security": trusted | {"user": "reader", "password": PASSWORD}},
        )

    def guard(self, name: str, lives: Lives) -> None:
        """Have a broker ask who its clients are, with certificates of its own."""
        cert, key = self._issue(name)
        options = {
            "tls_cert": cert,
            "tls_key": key,
            "authentication": "required",
            "superusers": "User:root",
            "token": f"root {TOKEN}",
        }
        lives.guard(options, partial(self._issue, name) if self._renews else None)
        self._lives.append(lives)

    def _issue(self, name: str) -> tuple[str, str]:
        return self._certificates.write(self._certificates.issue(), name)

    async def welcome(self, root: Cluster, topics: Iterable[str]) -> None:
        """Make users and rules; from now on the tasks that follow note who is not let in.

        Raises:
            MemqError: a broker refuses these.
        """
        for name in ("writer", "reader"):
            user = new_user(name, PASSWORD, self._chance.randbytes(SALT_BYTES))
            try:
                await root.call(m.PutUser(user=user))
            except InvalidRequestError:  # made by a request whose answer a crash has taken
                await root.call(m.PutUser(user=user, replace=True))
        await self._add(root, _needed(topics))
        if len(self._lives) > 1:  # others learn of users from ZooKeeper
            for lives in self._lives:
                await self._let_in(lives)
        _refused.set(self._refused)
        self.welcomed.set()

    async def _let_in(self, lives: Lives) -> None:
        for each in (self.clients.writer, self.clients.reader):
            while True:
                client = Cluster(lives.address, **each)
                try:
                    await client.metadata([], timeout_s=ASK_S)
                    break
                except MemqError:  # it may be dead, or not know the user yet
                    await asyncio.sleep(AGAIN_S)
                finally:
                    await client.close()

    async def _add(self, root: Cluster, rules: list[Rule]) -> None:
        await root.call(m.AlterRules(add=rules))
        self._acked.update(rules)

    async def renew(self, root: Cluster, stop: asyncio.Event) -> None:
        """Replace certificates and add rules of somebody else, until `stop`.

        Raises:
            MemqError: a broker refuses that.
        """
        while self._renews and not stop.is_set():
            await asyncio.sleep(self._chance.uniform(*RENEW_S))
            self._chance.choice(self._lives).renew()
            await self._add(root, [_rule("other", "read", "topic", f"t{len(self._acked)}")])

    async def check(self, root: Cluster) -> list[Violation]:
        """Say who was not let in, and which rules are lost."""
        answer, _ = await root.call(m.ListRules())
        lost = [f"rule {each} is lost" for each in self._acked.difference(answer.rules)]
        return [Violation("refused", each) for each in self._refused + lost]


def _needed(topics: Iterable[str]) -> list[Rule]:
    """All that writer and reader need."""
    return [
        *(_rule("writer", "write", "topic", topic) for topic in (*topics, AUDIT_TOPIC)),
        _rule("writer", "write", "producer_id", STABLE, prefixed=True),
        *(_rule("reader", "read", "topic", topic) for topic in topics),
        _rule("reader", "read", "group", GROUP),
    ]


def _rule(user: str, operation: str, kind: str, name: str, *, prefixed: bool = False) -> Rule:
    return Rule(
        principal=f"User:{user}", operation=operation, type=kind, name=name, prefixed=prefixed
    )


_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)
"""Gets why connections of a run's tasks end; runs take place side by side."""
_finish = BrokerConnection._finish


def _noted(connection: BrokerConnection, why: MemqError) -> None:
    if isinstance(why, UnauthorizedError | ProtocolError):  # TLS is one of the former
        refused = _refused.get()
        if refused is not None:
            refused.append(f"{connection.address}: {type(why).__name__}: {why}")
    _finish(connection, why)


BrokerConnection._finish = _noted
