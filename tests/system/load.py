"""Producers and a group that go on while their brokers suffer, and the check after it."""

# ruff: noqa: T201 - commands use it

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

from memq import Consumer, Producer, read_range
from memq.client.producer.delivery import Delivery
from memq.errors import MemqError

Seen = TypeVar("Seen")

LOOK_S = 0.1  # between two looks
VALUE_BYTES = 400


class Load:
    """Producers and a member of a group, in threads, until they are ended.

    Args:
        given: to each of them, such as `bootstrap` and `topic`.
        name: that values begin with.
        producers: how many.
        record_s: between two records of a producer.
        patient: errors of the group's member are no finding.
        read: by members that are there already.
        options: of producers alone.

    Attributes:
        acked: values that were.
        errors: of clients, and why other values were not acked.
        read: how often the group was given each value.
    """

    def __init__(
        self,
        given: dict[str, Any],
        name: str,
        *,
        producers: int,
        record_s: float,
        patient: bool = False,
        read: Counter[bytes] | None = None,
        **options: Any,
    ) -> None:
        self.acked: set[bytes] = set()
        self.errors: list[str] = []
        self.read: Counter[bytes] = Counter() if read is None else read
        self._given, self._options = given, options
        self._record_s, self._patient = record_s, patient
        self._over, self._all_read = threading.Event(), threading.Event()
        work = [partial(self._produce, f"{name}{number}") for number in range(producers)]
        *self._producers, self._reader = [
            threading.Thread(target=self._carry_out, args=(each,))
            for each in (*work, self._consume)
        ]
        for thread in (*self._producers, self._reader):
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self, read_s: float = 0.0) -> None:
        """Write no more, wait until all is acked or refused, and let the group read on."""
        self._over.set()
        for thread in self._producers:
            thread.join()
        ends_s = time.monotonic() + read_s
        while not self.acked <= self.read.keys() and time.monotonic() < ends_s:
            time.sleep(LOOK_S)
        self._all_read.set()
        self._reader.join()

    def _carry_out(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001 - any error of a client is a finding
            self.errors.append(repr(exc))

    def _produce(self, name: str) -> None:
        with Producer(**self._given, **self._options) as producer:
            count = 0
            while not self._over.wait(self._record_s):
                value = f"{name}-{count}-".encode().ljust(VALUE_BYTES, b"x")
                producer.write(value).add_done_callback(partial(self._settled, value))
                count += 1

    def _settled(self, value: bytes, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is None:
            self.acked.add(value)
        else:
            self.errors.append(repr(error))

    def _consume(self) -> None:
        with Consumer(**self._given, group="readers", start="earliest") as consumer:
            while not self._all_read.is_set():
                try:
                    for record in consumer.poll(1.0) or ():
                        self.read[bytes(record.value)] += 1
                    consumer.commit()
                except MemqError:
                    if not self._patient:
                        raise


def wait_for(
    look: Callable[[], Seen], fine: Callable[[Seen], bool], timeout_s: float
) -> tuple[Seen, float]:
    """Look until it is fine; return what was seen then, and the seconds that took.

    Raises:
        TimeoutError: with what was seen last.
    """
    begun_s = time.monotonic()
    while True:
        seen = look()
        took_s = time.monotonic() - begun_s
        if fine(seen):
            return seen, took_s
        if took_s > timeout_s:
            raise TimeoutError(f"not within {timeout_s:g} s, but: {seen}")
        time.sleep(LOOK_S)


def check(given: dict[str, Any], *loads: Load) -> list[str]:
    """Read all back; return what is lost, there twice, or not read, and errors of clients."""
    table = read_range(**given, timeout=600, columns=["value"])
    found = Counter(table["value"].to_pylist())
    acked = set().union(*(each.acked for each in loads))
    read = set().union(*(each.read for each in loads))
    wrong = {
        "lost": acked - found.keys(),
        "there twice": {value for value, count in found.items() if count > 1},
        "not read by the group": acked - read,
        "error": {error for each in loads for error in each.errors},
    }
    counts = ", ".join(f"{len(values)} {what}" for what, values in wrong.items())
    print(f"{len(acked)} acked, {len(found)} stored, {len(read)} read; {counts}", flush=True)
    return [
        f"{what}: {value[:40] if isinstance(value, bytes) else value}"
        for what, values in wrong.items()
        for value in sorted(values)[:5]
    ]


def memq(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "memq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def tell(wrong: list[str]) -> int:
    """Say what was wrong, or that all is well; return the exit code."""
    print(*(f"WRONG {each}" for each in wrong), "failed" if wrong else "ok", sep="\n")
    return int(bool(wrong))
