"""The embedded queue does what the one in Kafka does, whatever is asked in whatever order."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from memq.core.queue import Publication
from memq.errors import MemqError
from memq.queue.embedded.queue import EmbeddedQueue
from tests.fakes.queue import InMemoryQueue

# Mostly what makes sense, or next to nothing would be published: the topics have two partitions.
PARTITIONS = st.sampled_from([0, 0, 0, 0, 1, 1, 2])
OFFSETS = st.integers(-1, 12)
TOPICS = st.sampled_from(["a", "a", "a", "a", "b"])
PUBLICATIONS = st.lists(
    st.builds(
        Publication,
        st.integers(0, 1),
        st.binary(max_size=40),
        st.integers(0, 50),
        st.integers(-1, 50),
    ),
    max_size=4,
)
LIMITS = st.tuples(st.integers(0, 4), st.integers(0, 60))

CALLS = st.one_of(
    st.tuples(st.just("create_topic"), TOPICS, st.just(2)),
    st.tuples(st.just("delete_topic"), TOPICS),
    st.tuples(st.just("fence"), TOPICS, st.integers(0, 1)),
    *[st.tuples(st.just("publish"), TOPICS, st.just(0), PUBLICATIONS)] * 3,
    st.tuples(st.just("publish"), TOPICS, st.just(1), PUBLICATIONS),
    *[st.tuples(st.just("fetch"), TOPICS, PARTITIONS, OFFSETS, LIMITS)] * 2,
    st.tuples(st.just("offsets"), TOPICS, PARTITIONS),
    st.tuples(st.just("offset_at"), TOPICS, PARTITIONS, st.integers(0, 60)),
    st.tuples(st.just("offset_since"), TOPICS, PARTITIONS, st.integers(-1, 60)),
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


async def contents(queue):
    """Everything that a queue holds of the topics that it has."""
    found = {}
    for topic in await queue.topics():
        for partition in range(3):
            start_end = await outcome(queue, "offsets", topic, partition)
            found[topic, partition] = start_end
            if isinstance(start_end, tuple):
                found[topic, partition, "entries"] = await queue.fetch(
                    topic, partition, start_end[0], max_entries=1000, max_bytes=1 << 20
                )
        for group in await queue.groups(topic):
            found[topic, group] = await queue.committed(group, topic)
    return found


async def handed_out(model, topic, offsets):
    """The offsets as a caller may commit them: none past the end of its partition."""
    found = {}
    for partition, offset in offsets.items():
        start_end = await outcome(model, "offsets", topic, partition)
        found[partition] = min(offset, start_end[1]) if isinstance(start_end, tuple) else offset
    return found


async def run(directory, calls):
    """Make the same calls on both queues and compare; a restart is a new process on both."""
    model, queue = InMemoryQueue(), EmbeddedQueue(directory)
    for asked in [("create_topic", "a", 2), ("create_topic", "b", 1), ("restart",), *calls]:
        call = asked
        if call == ("restart",):
            last, model = model, model.another_process()
            await last.close()
            await queue.close()
            queue = EmbeddedQueue(directory)
            await outcome(model, "fence", "a", 0)
            await outcome(queue, "fence", "a", 0)
        else:
            if call[0] == "commit":
                call = (*call[:3], await handed_out(model, *call[2:]))
            assert await outcome(queue, *call) == await outcome(model, *call), call
    assert await contents(queue) == await contents(model)
    await queue.close()


@settings(max_examples=40)
@given(st.lists(CALLS, min_size=10, max_size=40))
def test_both_queues_agree(calls):
    """Results and kinds of errors are the same, also after restarts, and so is what is left."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), calls))
