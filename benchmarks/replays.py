"""What replays cost producers: `python -m benchmarks replays`.

A cluster of two brokers, one that takes writes and one with the role of reading, and a real
ZooKeeper, Kafka and S3-compatible server. A topic is filled. Then a producer writes to it at a
steady rate, with `acks="all"`, by turns with nobody reading, while `REPLAYS` readers at a time read
all that it was filled with through the broker that reads, and while they do so through the broker
that writes. A reader takes notifications and Batches from that broker, and never asks the store.
What is measured is the time from when a record was due to its ack, over all windows of a kind. The
topic has the default options: most of the time its Batches wait for their `batch_age`.

Elsewhere what serves readers has machines of its own, and the store answers puts as soon however
much is read. On one machine both must be arranged, or the scheduler is what is measured. So readers
and the broker that reads have one processor, and all others have the rest. And that broker reads
the objects from a second server, also on the processor of the readers. (Lower priority would not
do: with autogroups the kernel shares processors between sessions first, and each service has its
own.) What both sides still have in common is what they have in common elsewhere, Kafka and
ZooKeeper, and beside that the disk and the memory of one machine. The broker that writes has no
such help when it is read through: it then reads from the server that it writes to.

Whatever else runs on the machine goes to where the readers are not, and takes processors from
those that acks wait for. So it is shown how long they have waited for one: figures of acks say
something where that hardly grows beside replays.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from memq import AdminClient, Producer, scan
from memq.testing.broker import BrokerProcess
from tests.harness.services.kafka import Kafka
from tests.harness.services.s3proxy import S3Proxy
from tests.harness.services.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from typing import Self

    from memq.client.producer.delivery import Delivery

Row = tuple[str, str, str]

TOPIC = "t"
RECORD_BYTES = 1024
FILLED_BYTES = 128 << 20
REPLAYS = 10
STEP_S = 0.005
STEP_RECORDS = 20  # 4 MB/s
WARM_S = 3.0
QUIET_S = 4.0  # about as long as the replays take
SETTLE_S = 0.5  # between two windows: what was written in the first is acked
SECONDS = 90.0  # after which no further round begins
AIM = 1.1
BROKER, KAFKA, STORE = "the broker that writes", "Kafka", "the store"
QUIET, READER, WRITER = "quiet", "reader", "writer"  # the last two are brokers, and their zones


class Place(NamedTuple):
    """Where all runs.

    Attributes:
        bootstrap: of the cluster.
        pids: of the processes that acks wait for.
        readers: processors of the readers.
    """

    bootstrap: str
    pids: dict[str, int]
    readers: set[int]


class Window(NamedTuple):
    """Some seconds in which one thing went on beside the producer.

    Attributes:
        kind: `QUIET`, or the broker through which was read.
        start_s: when it began.
        end_s: when it ended.
        ran_s: processor time of each process that acks wait for.
        waited_s: for which its threads could have run, and had no processor.
    """

    kind: str
    start_s: float
    end_s: float
    ran_s: dict[str, float]
    waited_s: dict[str, float]

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end_s - self.start_s


class Acks:
    """A thread that writes at a steady rate, and times the ack of one record of each step.

    A record that could only be written late is timed from when it was due.

    Args:
        producer: writes them.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._found: list[tuple[float, float]] = []  # when it was due, and seconds to the ack
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(timeout=60)

    def within(self, *windows: Window) -> list[float]:
        """Seconds to the acks of what was due in some windows, sorted."""
        return sorted(
            took_s
            for due_s, took_s in self._found
            if any(each.start_s <= due_s < each.end_s for each in windows)
        )

    def _write(self) -> None:
        value = os.urandom(RECORD_BYTES)
        due_s = time.perf_counter()
        while not self._stop.wait(max(0.0, due_s - time.perf_counter())):
            for _ in range(STEP_RECORDS):
                delivery = self._producer.write(value)
            delivery.add_done_callback(lambda each, due_s=due_s: self._done(each, due_s))
            due_s += STEP_S

    def _done(self, delivery: Delivery, due_s: float) -> None:
        if delivery.exception() is None:  # any other is raised by the flush
            self._found.append((due_s, time.perf_counter() - due_s))


def move(pid: int, processors: set[int]) -> None:
    """Let a process run on these processors alone, and what it starts from now on."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), processors)


def processor_s(pid: int) -> tuple[float, float]:
    """For how long the threads of a process have run, and waited for a processor."""
    paths = Path(f"/proc/{pid}/task").glob("*/schedstat")
    ran_ns, waited_ns = zip(
        *(map(int, path.read_text().split()[:2]) for path in paths), strict=True
    )
    return sum(ran_ns) / 1e9, sum(waited_ns) / 1e9


def start(stack: ExitStack) -> Place:
    """Start all processes, each on its processors."""
    every = os.sched_getaffinity(0)
    readers = {max(every)}
    others = every - readers or every
    stack.callback(move, os.getpid(), every)
    move(os.getpid(), others)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memq-replays-")))
    kafka = stack.enter_context(Kafka(folder / "kafka"))
    zookeeper = stack.enter_context(ZooKeeper(folder / "zookeeper"))
    stores = {WRITER: stack.enter_context(S3Proxy(folder / WRITER))}
    stores[WRITER].make_bucket("replays")
    (folder / READER).mkdir()
    (folder / READER / "buckets").symlink_to(folder / WRITER / "buckets")
    stores[READER] = stack.enter_context(S3Proxy(folder / READER))
    for service in (kafka, zookeeper, stores[WRITER]):
        move(service.pid, others)  # Java has been started by a thread that may not be moved
    move(stores[READER].pid, readers)
    environment = stack.enter_context(pytest.MonkeyPatch.context())
    environment.setenv("MEMQ_CONFIG", os.devnull)
    cluster_id = f"c-{secrets.token_hex(4)}"
    brokers = {}
    for name, role in ((WRITER, "all"), (READER, "read")):
        for variable, value in stores[name].environment.items():
            environment.setenv(variable, value)
        brokers[name] = stack.enter_context(
            BrokerProcess(
                folder / f"broker-{name}",
                broker_id=name,
                zone=name,
                role=role,
                cluster_id=cluster_id,
                zookeeper=f"{zookeeper.address}/memq",
                queue=f"kafka://{kafka.address}",
                storage="s3://replays/objects",
            )
        )
    move(brokers[READER].pid, readers)
    bootstrap = ",".join(broker.address for broker in brokers.values())
    pids = {BROKER: brokers[WRITER].pid, KAFKA: kafka.pid, STORE: stores[WRITER].pid}
    return Place(bootstrap, pids, readers)


def fill(bootstrap: str) -> int:
    """Make the topic, and write what is read; its end offset."""
    with AdminClient(bootstrap) as admin:
        admin.create_topic(TOPIC, audited=False)
        with Producer(bootstrap, topic=TOPIC, acks="all") as producer:
            for _ in range(FILLED_BYTES // RECORD_BYTES):
                producer.write(os.urandom(RECORD_BYTES))
        return admin.offsets(TOPIC)[0].end


def replay(bootstrap: str, zone: str, end: int) -> None:
    """Read all before an offset, so many times at once, through the broker of a zone."""

    def read(_: int) -> int:
        with scan(
            bootstrap, topic=TOPIC, partition=0, end=end, zone=zone, read_through="broker"
        ) as batches:
            return sum(batch.num_rows for batch in batches)

    with ThreadPoolExecutor(REPLAYS) as threads:
        counts = list(threads.map(read, range(REPLAYS)))
    assert counts == [FILLED_BYTES // RECORD_BYTES] * REPLAYS, counts


def measure() -> tuple[list[Window], Acks]:
    """What went on, by turns, and the acks."""
    with ExitStack() as stack:
        place = start(stack)
        end = fill(place.bootstrap)
        process = stack.enter_context(
            ProcessPoolExecutor(
                1,
                multiprocessing.get_context("spawn"),
                initializer=os.sched_setaffinity,
                initargs=(0, place.readers),
            )
        )

        def window(kind: str) -> Window:
            before = {name: processor_s(pid) for name, pid in place.pids.items()}
            start_s = time.perf_counter()
            if kind == QUIET:
                time.sleep(QUIET_S)
            else:
                process.submit(replay, place.bootstrap, kind, end).result()
            end_s = time.perf_counter()
            after = {name: processor_s(pid) for name, pid in place.pids.items()}
            time.sleep(SETTLE_S)
            ran_s, waited_s = (
                {name: after[name][which] - before[name][which] for name in after}
                for which in (0, 1)
            )
            return Window(kind, start_s, end_s, ran_s, waited_s)

        for kind in (READER, WRITER):
            window(kind)  # the first of each is slow, and does not count
        producer = stack.enter_context(Producer(place.bootstrap, topic=TOPIC, acks="all"))
        with Acks(producer) as acks:
            time.sleep(WARM_S)
            found, begun_s = [], time.perf_counter()
            while time.perf_counter() < begun_s + SECONDS:
                found += [window(kind) for kind in (QUIET, READER, WRITER)]
    return found, acks


def run() -> list[Row]:
    """The figures."""
    found, acks = measure()
    windows = {
        kind: [each for each in found if each.kind == kind] for kind in (QUIET, READER, WRITER)
    }
    took_s = {kind: acks.within(*some) for kind, some in windows.items()}
    ms = {kind: [_at(some, share) * 1e3 for share in (0.5, 0.99)] for kind, some in took_s.items()}
    rows = []
    for kind, what in (
        (READER, f"acks=all beside {REPLAYS} replays at a time through a broker that reads"),
        (WRITER, f"the same through {BROKER}"),
    ):
        ratios = [
            _at(acks.within(replays), 0.99) / _at(acks.within(quiet), 0.99)
            for quiet, replays in zip(windows[QUIET], windows[kind], strict=True)
        ]
        rows.append(
            (
                what,
                f"p50 {ms[kind][0]:.0f} ms, p99 {ms[kind][1]:.0f} ms; with nobody reading "
                f"{ms[QUIET][0]:.0f} ms and {ms[QUIET][1]:.0f} ms",
                f"p99 is {ms[kind][1] / ms[QUIET][1]:.2f} of that, by round "
                f"{statistics.median(ratios):.2f}, median of {len(ratios)}"
                f"{f' (aim: at most {AIM})' if kind == READER else ''}; replays at "
                f"{_rate_bytes_s(windows[kind]) / 1e6:.0f} MB/s; {len(took_s[kind]):,} acks",
            )
        )
    return [*rows, *_processors(windows)]


def _processors(windows: dict[str, list[Window]]) -> list[Row]:
    """What those that acks wait for had to do, and had to wait."""
    rows = []
    for name in (BROKER, KAFKA, STORE):
        shares = [
            [
                sum(getattr(each, times)[name] for each in some)
                / sum(each.seconds for each in some)
                for times in ("ran_s", "waited_s")
            ]
            for some in windows.values()
        ]
        figures = [f"{ran:.3f} ({waited:.3f})" for ran, waited in shares]
        rows.append(
            (
                f"processors that {name} has (and waits for)",
                f"nobody reads {figures[0]}, through the other broker {figures[1]}, through "
                f"{BROKER} {figures[2]}",
                "seconds in a second; waits that grow beside replays are the machine's",
            )
        )
    return rows


def _rate_bytes_s(windows: list[Window]) -> float:
    """At which all replays of some windows together read."""
    return len(windows) * REPLAYS * FILLED_BYTES / sum(each.seconds for each in windows)


def _at(sorted_s: list[float], share: float) -> float:
    return sorted_s[min(len(sorted_s) - 1, int(len(sorted_s) * share))]


if __name__ == "__main__":
    for row in run():
        print(*row, sep="\n    ")
