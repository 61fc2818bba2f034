"""From the options of a read to offsets of each read partition."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from memq.core.ranges import OffsetRange
from memq.errors import ConfigError, OffsetOutOfRangeError
from memq.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memq.core.wire.messages import PartitionOffsets
    from memq.spark.driver import Driver
    from memq.spark.options import Bound, ReadOptions

log = logging.getLogger("memq.spark")


def resolve(driver: Driver, options: ReadOptions) -> list[OffsetRange]:
    """The ranges of a read, of which every offset is held.

    Raises:
        ConfigError: there is no such read partition, or a range ends before it starts.
        OffsetOutOfRangeError: some of it is not held, and that must not be passed over.
        MemqError: the brokers failed.
    """
    held = {each.partition: each for each in driver.offsets()}
    start = bound_offsets(driver, options.starting, held, "startingOffsets")
    end = bound_offsets(driver, options.ending, held, "endingOffsets")
    stretches = []
    for partition in sorted(set(start) & set(end)):
        stretch = OffsetRange(partition, start[partition], end[partition])
        stretches.append(_checked(stretch, held[partition], options))
    return stretches


def bound_offsets(
    driver: Driver, bound: Bound, held: Mapping[int, PartitionOffsets], option: str
) -> dict[int, int]:
    """Where a bound falls in each read partition that it speaks of.

    Args:
        driver: asks the brokers for times.
        bound: an option's value.
        held: what is held. A time is looked up later than this was asked for, and more may be
            published by then; what is not in here does not count.
        option: its name.

    Raises:
        ConfigError: it speaks of a read partition that there is not.
        MemqError: the brokers failed.
    """
    if bound.at_ms is not None:
        found = {each.partition: each.at for each in driver.offsets(bound.at_ms)}
        return {
            partition: _at_most(found.get(partition), each.end) for partition, each in held.items()
        }
    if bound.offsets is None:
        return {partition: _offset(bound.word, each) for partition, each in held.items()}
    unknown = sorted(set(bound.offsets) - set(held))
    if unknown:
        raise ConfigError(
            f"option '{option}' names read partition {unknown[0]}; the topic has "
            f"{', '.join(map(str, sorted(held)))}"
        )
    return {
        partition: _offset(offset, held[partition]) for partition, offset in bound.offsets.items()
    }


def after_loss(options: ReadOptions, stretch: OffsetRange, first_held: int) -> OffsetRange:
    """What of a range that retention has cut is still there, if the user wants to go on.

    Raises:
        OffsetOutOfRangeError: the user does not.
    """
    gone = OffsetRange(stretch.partition, stretch.start, min(first_held, stretch.end))
    message = (
        f"offsets {gone.start} to {gone.end - 1} of {options.topic}/{gone.partition} were removed "
        f"by retention; {first_held} is the first that is held"
    )
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{message}. Start there, or set failOnDataLoss to false to read on without them"
        )
    log.warning("MemQ: %s: reading on without them, as failOnDataLoss is false", message)
    return stretch._replace(start=gone.end)


def _offset(wanted: int | None, held: PartitionOffsets) -> int:
    if wanted == EARLIEST:
        return held.start
    if wanted == LATEST or wanted is None:
        return held.end
    return wanted


def _at_most(offset: int | None, end: int) -> int:
    return end if offset is None else min(offset, end)


def check_published(topic: str, stretch: OffsetRange, held: PartitionOffsets) -> None:
    """Refuse offsets that do not exist yet.

    Raises:
        OffsetOutOfRangeError: the stretch begins or ends behind what is published.
    """
    if max(stretch.start, stretch.end) > held.end:
        raise OffsetOutOfRangeError(
            f"offsets {stretch.start} to {stretch.end} of {topic}/{stretch.partition} are "
            f"not published yet; {held.end} is the end"
        )


def _checked(stretch: OffsetRange, held: PartitionOffsets, options: ReadOptions) -> OffsetRange:
    check_published(options.topic, stretch, held)
    if stretch.end < stretch.start:  # such as a start behind an end that is a time
        return stretch._replace(end=stretch.start)
    if stretch.start < min(held.start, stretch.end):
        return after_loss(options, stretch, held.start)
    return stretch
