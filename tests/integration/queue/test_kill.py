"""Kill -9 of a process that publishes to the embedded queue."""

import json
import subprocess
import sys
from pathlib import Path

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


def live_and_die(directory, life, lines):
    """Let a process publish until it has reported so many lines, kill it, give all reports."""
    command = [sys.executable, "-c", PUBLISHER, str(directory), str(life)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
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
