"""The state of all brokers at a glance: what each says of itself, and what is wrong, in words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from memq.core.units import iso_ms
from memq.core.wire.messages import DescribeCluster, DescribeClusterAnswer
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.client.cluster import Cluster
    from memq.client.lag import GroupLag
    from memq.core.wire.messages import BrokerStatus

BROKER_S = 2.0  # for which each broker is waited for
GOVERNOR_S = 1.5  # for which it is
LAG_S = 1.0  # for which the lag of groups is; it is not worth more while a service refuses
LATE_MS = 30_000  # that a watermark may be older than `batch_age`: the time of `upload_deadline`


class ClusterStatus(NamedTuple):
    """The state of a cluster, or of a broker that governs itself.

    Attributes:
        cluster_id: the cluster.
        brokers: what those say that answer, sorted by id.
        silent: why another one does not, by its id, or by its address where no broker knows it.
        cluster: what the Governor says; None where there is none, or it does not answer.
        problem: why it does not; empty when it does, and for a broker that governs itself.
        worst_lag: of the group with the most LogMessages to read; None where that is not known.
    """

    cluster_id: str
    brokers: list[BrokerStatus]
    silent: dict[str, str]
    cluster: DescribeClusterAnswer | None
    problem: str
    worst_lag: GroupLag | None = None

    def problems(self) -> list[str]:
        """List what is wrong, and the way out, services first; empty when all is well."""
        refusing: dict[str, dict[str, str]] = {}
        for broker in self.brokers:
            for state in broker.services:
                if words := state.words():
                    refusing.setdefault(state.name, {})[broker.id] = words
        found = [
            f"{min(words.values())} (at {', '.join(words)}); mend {name}, or the way to it"
            for name, words in refusing.items()
        ]
        return [*found, *self._of_brokers()]

    def _of_brokers(self) -> Iterator[str]:
        for name, why in self.silent.items():
            yield f"broker {name} does not answer: {why}; start it, or look at its log"
        for name, lost_ms in getattr(self.cluster, "lost", {}).items():
            if name not in self.silent:
                yield f"broker {name} is lost since {iso_ms(lost_ms)}; start it again"
        for broker in self.brokers:
            said = [state.words() for state in broker.services]
            for reason in [each for each in broker.not_ready if each not in said]:
                yield f"broker {broker.id} is not ready: {reason}"
            if broker.late_ms > LATE_MS:
                yield (
                    f"the watermark of {broker.late_topic} at broker {broker.id} is "
                    f"{broker.watermark_age_ms / 1000:.0f} s old: look for `was not stored` and "
                    "`were not published` in its log"
                )
        if self.cluster is not None and self.cluster.homeless:
            names = ", ".join(self.cluster.homeless)
            yield f"write partitions of {names} have no owner: start more brokers"
        if self.problem:
            yield f"the Governor does not answer: {self.problem}"


async def cluster_status(cluster: Cluster, timeout_s: float) -> ClusterStatus:
    """Ask every broker, from the seeds on, and the Governor; silent ones hold nobody up.

    Raises:
        MemqError: no broker answers; why the first does not.
    """
    deadline_s = cluster.runtime.mono_s() + timeout_s
    told: dict[str, DescribeClusterAnswer] = {}
    failed: dict[str, MemqError] = {}
    names: dict[str, str] = {}

    async def ask(address: str, limit_s: float) -> None:
        try:
            told[address] = await cluster.status(address, timeout_s=limit_s)
        except MemqError as exc:
            failed[address] = exc
        else:
            names.update({each.address: each.id for each in told[address].brokers})

    while unasked := {*cluster.seeds, *names} - told.keys() - failed.keys():
        left_s = max(0.0, deadline_s - cluster.runtime.mono_s())
        await asyncio.gather(*(ask(each, min(BROKER_S, left_s / 2)) for each in unasked))
    if not told:
        raise next(iter(failed.values()))
    described, problem = None, ""
    address, first = next(iter(told.items()))
    statuses = [each.status for each in told.values() if each.status is not None]
    zookeepers = [s for each in statuses for s in each.services if s.name == "zookeeper"]
    if zookeepers and not any(state.words() for state in zookeepers):  # else it cannot answer
        try:
            left_s = max(0.0, min(GOVERNOR_S, deadline_s - cluster.runtime.mono_s()))
            answer, _ = await cluster.call(DescribeCluster(), timeout_s=left_s)
            assert isinstance(answer, DescribeClusterAnswer)  # noqa: S101 - the wire checked it
            described = answer
        except MemqError as exc:
            problem = str(exc)
            # By now it may know which service has gone, without which the Governor says nothing.
            await ask(address, max(0.0, deadline_s - cluster.runtime.mono_s()))
    brokers = {each.status.id: each.status for each in told.values() if each.status is not None}
    silent = {
        names.get(address, address): str(error)
        for address, error in failed.items()
        if names.get(address) not in brokers
    }
    listed = [brokers[name] for name in sorted(brokers)]
    return ClusterStatus(first.cluster_id, listed, silent, described, problem)
