"""Thousands of ranges in a real Airflow that is killed and paused; each in one successful run.

`python -m tests.system.airflow.many_ranges --ranges 10000 --kills 10`.

Topics get Batches in portions, and each portion is planned. DAGs that process ranges have
`max_active_runs=1`; they are paused and go on, and scheduler, triggerer and tasks are killed with
SIGKILL, all at random. In the end each offset is in one range, and each range has one run that
succeeded, and no other. `dags/many.py` says what a run does: little, for thousands of them to end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from shutil import copy
from typing import TYPE_CHECKING

from airflow_provider_memq.planning.ranges import parse_key
from airflow_provider_memq.range_assets import ranges_asset
from memq import AdminClient, Producer
from tests.harness.airflow.rest import WaitError, asked, until
from tests.system.airflow.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence


TOPICS = [f"many_{n}" for n in range(5)]
PORTION = 101  # Batches that are published at a time; a range has two, so that one waits for more
TASK_SHARE = 0.04  # of the ranges are of the first topic, where a run has a process
KILL_S = 10.0  # within which a task that was started runs
PAUSE_S = 60.0  # of the processing of a topic
LINE_S = 30.0  # between two lines that say how far it is
ENV = {
    "MANY_TOPICS": ",".join(TOPICS),
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "50",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
}


class Many:
    """What is published and planned, and the runs, of all topics.

    Args:
        pipeline: the broker and Airflow.
        randomness: of what happens when.
    """

    def __init__(self, pipeline: Pipeline, randomness: Random) -> None:
        self.pipeline, self.rest = pipeline, pipeline.rest
        self.randomness = randomness
        self.counts: Counter[str] = Counter()
        self.paused: dict[str, float] = {}  # since when

    def publish(self, topic: str) -> None:
        """One portion, and a plan of it."""
        address = self.pipeline.broker.address
        with Producer(address, topic=topic, acks="all", message_bytes="1KiB") as producer:
            for delivery in [producer.write(b"%02000d" % n) for n in range(PORTION)]:
                delivery.result(60)
        self.counts["Batches"] += PORTION
        self.plan(topic)

    def plan(self, topic: str) -> None:
        """Have a topic planned, if no plan of it waits for its turn."""
        dag_id = f"{topic}_plan"
        waits = asked(lambda: {"runs": self.rest.runs(dag_id, state="queued")})["runs"]
        if not waits:
            asked(lambda: self.rest.trigger(dag_id))

    def disturb(self) -> None:
        """Pause a DAG, or kill something."""
        what = self.randomness.choice(["pause", "pause", "scheduler", "triggerer", "task", "task"])
        if what == "pause":
            self.pause(self.randomness.choice(TOPICS), paused=True)
        elif what == "task":
            self.kill_task()
        else:
            self.pipeline.airflow.restart(what)
            self.pipeline.airflow.wait_until_healthy()
            self.counts[f"{what} killed"] += 1

    def kill_task(self) -> None:
        """Kill a task of those that run; most run for a second, so one may have to be started."""
        dag_ids = [f"{topic}_plan" for topic in TOPICS] + [f"{TOPICS[0]}_ranges"]
        self.randomness.shuffle(dag_ids)
        while True:
            self.plan(self.randomness.choice(TOPICS))
            try:
                killed = self.pipeline.kill_running_task(dag_ids, KILL_S)
            except WaitError:
                continue
            self.counts[f"{killed.rpartition('_')[2]} killed"] += 1
            return

    def pause(self, topic: str, *, paused: bool) -> None:
        """Pause the processing of a topic, or let it go on."""
        asked(lambda: self.rest.pause(f"{topic}_ranges", paused=paused) or True)
        if not paused:
            del self.paused[topic]
        elif topic not in self.paused:
            self.paused[topic] = time.monotonic()
            self.counts["paused"] += 1

    def resume(self, paused_s: float = 0.0) -> None:
        """Let the processing of topics go on that was paused for so long."""
        for topic, since_s in sorted(self.paused.items()):
            if time.monotonic() - since_s >= paused_s:
                self.pause(topic, paused=False)

    def count(self, topic: str, **query: object) -> int:
        """How many runs process ranges of a topic."""
        path = f"/dags/{topic}_ranges/dagRuns"
        page = asked(lambda: self.rest.get(path, limit=1, **query))
        return int(page["total_entries"])

    def succeeded(self, topics: Sequence[str] = tuple(TOPICS)) -> int:
        """How many runs have ended well."""
        return sum(self.count(topic, state="success") for topic in topics)

    def ends(self, topic: str) -> dict[int, int]:
        """One past the last offset of each read partition."""
        with AdminClient(self.pipeline.broker.address) as admin:
            return {each.partition: each.end for each in admin.offsets(topic)}

    def finish(self) -> None:
        """Let everything come to its end."""
        self.resume()
        left = set(TOPICS)

        def look() -> bool:
            for topic in sorted(left):
                if any(self.count(topic, state=state) for state in ("queued", "running")):
                    continue
                if self.lacks(topic):
                    self.plan(topic)
                else:
                    left.discard(topic)
            return not left

        until(look, f"every range of {left} processed", timeout_s=3 * 3600, interval_s=10.0)

    def lacks(self, topic: str) -> bool:
        """Whether an offset is in no run that succeeded."""
        runs = self.rest.runs(f"{topic}_ranges", state="success")
        done = {offset for run in runs for offset in _offsets(run["partition_key"])}
        return len(done) < sum(self.ends(topic).values())

    def check(self) -> None:
        """Everything that must hold in the end."""
        for topic in TOPICS:
            events = self.rest.asset_events(ranges_asset(topic).name)
            planned = Counter(each["partition_key"] for each in events if each["partition_key"])
            runs = self.rest.runs(f"{topic}_ranges")
            assert {run["state"] for run in runs} == {"success"}, f"runs of {topic}"
            assert Counter(run["partition_key"] for run in runs) == Counter(planned.keys())
            offsets = sorted(offset for key in planned for offset in _offsets(key))
            wanted = [(p, o) for p, end in self.ends(topic).items() for o in range(end)]
            assert offsets == sorted(wanted), f"a gap or an overlap in {topic}"
            self.counts["ranges"] += len(planned)
            self.counts["emitted again"] += planned.total() - len(planned)
            self.counts["plans"] += len(self.rest.runs(f"{topic}_plan"))


def _offsets(key: str) -> list[tuple[int, int]]:
    each = parse_key(key)
    return [(each.partition, offset) for offset in range(each.start, each.end)]


def main() -> None:
    """Run it, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranges", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=10, help="of each kind, about")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memq-many-") as name:
        folder = Path(name)
        (folder / "dags").mkdir()
        copy(Path(__file__).parent / "dags" / "many.py", folder / "dags")
        with Pipeline(folder, dags=(), env=ENV) as pipeline:
            many = Many(pipeline, Random(given.seed))
            live(many, given.ranges, given.kills)
            many.check()
    print(f"ok: seed {given.seed}, {dict(many.counts)}; each range in one run")  # noqa: T201


def live(many: Many, ranges: int, kills: int) -> None:
    """Publish, plan, pause and kill until so many ranges are processed; then come to an end."""
    with AdminClient(many.pipeline.broker.address) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, batch_messages=1, read_partitions=1, write_partitions=1)
    for topic in TOPICS:
        many.rest.wait_for_dag(f"{topic}_ranges")
    portions = [TOPICS[0]] * max(1, round(ranges * TASK_SHARE * 2 / PORTION))
    portions += TOPICS[1:] * -(-round(ranges * (1 - TASK_SHARE) * 2 / PORTION) // len(TOPICS[1:]))
    many.randomness.shuffle(portions)
    disturbances, happened, said_s = 5 * kills, 0, 0.0
    published = 0
    while (done := many.succeeded()) < ranges * 0.95 or happened < disturbances:
        if time.monotonic() > said_s + LINE_S:
            print(f"{done} processed, {dict(many.counts)}", flush=True)  # noqa: T201
            said_s = time.monotonic()
        many.resume(PAUSE_S)
        if portions and published * PORTION / 2 - done < ranges / 10:
            many.publish(portions.pop())
            published += 1
        elif not portions:
            for topic in TOPICS:
                many.plan(topic)
        if happened < disturbances and done * disturbances >= happened * ranges * 0.95:
            many.disturb()
            happened += 1
        time.sleep(1.0)  # the pace of what is published
    many.finish()


if __name__ == "__main__":
    main()
