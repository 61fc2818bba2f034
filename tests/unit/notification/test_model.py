"""The embedded queue does what the one in memory does, whatever is asked in whatever order."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from memq.core.notification.embedded import EmbeddedQueue
from memq.core.notification.queue import Publication
from memq.errors import MemqError
from memq.testing import InMemoryQueue

PARTITIONS = st.integers(0, 2)  # the topics have two: one too many
OFFSETS = st.integers(-1, 12)
TOPICS = st.sampled_from(["a", "b"])
PUBLICATIONS = st.lists(
    st.builds(Publication, PARTITIONS, st.binary(max_size=40), st.integers(0, 50)), max_size=4
)
LIMITS = st.tuples(st.integers(0, 4), st.integers(0, 60))

CALLS = st.one_of(
    st.tuples(st.just("create_topic"), TOPICS, st.just(2)),
    st.tuples(st.just("delete_topic"), TOPICS),
    st.tuples(st.just("fence"), TOPICS, st.integers(0, 1)),
    st.tuples(st.just("publish"), TOPICS, st.integers(0, 1), PUBLICATIONS),
    st.tuples(st.just("publish"), TOPICS, st.integers(0, 1), PUBLICATIONS),
    st.tuples(st.just("fetch"), TOPICS, PARTITIONS, OFFSETS, LIMITS),
    st.tuples(st.just("offsets"), TOPICS, PARTITIONS),
    st.tuples(st.just("offset_at"), TOPICS, PARTITIONS, st.integers(0, 60)),
    st.tuples(st.just("truncate"), TOPICS, PARTITIONS, OFFSETS),
    st.tuples(
        st.just("commit"),
        st.sampled_from("gh"),
        TOPICS,
        st.dictionaries(PARTITIONS, OFFSETS, max_size=2),
    ),
    st.tuples(st.just("committed"), st.sampled_from("gh"), TOPICS),
    st.tuples(st.just("groups"), TOPICS),
    st.tuples(st.just("delete_group"), st.sampled_from("gh"), TOPICS),
    st.tuples(st.just("topics")),
    st.tuples(st.just("restart")),
)


async def outcome(queue, name, *arguments):
    """What a call gives: its result, or the type of its error."""
    try:
        if name == "fetch":
            topic, partition, offset, (max_entries, max_bytes) = arguments
            return await queue.fetch(
                topic, partition, offset, max_entries=max_entries, max_bytes=max_bytes
            )
        return await getattr(queue, name)(*arguments)
    except MemqError as exc:
        return type(exc)


async def run(directory, calls):
    """Make the same calls on both queues and compare; a restart is a new process on both."""
    model, queue = InMemoryQueue(), EmbeddedQueue(directory)
    for call in [("create_topic", "a", 2), ("fence", "a", 0), *calls]:
        if call == ("restart",):
            last, model = model, model.another_process()
            # The model's topics forget their owners like a process that starts anew.
            await last.close()
            await queue.close()
            queue = EmbeddedQueue(directory)
        else:
            assert await outcome(queue, *call) == await outcome(model, *call), call
    await queue.close()


@settings(max_examples=40)
@given(st.lists(CALLS, min_size=5, max_size=30))
def test_both_queues_agree(calls):
    """Results and kinds of errors are the same, also after restarts."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), calls))
