"""The log as the readers saw it, for the checkers to share.

Every LogMessage that was handed out is a *row*. Values, keys and places are small integers here, in
arrays, since a history has a million of them. The places of a key that anybody has read are counted
without gaps, in their order: that is a row's `index`. Offsets may have gaps, and nobody knows of a
place that nobody has read; so two rows are neighbours when no known place lies between them.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from tests.simulation.history import DELETE, NOWHERE, OK, History, Key, Name, Send, Value


class Log:
    """What was sent and read in a history.

    Attributes:
        history: all of it.
        values: every value that was sent or read, by number.
        keys: every key that was read, by number.
        sent_value, sent_by: of each value sent, its number, and which send it was in.
        value, key, offset, position, poll: of each row; `poll` is which poll handed it out.
        place: of each row, which distinct place it is, in the order of keys, offsets, positions.
        index: of each row, which known place of its key it is.
        cache: what checkers share beyond that.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        sends, polls = history.sends, history.polls
        self.cache: dict[str, object] = {}
        self._number: dict[Value, int] = {}
        self.sent_value = self._numbers(chain.from_iterable(send.values for send in sends))
        self.sent_by = np.repeat(np.arange(len(sends)), _lengths(send.values for send in sends))
        lengths = _lengths(poll.values for poll in polls)
        self.value = self._numbers(chain.from_iterable(poll.values for poll in polls))
        self.values = list(self._number)
        self.poll = np.repeat(np.arange(len(polls)), lengths)
        self.offset = _flat(poll.offsets for poll in polls)
        self.position = _flat(poll.positions for poll in polls)
        self.keys: list[Key] = []
        self.key = self._key_of_rows(lengths)
        self._lay_out()

    def _numbers(self, values: Iterable[Value]) -> np.ndarray:
        number = self._number
        return np.array([number.setdefault(value, len(number)) for value in values], np.int64)

    def _key_of_rows(self, lengths: np.ndarray) -> np.ndarray:
        polls = self.history.polls
        topics: dict[tuple[str, str], int] = {}
        of_poll = [topics.setdefault((p.topic, p.topic_id), len(topics)) for p in polls]
        topic = np.repeat(np.array(of_poll, np.int64), lengths)
        partition = _flat(poll.partitions for poll in polls)
        distinct, key = np.unique(topic * _WIDE + partition, return_inverse=True)
        names = list(topics)
        self.keys = [Key(*names[code // _WIDE], int(code % _WIDE)) for code in distinct]
        return key

    def _lay_out(self) -> None:
        """Number the places, and count those of each key from 0."""
        order = np.lexsort((self.position, self.offset, self.key))
        key, offset, position = self.key[order], self.offset[order], self.position[order]
        new_key = _changes(key)
        new = new_key | _changes(offset) | _changes(position)
        place = np.cumsum(new) - 1
        first = np.maximum.accumulate(np.where(new_key, place, 0)) if len(place) else place
        self.place = np.empty_like(place)
        self.place[order] = place
        self.index = np.empty_like(place)
        self.index[order] = place - first

    # -- lookups ----------------------------------------------------------------------------

    @cached_property
    def read_values(self) -> np.ndarray:
        """For each value, whether anybody has read it."""
        read = np.zeros(len(self.values), bool)
        read[self.value] = True
        return read

    @cached_property
    def first_row(self) -> np.ndarray:
        """For each value, a row that holds it; -1 when nobody has read it."""
        row = np.full(len(self.values), -1)
        row[self.value[::-1]] = np.arange(len(self.value))[::-1]
        return row

    @cached_property
    def removed(self) -> dict[tuple[Key, int], int]:
        """When a notification or its object was removed first, by key and offset."""
        times: dict[tuple[Key, int], int] = {}
        for each in self.history.removals:
            at = Key(each.topic, each.topic_id, each.partition), each.offset
            times[at] = min(each.time_us, times.get(at, each.time_us))
        return times

    def gone(self, key: Key, offset: int, by_us: int) -> bool:
        """Whether a notification or its object was removed by a time."""
        return self.removed.get((key, offset), by_us + 1) <= by_us

    @cached_property
    def destroyed(self) -> set[tuple[Key, int]]:
        """Key and offset of Batches that were destroyed on purpose."""
        return {
            (Key(each.topic, each.topic_id, each.partition), each.offset)
            for each in self.history.losses
        }

    @cached_property
    def deleted(self) -> dict[tuple[str, str], int]:
        """When the deletion of a topic id began, if it may have taken effect."""
        times: dict[tuple[str, str], int] = {}
        for each in self.history.topics:
            if each.action == DELETE:
                at = each.topic, each.topic_id
                times[at] = min(each.start_us, times.get(at, each.start_us))
        return times

    def excused(self, key: Key, offset: int) -> bool:
        """Whether a Batch may be gone: removed, destroyed on purpose, or its topic deleted."""
        at = key, offset
        return (
            at in self.removed or at in self.destroyed or (key.topic, key.topic_id) in self.deleted
        )

    def stored_at(self, number: int) -> tuple[Key, int] | None:
        """Key and offset of the Message of a send, by its ack or by who read it; None: unknown."""
        send = self.history.sends[number]
        if send.outcome == OK and send.partition != NOWHERE:
            return Key(send.topic, send.topic_id, send.partition), send.offset
        for value in send.values:
            row = self.first_row[self._number[value]]
            if row >= 0:
                return self.keys[self.key[row]], int(self.offset[row])
        return None

    def where(self, row: int) -> str:
        """A row for a sentence."""
        topic, topic_id, partition = self.keys[self.key[row]]
        return (
            f"{self.values[self.value[row]]!r} at {topic}/{partition} ({topic_id}) offset "
            f"{self.offset[row]} position {self.position[row]}"
        )


_WIDE = 1 << 32  # more than there are partitions


def shown(name: Name, send: Send) -> str:
    """A Message for a sentence."""
    return (
        f"sequence {name.sequence} of {name.producer_id!r} epoch {name.epoch} in write partition "
        f"{name.write_partition} of {send.topic} ({send.topic_id})"
    )


def _lengths(parts: Iterable[Sequence]) -> np.ndarray:
    return np.array([len(part) for part in parts], np.int64)


def _flat(parts: Iterable[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), np.int64)


def _changes(sorted_array: np.ndarray) -> np.ndarray:
    """Where a sorted array begins something new."""
    new = np.ones(len(sorted_array), bool)
    new[1:] = sorted_array[1:] != sorted_array[:-1]
    return new
