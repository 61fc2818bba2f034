"""Assignors: who decides which broker owns which write partition.

There is one of ours, `memq.core.governor.assignment`. Another one is a function that its package
names as an entry point of the group `memq.assignors`:

    [project.entry-points."memq.assignors"]
    by-tenant = "our_package:assign"

It is called as `assign(brokers, partitions, present)` and gives the owner of each write partition.
What it returns is checked. What is homeless goes where it says at once, and so does what it wants
elsewhere, but a few at a time, as in any rebalancing. It should be sticky: what it moves each time
that it is asked keeps moving.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeAlias

from memq.core.governor.assignment import assign, rebalance
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.metadata import EntryPoint

    from memq.core.governor.assignment import BrokerResources, Partition, PartitionLoad

    Function = Callable[
        [Sequence[BrokerResources], Sequence[PartitionLoad], Mapping[Partition, str]], object
    ]

GROUP = "memq.assignors"
BALANCED = "balanced"
"""Name of our own."""


class BalancedAssignor:
    """By capacity and traffic, sticky: our own."""

    assign = staticmethod(assign)
    rebalance = staticmethod(rebalance)


class CheckedAssignor:
    """A user's function, of which each result is checked.

    Args:
        name: of its entry point.
        function: as described at the top.
    """

    def __init__(self, name: str, function: Function) -> None:
        self._name, self._function = name, function

    def __repr__(self) -> str:
        return f"<CheckedAssignor {self._name!r}>"

    def assign(
        self,
        brokers: Sequence[BrokerResources],
        partitions: Sequence[PartitionLoad],
        present: Mapping[Partition, str],
    ) -> dict[Partition, str]:
        """Owners of what is homeless as the function says; what has an accepting one stays."""
        accepting = {broker.id for broker in brokers if broker.accepting}
        kept = {
            each.partition: owner
            for each in partitions
            if (owner := present.get(each.partition, "")) in accepting
        }
        if not accepting or len(kept) == len(partitions):
            return {each.partition: kept.get(each.partition, "") for each in partitions}
        return self._target(brokers, partitions, present) | kept

    def rebalance(
        self,
        brokers: Sequence[BrokerResources],
        partitions: Sequence[PartitionLoad],
        present: Mapping[Partition, str],
        *,
        max_moves: int,
        tolerance: float,  # noqa: ARG002 - when something should move is the function's decision
    ) -> dict[Partition, str]:
        """Return the moves that the function wants, those from brokers that do not accept first."""
        live = {broker.id: broker.accepting for broker in brokers}
        if not any(live.values()):
            return {}
        target = self._target(brokers, partitions, present)
        elsewhere = [
            key
            for key, owner in sorted(target.items())
            if present.get(key, "") in live and present[key] != owner
        ]
        elsewhere.sort(key=lambda key: live[present[key]])
        return {key: target[key] for key in elsewhere[:max_moves]}

    def _target(
        self,
        brokers: Sequence[BrokerResources],
        partitions: Sequence[PartitionLoad],
        present: Mapping[Partition, str],
    ) -> dict[Partition, str]:
        try:
            found = self._function(tuple(brokers), tuple(partitions), dict(present))
        except Exception as exc:
            raise ConfigError(f"assignor {self._name!r} fails: {exc!r}") from exc
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"assignor {self._name!r} returns {type(found).__name__}, not a mapping from each "
                "pair of topic and number to its owner"
            )
        target = {each.partition: found.get(each.partition) for each in partitions}
        accepting = {broker.id for broker in brokers if broker.accepting}
        for key, owner in target.items():
            if not isinstance(owner, str) or owner not in accepting:
                raise ConfigError(
                    f"assignor {self._name!r} gives {key} the owner {owner!r}, which is no broker "
                    "that accepts write partitions"
                )
        if len(found) > len(target):
            strange = next(key for key in found if key not in target)
            raise ConfigError(
                f"assignor {self._name!r} gives an owner to {strange!r}, which is no write "
                "partition of any topic"
            )
        return {key: str(owner) for key, owner in target.items()}


Assignor: TypeAlias = BalancedAssignor | CheckedAssignor
"""Decides where write partitions are, and which of them move.

Both raise `ConfigError` where what a user's function returns is no assignment.
"""


def load_assignor(name: str = BALANCED) -> Assignor:
    """Load the assignor of a name.

    Args:
        name: `BALANCED`, or that of an entry point of the group `memq.assignors`.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    if name == BALANCED:
        return BalancedAssignor()
    installed = entry_points(group=GROUP)
    found = [each for each in installed if each.name == name]
    if not found:
        known = sorted({BALANCED, *installed.names})
        raise ConfigError(
            f"assignor {name!r}: no installed package has an entry point {GROUP} of that name; "
            f"known are {', '.join(known)}"
        )
    return CheckedAssignor(name, _load(found[0]))


def _load(entry: EntryPoint) -> Function:
    try:
        function = entry.load()
    except Exception as exc:
        raise ConfigError(
            f"assignor {entry.name!r} cannot be loaded from {entry.value}: {exc!r}"
        ) from exc
    if not callable(function):
        raise ConfigError(
            f"assignor {entry.name!r}: {entry.value} is {type(function).__name__}, not a function"
        )
    return function  # type: ignore[no-any-return]
