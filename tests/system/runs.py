"""One chaos run: a plan is carried out, and what came of it is checked."""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.request
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq.client.cluster import Cluster
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import MemqError, TopicExistsError
from tests.fakes.cutter import Cutter
from tests.simulation import history as h
from tests.simulation.checkers import check
from tests.simulation.checkers.violation import Violation
from tests.system.follower import Follower
from tests.system.ledger import Ledger, now_us
from tests.system.lives import BrokerEndedError, Lives
from tests.system.secured import ANYBODY, TOKEN, Secured
from tests.system.workload import produce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.system.plan import Plan

RUN_TIMEOUT_S = 240.0  # a run takes some seconds, 35 with many cuts; a hang is a violation as well
LOST, DOUBLED, DAMAGED = {"lost write", "unseen"}, {"duplicate"}, {"phantom", "changed"}
REQUEST_TIMEOUT_S = 120.0  # brokers die, and services are away, while something is asked
SWEEP_S = 0.5  # several of the plan's retention_interval
REST_TIMEOUT_S = 5.0  # for audit reports, which are sent when a producer is closed, to be stored
LOG_SIGNS = ("CRITICAL", "Traceback", "published notifications from offset")
"""What no broker may log: an error that nothing expected, or published notifications lost."""


@dataclass
class Report:
    """What became of a run, or of many.

    Attributes:
        runs: how many.
        ends: how brokers ended, with how often; and "cut": connections, while they lived.
        acked: LogMessages acked.
        read: LogMessages read.
        batches: that were read.
        duplicates: acks that said that the Message had been published before.
        violations: what must not be.
    """

    runs: int = 1
    ends: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    read: int = 0
    batches: int = 0
    duplicates: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Take the figures of another one in."""
        self.runs += other.runs
        self.ends += other.ends
        self.acked += other.acked
        self.read += other.read
        self.batches += other.batches
        self.duplicates += other.duplicates
        self.violations += other.violations

    @property
    def kinds(self) -> Counter[str]:
        """Violations by kind."""
        return Counter(kind for kind, _ in self.violations)

    def __str__(self) -> str:
        kinds = self.kinds
        kills = self.ends.total() - sum(
            self.ends[end] for end in ("term", "cut", "could not start")
        )
        named = {"lost": LOST, "doubled": DOUBLED, "damaged": DAMAGED}
        first = LOST | DOUBLED | DAMAGED
        others = {kind: count for kind, count in kinds.items() if kind not in first}
        counted = ", ".join(
            f"{sum(kinds[kind] for kind in group)} {name}" for name, group in named.items()
        )
        steps = [f"{end} {count}" for end, count in sorted(self.ends.items()) if end != "cut"]
        return (
            f"{kills} kills ({', '.join(steps)}), {self.ends['cut']} connections cut, "
            f"{self.acked} records acked, {self.read} read in {self.batches} Batches, "
            f"{self.duplicates} duplicate acks; {counted}, "
            f"{sum(others.values())} other violations{f' {others}' if others else ''}"
        )


async def run(plan: Plan, directory: Path) -> Report:
    """Carry out a plan; everything that went wrong is in the report."""
    report = Report()
    rng = random.Random(plan.seed)
    lives = Lives(directory, plan.options, plan.seams)
    secured = Secured(directory, plan.seed) if plan.secure else None
    if secured is not None:
        secured.guard("broker", lives)
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S), AsyncExitStack() as stack:
            address = lives.address
            if plan.cuts_s:
                cutter = Cutter(lives.address, rng, plan.cuts_s)
                stack.callback(lambda: report.ends.update({"cut": cutter.cuts}))
                address = (await stack.enter_async_context(cutter)).address
                lives.advertise(address)

            async def die() -> list[str]:
                if secured is not None:
                    await lives.start()
                    await secured.welcomed.wait()
                    lives.kill()
                for life in plan.lives:
                    report.ends[await lives.live(life)] += 1
                return [await lives.start()]

            await carry_out(plan, address, die, report, secured=secured)
            await lives.terminate()
    except TimeoutError:
        report.violations.append(
            Violation("stuck", f"the run has not ended after {RUN_TIMEOUT_S:g} s")
        )
    except (MemqError, BrokerEndedError) as exc:
        report.violations.append(Violation("refused", f"{type(exc).__name__}: {exc}"))
    finally:
        lives.kill()
    report.violations += signs(lives.log)
    return report


def signs(log: str) -> list[Violation]:
    """What no broker may log."""
    lines = [line for line in log.splitlines() if any(sign in line for sign in LOG_SIGNS)]
    return [Violation("log", line) for line in lines]


async def carry_out(
    plan: Plan,
    address: str,
    die: Callable[[], Awaitable[list[str]]],
    report: Report,
    *,
    secured: Secured | None,
    look: Callable[[Ledger], Awaitable[None]] | None = None,
) -> None:
    """Have producers write and brokers die as planned, and check everything.

    Args:
        plan: of the run; its lives are not looked at.
        address: of the brokers.
        die: lets brokers live and die; gives the URLs of the admin HTTP of those that live on.
        report: of the run.
        secured: who its clients are; None where nobody asks.
        look: checks the brokers that live on, when no producer writes any more.

    Raises:
        MemqError: something was refused for good.
        BrokerEndedError: a broker ended as nothing asked it to.
    """
    ledger = Ledger()
    clients = ANYBODY if secured is None else secured.clients
    given = {"client": "chaos", "request_timeout_s": REQUEST_TIMEOUT_S}
    cluster = Cluster(address, **given, **clients.root)
    reading = Cluster(address, **given, **clients.reader)
    followers = {topic: Follower(reading, topic, ledger) for topic in plan.topics}
    stop, stop_following = asyncio.Event(), asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            dying = tasks.create_task(die())
            for topic, options in plan.topics.items():
                await _create(cluster, TopicConfig.create(topic, **options), ledger.history)
            if secured is not None:
                await secured.welcome(cluster, plan.topics)
                tasks.create_task(secured.renew(cluster, stop))
            producing = [
                tasks.create_task(
                    produce(
                        each,
                        address,
                        ledger,
                        stop,
                        ordered=_is_ordered(plan, each.topic),
                        given=clients.writer,
                    )
                )
                for each in plan.producers
            ]
            for follower in followers.values():
                tasks.create_task(follower.follow(stop_following))
            admins = await dying
            await asyncio.sleep(plan.quiet_s)
            stop.set()
            await asyncio.wait(producing)
            if look is not None:
                await look(ledger)
            stop_following.set()
        await _stop_retention(cluster, plan)
        for follower in followers.values():
            await follower.read_again()
        if secured is not None:
            report.violations += await secured.check(cluster)
    except* (MemqError, BrokerEndedError) as group:
        raise _first(group) from group
    finally:
        report.acked = len(ledger.acked)
        report.duplicates = ledger.duplicates
        await cluster.close()
        await reading.close()
    for follower in followers.values():
        report.violations += follower.violations
        report.batches += len(follower.seen)
        report.read += sum(len(values) for seen in follower.seen.values() for values in seen.values)
    for admin in admins:
        ledger.history.add(await _at_rest(admin))
    ledger.history.end_us = now_us()
    report.violations += [Violation("refused", text) for text in ledger.refused]
    report.violations += await asyncio.to_thread(check, ledger.history)


def _first(error: BaseException) -> BaseException:
    """The first error in groups of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _create(cluster: Cluster, config: TopicConfig, history: h.History) -> None:
    begun_us = now_us()
    with suppress(TopicExistsError):  # made by a request whose answer a crash has taken
        await cluster.call(m.CreateTopic(config=config))
    topic_id = (await cluster.topic(config.name, refresh=True)).topic_id
    history.add(
        h.TopicChange(
            "chaos", begun_us, now_us(), h.OK, h.CREATE, config.name, topic_id,
            config.retention_ms * 1_000,
        )
    )  # fmt: skip


def _is_ordered(plan: Plan, topic: str) -> bool:
    return plan.topics[topic].get("ordering") == "producer"


async def _stop_retention(cluster: Cluster, plan: Plan) -> None:
    """Let nothing vanish while it is read."""
    for topic, options in plan.topics.items():
        if "retention" in options:
            await cluster.call(m.AlterTopic(topic=topic, options={"retention": "7d"}))
            await asyncio.sleep(SWEEP_S)


async def _at_rest(admin: str) -> h.Memory:
    """The bytes of Messages that a broker still holds after some time at rest; there are none."""
    status = urllib.request.Request(f"{admin}/status", headers={"Authorization": f"Bearer {TOKEN}"})  # noqa: S310 - HTTP

    def used_bytes() -> int:
        with urllib.request.urlopen(status, timeout=10) as answer:  # noqa: S310 - HTTP
            return json.load(answer)["memory_used_bytes"]

    deadline_s = time.monotonic() + REST_TIMEOUT_S
    while used := await asyncio.to_thread(used_bytes):
        if time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.05)
    return h.Memory(now_us(), "broker", "what is held at rest", used, 0)
