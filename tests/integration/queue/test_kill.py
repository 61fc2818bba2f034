"""Kill -9 of a process that publishes to the embedded queue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from memq.core.queue import Publication
from memq.errors import LockedError
from memq.queue.embedded.queue import EmbeddedQueue

ROOT = Path(__file__).parents[3]

PUBLISHER = """
import asyncio, itertools, json, pathlib, sys
from memq.queue.embedded.queue import EmbeddedQueue
from memq.core.queue import Publication

async def publish(queue, write_partition, life):
    await queue.fence("t", write_partition)
    for number in itertools.count():
        partition = (number + write_partition) % 3
        payload = json.dumps([life, write_partition, number]) + "x" * (number % 7 * 300)
        publication = Publication(partition, payload.encode(), number)
        offset, = await queue.publish("t", write_partition, [publication])
        print(json.dumps(["published", partition, offset, payload]), flush=True)
        if number % 5 == 0:
            await queue.commit(f"g{write_partition}", "t", {partition: offset})
            print(json.dumps(["committed", f"g{write_partition}", partition, offset]), flush=True)

async def main():
    queue = EmbeddedQueue(pathlib.Path(sys.argv[1]))
    await queue.create_topic("t", 3)
    await asyncio.gather(*(publish(queue, n, int(sys.argv[2])) for n in range(4)))

asyncio.run(main())
"""


def start(directory, life):
    """A process that publishes until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, str(directory), str(life)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def live_and_die(directory, life, lines):
    """Let a process publish until it has reported so many lines, kill it, give all reports."""
    with start(directory, life) as child:
        found = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        found += child.stdout
    return [json.loads(line) for line in found if line.endswith("\n")]


async def contents(queue):
    """All payloads of the topic, by partition and offset."""
    found = {}
    for partition in range(3):
        start, end = await queue.offsets("t", partition)
        while start < end:
            for entry in await queue.fetch(
                "t", partition, start, max_entries=1000, max_bytes=1 << 20
            ):
                found[partition, entry.offset] = entry.payload.decode()
                start = entry.offset + 1
    return found


async def test_nothing_acked_is_lost_and_offsets_go_on(tmp_path):
    """Through several kills: acked entries stay at their offsets, and none is ever replaced."""
    acked, held, committed = {}, {}, {}
    for life, lines in enumerate([1, 40, 150, 7]):
        for kind, *report in live_and_die(tmp_path, life, lines):
            if kind == "published":
                partition, offset, payload = report
                assert (partition, offset) not in held, "an offset was used again"
                acked[partition, offset] = payload
            else:
                group, partition, offset = report
                committed[group, partition] = offset
        queue = EmbeddedQueue(tmp_path)
        now = await contents(queue)
        assert held.items() <= now.items()
        assert acked.items() <= now.items()
        assert len(set(now.values())) == len(now)
        for (group, partition), offset in committed.items():
            assert (await queue.committed(group, "t"))[partition] >= offset
        for partition in range(3):
            numbers = sorted(offset for each, offset in now if each == partition)
            assert numbers == list(range(len(numbers)))
        held = now
        await queue.close()


async def test_the_lock_of_a_live_process_holds_and_that_of_a_dead_one_does_not(tmp_path):
    """While a process publishes the directory is refused to others; after its death it opens."""
    with start(tmp_path, 0) as child:
        child.stdout.readline()
        try:
            EmbeddedQueue(tmp_path)
        except LockedError as exc:
            refusal = str(exc)
        child.kill()
        child.stdout.read()
    assert f"process {child.pid};" in refusal
    queue = EmbeddedQueue(tmp_path)
    await queue.fence("t", 0)
    _, end = await queue.offsets("t", 0)
    assert await queue.publish("t", 0, [Publication(0, b"next", 0)]) == [end]
    await queue.close()
