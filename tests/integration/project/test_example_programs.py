"""The programs in `examples/` run as they are, one after the other, as somebody would try them."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memq import AdminClient, Producer, read_range
from memq.testing.broker import BrokerProcess

FOLDER = Path(__file__).parents[3] / "examples"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py"))
TIMEOUT_S = 280  # a backstop, below that of pytest


WAITING = [  # until Ctrl-C; before it they print so many lines, and their group commits a topic
    ("consume_group.py", 10, ("reports", "clicks")),
    ("asyncio_pipeline.py", 1, None),
    ("dead_letters.py", 4, ("billing", "orders")),
]
FARES = "\\['city', 'fare'\\] sum of fares: "
ENDING = [
    ("replay_group.py", r"before: {0: 1}\nafter:  {0: 0}\n"),
    ("typed_topic.py", f"{FARES}29.75\n"),
    ("typed_topic.py", f"the topic is there already\n{FARES}59.5\n"),
    (
        "produce_once.py",
        r"first run: offset 0, stored before: False\nsecond run: offset 0, stored before: True\n",
    ),
    ("produce_once.py", r"first run: offset 0, stored before: True\n"),
    ("range_to_pandas.py", r"partition 0, offsets 0 to 0\n(.*\n)*b'user-0' +4\n"),
    ("hour_to_polars_and_duckdb.py", r"10 records in Polars\n(.*\n)*.*user-0 +│ +4 "),
    ("audit.py", r"(.*\n)*\w+: 10 produced, 0 lost\n(.*\n)*verdict: (clean|partly judged)\n$"),
    ("spark_to_parquet.py", r"(.*\n)*10 rows in clicks.parquet\n$"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker as `memq dev` runs it, with what the programs read."""
    with (
        BrokerProcess(tmp_path_factory.mktemp("broker"), auto_create_topics=True) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("MEMQ_BOOTSTRAP", process.address)
        assert run("produce.py") == "10 records; the last is in partition 0, offset 0\n"
        with Producer(topic="orders") as producer:
            for value in (b'{"amount": 3}', b"nonsense", b'{"price": 1}', b'{"amount": 4}'):
                producer.write(value, key=b"k")
        yield process


@pytest.fixture(autouse=True)
def known(broker, monkeypatch, tmp_path):
    """Programs know the broker, and have a folder of their own."""
    monkeypatch.chdir(tmp_path)


def command(name):
    return [sys.executable, "-u", "-W", "error", str(FOLDER / name)]


def run(name):
    """What a program prints that ends by itself."""
    done = subprocess.run(
        command(name), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_until(name, lines, committed):
    """What a program prints before Ctrl-C ends it, once its group has committed; it ends well."""
    process = subprocess.Popen(
        command(name), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    shown = [process.stdout.readline() for _ in range(lines)]
    with AdminClient() as admin:
        while committed and admin.committed(*committed) != {0: 1}:
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, errors) == (0, ""), errors
    return "".join(shown) + rest


def test_programs_that_wait_for_records():
    """Records, dead letters with their reason, and records of another topic come out of them."""
    consumed, forwarded, billed = (run_until(*each) for each in WAITING)

    assert consumed.count("[('source', b'example')]") == 10
    assert """b'user-0' b'{"page": "/page/0"}'""" in consumed
    assert forwarded == "10 records forwarded\nstopped\n"
    assert read_range(topic="clicks-upper")["value"][0].as_py() == b'{"PAGE": "/PAGE/0"}'
    assert re.findall("^(billed|put aside)", billed, re.MULTILINE) == [
        "billed",
        "put aside",
        "put aside",
        "billed",
    ]
    dead = read_range(topic="orders-dead").to_pylist()
    assert [row["value"] for row in dead] == [b"nonsense", b'{"price": 1}']
    assert dead[1]["headers"] == [("error", b"KeyError('amount')"), ("from", b"orders 0:0")]


@pytest.mark.parametrize(("name", "shown"), ENDING, ids=[name for name, _ in ENDING])
def test_a_program_that_ends(name, shown):
    """It prints what it has read or written, of what others wrote before it."""
    assert re.match(shown, run(name))
    if name == "produce_once.py":
        assert read_range(topic="scores").num_rows == 3


def test_each_program_is_tested():
    """No program is left out of these tests."""
    assert set(PROGRAMS) == {"produce.py", *(name for name, *_ in WAITING + ENDING)}
