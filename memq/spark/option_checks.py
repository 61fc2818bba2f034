"""Whether the options of a read fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.errors import ConfigError

if TYPE_CHECKING:
    import re
    from collections.abc import Collection

    from memq.spark.bounds import Bound


def check_topics(
    read: Collection[str], pattern: re.Pattern[str] | None, bound: Bound, option: str
) -> None:
    """Refuse a bound that does not say which topic it is about, or names one that is not read.

    Args:
        read: names of the topics that are read; none where there is a pattern.
        pattern: of such names.
        bound: where the read begins or ends.
        option: that says so.

    Raises:
        ConfigError: it does.
    """
    if len(read) != 1 and bound.partitions is not None:
        raise ConfigError(
            f"the JSON of option '{option}' does not say of which topic its read partitions are; "
            'where several are read, write {"clicks": {"0": 5}}'
        )
    named = sorted(bound.by_topic or ())
    if pattern is None and named and set(named) != set(read):
        raise ConfigError(
            f"option '{option}' names the topics {', '.join(named)}, and the read is of "
            f"{', '.join(sorted(read))}"
        )
    strange = [name for name in named if pattern is not None and not pattern.fullmatch(name)]
    if strange:
        raise ConfigError(
            f"option '{option}' names topic {strange[0]!r}, which 'subscribePattern' does not match"
        )


def check_limits(least: int | None, most: int | None) -> None:
    """Refuse a micro-batch that has to be larger than it may be.

    Raises:
        ConfigError: it has to.
    """
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option 'minOffsetsPerTrigger' = {least} is more than 'maxOffsetsPerTrigger' = {most}"
        )
