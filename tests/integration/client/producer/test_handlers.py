"""A signal's handler, `__del__` or a logging handler that calls the producer it interrupts."""

import logging
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from memq import Producer, read_range
from memq.testing import BrokerProcess

ENDS_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("broker"), auto_create_topics=True) as process:
        yield process


def python(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


CLOSES = """
import signal, sys
from memq import Producer
producer = Producer(sys.argv[1], topic=sys.argv[2], buffer_bytes="8MiB", linger=sys.argv[3])
written = 0
def stop(*_):
    producer.close(timeout=30)
    print(written)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True:
    producer.write(b"%d" % written + b" " * 500)
    written += 1
"""


@pytest.mark.parametrize("linger", ["0ms", "1s"])
def test_close_in_a_handler_sends_what_was_written(broker, linger):
    """A handler of SIGTERM that closes the producer ends the program; every record is stored."""
    chance = random.Random(7)
    for turn in range(3):
        topic = f"closed-{linger}-{turn}"
        with python(CLOSES, broker.address, topic, linger) as program:
            assert program.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.02, 0.3))  # the signal may come anywhere
            program.send_signal(signal.SIGTERM)
            out, err = program.communicate(timeout=ENDS_S)
            assert (program.returncode, err) == (0, "")
        values = read_range(broker.address, topic=topic).column("value").to_pylist()
        numbers = [int(value) for value in values]
        # One may be in the middle of its `write`.
        assert numbers in (list(range(int(out))), list(range(int(out) + 1)))


ENDS = """
import sys
from memq import Producer
producer = Producer(sys.argv[1], topic=sys.argv[2], linger="10s")
for number in range(1234):
    producer.write(b"value")
if sys.argv[3] == "close":
    producer.close()
elif sys.argv[3] == "forget":
    del producer
"""


@pytest.mark.parametrize("end", ["keep", "forget", "close"])
def test_program_that_ends_without_close_says_what_was_not_sent(broker, end):
    """The number of records that were not sent is on stderr; it is silent where all were."""
    with python(ENDS, broker.address, f"ends-{end}", end) as program:
        out, err = program.communicate(timeout=ENDS_S)
    assert (program.returncode, out) == (0, "")
    said = re.findall(
        r"memq: the producer to topic 'ends-\w+' was not closed, and 1234 records were not sent",
        err,
    )
    assert len(said) == (end != "close")
    assert "Traceback" not in err


class WritesLines(logging.Handler):
    """A logging handler that stores each line before it goes on."""

    def __init__(self, producer):
        super().__init__(logging.DEBUG)
        self.producer = producer
        self.stored = queue.SimpleQueue()

    def emit(self, record):
        self.stored.put(self.producer.write(record.getMessage().encode()).result(30))


def test_logging_handler_that_waits_does_not_stop_the_event_loop(broker):
    """The loop logs while a logging handler, whose lock is held, waits for the very loop."""
    log = logging.getLogger("memq.test")
    with Producer(broker.address, topic="lines") as producer:
        handler = WritesLines(producer)
        log.addHandler(handler)
        try:
            handler.acquire()
            said = threading.Event()

            def say():
                log.warning("on the loop")
                said.set()

            producer._loop.call(say)
            assert said.wait(30)
            assert producer.write(b"meanwhile").result(30).partition == 0
            handler.release()
            log.warning("in a thread")
            for _ in range(2):
                assert handler.stored.get(timeout=30).partition == 0
        finally:
            log.removeHandler(handler)
