"""Ship the lines of a file from several producers at once, like services that write logs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memq import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memq.client.producer.delivery import Delivery

STEPS = 40  # every producer ships its lines in so many steps,
STEP_S = 0.05  # one each so often by default, so that the crash falls into the middle
ACKED_S = 60.0  # for the last of them to be acked, whatever fails meanwhile


@dataclass
class Shipped:
    """What was shipped.

    Attributes:
        lines: acked.
        failed: texts of deliveries that failed; there should be none.
        latencies_s: from `write` to the ack, one for each Message.
        seconds: from the first write to the last ack.
        retried: Messages that were sent more than once.
    """

    lines: int = 0
    failed: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    retried: int = 0


def ship(
    address: str,
    topic: str,
    lines: Sequence[bytes],
    producers: int,
    half_way: Callable[[], None],
    *,
    numbers: range | None = None,
    step_s: float = STEP_S,
) -> Shipped:
    """Ship lines with `acks=all`; calls `half_way` when half of the steps are done.

    Line number n goes to producer n modulo their count, with the number as its key.

    Args:
        address: of brokers.
        topic: that they go to.
        lines: of the file.
        producers: how many there are.
        half_way: called in this thread.
        numbers: of the lines to ship; None for all.
        step_s: how long each of `STEPS` takes.
    """
    numbers = range(len(lines)) if numbers is None else numbers
    shipped, lock, crash = Shipped(), threading.Lock(), threading.Event()
    start = time.perf_counter()

    def run(number: int) -> None:
        mine = numbers[number::producers]
        deliveries: dict[int, Delivery] = {}
        latencies: list[float] = []
        with Producer(address, topic=topic, acks="all", client=f"demo-{number}") as producer:
            for step in range(STEPS):
                for line in mine[step * len(mine) // STEPS : (step + 1) * len(mine) // STEPS]:
                    delivery = producer.write(lines[line], key=b"%d" % line)
                    if id(delivery) not in deliveries:
                        deliveries[id(delivery)] = delivery
                        _time(delivery, latencies)
                if step == STEPS // 2:
                    crash.set()
                time.sleep(step_s)
            producer.flush(timeout=ACKED_S)
        failed = [str(error) for d in deliveries.values() if (error := d.exception(0))]
        with lock:
            shipped.lines += len(mine)
            shipped.failed += failed
            shipped.latencies_s += latencies
            shipped.retried += sum(d.result().duplicate for d in deliveries.values() if not failed)

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True)  # Ctrl-C does not wait for acks
        for number in range(producers)
    ]
    for thread in threads:
        thread.start()
    crash.wait()
    half_way()
    for thread in threads:
        thread.join()
    shipped.seconds = time.perf_counter() - start
    return shipped


def _time(delivery: Delivery, latencies: list[float]) -> None:
    written = time.perf_counter()
    delivery.add_done_callback(lambda _: latencies.append(time.perf_counter() - written))
