"""Feature levels: what brokers of several versions may write together, and the way back.

A *level* is a number that grows with each new format, stored or sent, that an older version could
not go on with. Each broker knows a range of levels; its cluster, or a broker alone, has one active
level. New formats are used at that level only, so until it is raised every broker may go back to
the version before. Nothing lowers it.

What is new begins at the highest level; what has none written down is at 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from memq.core.version import __version__
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_LEVEL, MAX_LEVEL = 1, 2  # that this version knows

TRACES = 2
"""From this level on brokers follow the context of a producer's span in a Write."""


RESTORED = 2
"""From this level on brokers know the offsets of topics that were restored in Kafka."""


class ActiveLevel(msgspec.Struct, frozen=True):
    """The active level, as it is stored."""

    level: int


def check_level(level: int, where: str) -> int:
    """Return the active level, if this version knows it.

    Raises:
        ConfigError: it does not.
    """
    if not MIN_LEVEL <= level <= MAX_LEVEL:
        raise ConfigError(
            f"{where} is at feature level {level}, and memq {__version__} knows {MIN_LEVEL} to "
            f"{MAX_LEVEL}: run a version that knows it; a level is never lowered"
        )
    return level


def check_final(level: int, active: int, known: Mapping[str, tuple[int, int]]) -> None:
    """Refuse a level that is lower than the active one, or that a broker does not know.

    Args:
        level: that is to be active.
        active: the present one.
        known: lowest and highest level that each broker knows, by its id.

    Raises:
        InvalidRequestError: naming the brokers.
    """
    behind = [name for name, (low, high) in known.items() if not max(low, active) <= level <= high]
    if behind:
        raise InvalidRequestError(
            f"feature level {level}: {active} is active and never lowered, and this one is not "
            f"known to {', '.join(sorted(behind))}: upgrade them; forget one that is lost with "
            "`memq cluster drain`"
        )
