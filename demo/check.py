"""Read everything back, twice and in different ways, and compare it with the input."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from memq import AdminClient, Consumer, read_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LONGEST_WAIT_S = 15.0  # a restarted broker gives members of a group some seconds to come back
LAST_WAIT_S = 1.0  # for what there should be none of


class Comparison(NamedTuple):
    """What came back, beside what was sent.

    Attributes:
        lines: that came back.
        batches: they came in.
        lost: of the input, did not come back.
        duplicated: came back more than once.
        equal: the lines in the order of their numbers are the input, byte for byte.
    """

    lines: int
    batches: int
    lost: int
    duplicated: int
    equal: bool


def by_group(address: str, topic: str, lines: Sequence[bytes]) -> Comparison:
    """Read the topic as a consumer group does, and commit."""
    rows: list[tuple[bytes, bytes]] = []
    batches = 0
    with Consumer(address, topic=topic, group="demo", start="earliest") as consumer:
        wait_s = LONGEST_WAIT_S
        while (batch := consumer.poll(timeout=wait_s)) is not None:
            batches += 1
            rows += [(message.key, message.value) for message in batch]
            consumer.commit()
            wait_s = LONGEST_WAIT_S if len(rows) < len(lines) else LAST_WAIT_S
    return compare(rows, batches, lines)


def by_range(address: str, topic: str, lines: Sequence[bytes]) -> Comparison:
    """Read exact offset ranges, with no group."""
    rows: list[tuple[bytes, bytes]] = []
    batches = 0
    with AdminClient(address) as admin:
        partitions = admin.offsets(topic)
    for each in partitions:
        table = read_range(
            address, topic=topic, partition=each.partition, start=each.start, end=each.end
        )
        batches += each.end - each.start
        rows += zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    return compare(rows, batches, lines)


def compare(
    rows: Iterable[tuple[bytes, bytes]], batches: int, lines: Sequence[bytes]
) -> Comparison:
    """What these rows, of line number and line, are beside the input."""
    rows = list(rows)
    found = {int(key): value for key, value in rows}
    times = Counter(int(key) for key, _ in rows)
    return Comparison(
        lines=sum(times.values()),
        batches=batches,
        lost=sum(1 for number in range(len(lines)) if number not in times),
        duplicated=sum(count - 1 for count in times.values()),
        equal=[found.get(number) for number in range(len(lines))] == list(lines),
    )
