"""Histories that a right system may have, drawn from a seed: for the tests of the checkers.

A topic is a list of Batches for each read partition, with gaps in the offsets. Producers send to it
and are told, or not told, what came of it; readers follow it, read ranges and commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.simulation import history as h

TOPIC, TOPIC_ID = "t", "0123456789abcdef"
GROUP = "g"
STEP_US = 1_000
SESSION_US = 10_000_000
RETENTION_US = 10**12


@dataclass
class _Topic:
    """What is stored: of each read partition the Batches, each an offset and its values."""

    ordered: bool
    partitions: list[list[tuple[int, list[int]]]] = field(default_factory=list)

    def append(self, rng: Random, partition: int, values: list[int]) -> int:
        batches = self.partitions[partition]
        last = batches[-1][0] if batches else -1
        offset = last + (1 if rng.random() < 0.9 else rng.randint(2, 4))
        batches.append((offset, values))
        return offset


def legal_history(
    seed: int, operations: int = 60, *, ordered: bool = False, values: int = 3
) -> h.History:
    """A legal history.

    Args:
        seed: what it is drawn from.
        operations: about so many sends and polls.
        ordered: the topic has order.
        values: LogMessages of a Message, at most.
    """
    rng = Random(seed)
    history = h.History(clock_error_us=0)
    topic = _Topic(ordered, [[] for _ in range(3)])
    about = {"topic": TOPIC, "topic_id": TOPIC_ID}
    history.add(h.TopicChange("admin", 0, 1, h.OK, h.CREATE, TOPIC, TOPIC_ID, RETENTION_US))
    now_us, number = STEP_US, 0
    sequences = [0, 0]
    places = [0] * len(topic.partitions)  # of the follower: which Batch comes next
    committed: dict[int, int] = {}
    history.add(
        h.Assignment(
            "consumer", now_us, h.GRANTED, **about, group=GROUP, member="m",
            partitions=(0, 1, 2), until_us=None,
        )
    )  # fmt: skip
    for _ in range(operations):
        now_us += STEP_US
        if rng.random() < 0.6:
            producer = rng.randrange(2)
            count = rng.randint(1, values)
            sent = tuple(range(number, number + count))
            number += count
            outcome = rng.choices((h.OK, h.INFO, h.FAIL), (8, 1, 1))[0]
            stored = outcome == h.OK or (outcome == h.INFO and rng.random() < 0.5)
            partition = producer if ordered else rng.randrange(len(topic.partitions))
            offset = topic.append(rng, partition, list(sent)) if stored else h.NOWHERE
            told = outcome == h.OK
            history.add(
                h.Send(
                    f"producer {producer}", now_us, None if outcome == h.INFO else now_us + 10,
                    outcome, **about, name=h.Name(producer, f"p{producer}", 0, sequences[producer]),
                    values=sent, ordered=ordered, max_in_flight=1,
                    partition=partition if told else h.NOWHERE,
                    offset=offset if told else h.NOWHERE,
                )
            )  # fmt: skip
            sequences[producer] += 1
            if stored:
                _found(history, topic, partition, now_us, about)
        else:
            partition = rng.randrange(len(topic.partitions))
            batch = places[partition]
            if batch < len(topic.partitions[partition]):
                offset, found = topic.partitions[partition][batch]
                places[partition] += 1
                _poll(history, now_us, about, h.GROUP, partition, [(offset, found)])
                if rng.random() < 0.3:
                    committed[partition] = offset + 1
                    _commit(history, now_us + 20, about, partition, offset + 1)
    end_us = now_us + 10 * STEP_US
    for partition, batches in enumerate(topic.partitions):
        for offset, found in batches[places[partition] :]:
            end_us += STEP_US
            _poll(history, end_us, about, h.GROUP, partition, [(offset, found)])
        if batches:
            end_us += STEP_US
            asked = (h.Asked(partition, 0, batches[-1][0] + 1),)
            _poll(history, end_us, about, h.SPARK, partition, batches, asked=asked)
    fetched = tuple(committed.items())
    history.add(
        h.Committed("admin", end_us, end_us + 1, h.OK, **about, group=GROUP, offsets=fetched)
    )
    history.add(h.Drained(end_us + 2, "consumer", **about))
    history.end_us = end_us + STEP_US
    return history


def _found(history: h.History, topic: _Topic, partition: int, now_us: int, about: dict) -> None:
    """The last Batch, the watermark and the end, as they are seen then."""
    offset = topic.partitions[partition][-1][0]
    now_ms = now_us // 1_000
    where = {**about, "partition": partition}
    history.add(
        h.Watermark("w", now_us - 3, now_us - 2, h.OK, **where, stored_through_ms=now_ms - 1)
    )
    history.add(h.Offsets("w", now_us - 1, now_us, h.OK, **where, end=offset))
    history.add(
        h.Batch(
            now_us + 5, **where, offset=offset, timestamp_ms=now_ms, sealed_ms=now_ms,
            batch_id=f"{partition}-{offset}", digest=b"%d" % offset,
        )
    )  # fmt: skip
    history.add(h.Durable(now_us + 4, **where, offset=offset))


def _poll(  # noqa: PLR0917 - it is the order of time, topic, reader and data
    history: h.History,
    now_us: int,
    about: dict,
    mode: str,
    partition: int,
    batches: list[tuple[int, list[int]]],
    *,
    asked: tuple[h.Asked, ...] = (),
) -> None:
    rows = [
        (offset, position, value)
        for offset, values in batches
        for position, value in enumerate(values)
    ]
    offsets, positions, values = zip(*rows, strict=True)
    group, member = (GROUP, "m") if mode == h.GROUP else ("", "job")
    history.add(
        h.Poll(
            "consumer", now_us, now_us + 15, h.OK, **about, mode=mode, group=group, member=member,
            partitions=(partition,) * len(rows), offsets=offsets, positions=positions,
            values=values, asked=asked,
        )
    )  # fmt: skip


def _commit(history: h.History, now_us: int, about: dict, partition: int, offset: int) -> None:
    history.add(
        h.Commit(
            "consumer", now_us, now_us + 5, h.OK, **about, group=GROUP, member="m",
            offsets=((partition, offset),),
        )
    )  # fmt: skip
