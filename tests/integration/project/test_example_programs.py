"""The programs in `examples/` run as they are, one after the other, as somebody would try them."""

from __future__ import annotations

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
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker as `memq dev` runs it, with what `produce.py` writes."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), auto_create_topics=True) as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MEMQ_BOOTSTRAP", process.address)
            process.printed = run("produce.py")
        yield process


@pytest.fixture(autouse=True)
def known(broker, monkeypatch, tmp_path):
    """Programs know the broker, and have a folder of their own."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
    monkeypatch.chdir(tmp_path)


def command(name):
    return [sys.executable, "-W", "error", str(FOLDER / name)]


def run(name):
    """What a program prints that ends by itself."""
    done = subprocess.run(
        command(name), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_until(name, lines, group=None, topic=None):
    """What a program prints before Ctrl-C ends it, once its group has committed; it ends well."""
    process = subprocess.Popen(
        [sys.executable, "-u", *command(name)[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shown = [process.stdout.readline() for _ in range(lines)]
    with AdminClient() as admin:
        while group and admin.committed(group, topic) != {0: 1}:
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, errors) == (0, ""), errors
    return "".join(shown) + rest


def test_produce(broker):
    """Ten records are stored, and it says where."""
    assert broker.printed == "10 records; the last is in partition 0, offset 0\n"


def test_consume_group():
    """A member reads all records with keys and headers, and its group remembers it."""
    shown = run_until("consume_group.py", 10, "reports", "clicks")

    assert shown.count("[('source', b'example')]") == 10
    assert """b'user-0' b'{"page": "/page/0"}'""" in shown


def test_replay_group():
    """The group goes back to the first Batch of the last hour."""
    with AdminClient() as admin:
        admin.reset_offsets("reports", "clicks", "latest")

    assert run("replay_group.py") == "before: {0: 1}\nafter:  {0: 0}\n"


def test_asyncio_pipeline():
    """Each record arrives in the other topic, once its Batch is read."""
    assert run_until("asyncio_pipeline.py", 1) == "10 records forwarded\nstopped\n"
    assert read_range(topic="clicks-upper")["value"][0].as_py() == b'{"PAGE": "/PAGE/0"}'


def test_typed_topic():
    """The table that was written is read; the second time the topic is there."""
    fares = "['city', 'fare'] sum of fares: "

    assert run("typed_topic.py") == f"{fares}29.75\n"
    assert run("typed_topic.py") == f"the topic is there already\n{fares}59.5\n"


def test_produce_once():
    """The second run stores nothing, nor does the whole program run again."""
    first = run("produce_once.py").splitlines()
    again = run("produce_once.py").splitlines()

    assert first == [
        "first run: offset 0, stored before: False",
        "second run: offset 0, stored before: True",
    ]
    assert again[0] == "first run: offset 0, stored before: True"
    assert read_range(topic="scores").num_rows == 3


def test_range_to_pandas():
    """The offsets there are, and the records of each key in them."""
    shown = run("range_to_pandas.py")

    assert shown.startswith("partition 0, offsets 0 to 0\n")
    assert re.search(r"b'user-0' +4\n", shown)


def test_hour_to_polars_and_duckdb():
    """Both see the ten records of the last hour."""
    shown = run("hour_to_polars_and_duckdb.py")

    assert shown.startswith("10 records in Polars\n")
    assert re.search(r"user-0 +│ +4 ", shown)


def test_dead_letters():
    """What cannot be processed is in the other topic, with the reason and its place."""
    with Producer(topic="orders") as producer:
        for value in (b'{"amount": 3}', b"nonsense", b'{"price": 1}', b'{"amount": 4}'):
            producer.write(value, key=b"k")

    shown = run_until("dead_letters.py", 4, "billing", "orders")

    assert [line.partition(":")[0] for line in shown.splitlines()] == [
        "billed",
        "put aside",
        "put aside",
        "billed",
    ]
    dead = read_range(topic="orders-dead").to_pylist()
    assert [row["value"] for row in dead] == [b"nonsense", b'{"price": 1}']
    assert dead[1]["headers"] == [("error", b"KeyError('amount')"), ("from", b"orders 0:0")]


def test_audit():
    """Nothing is lost of what the producer reported."""
    shown = run("audit.py")

    assert re.search(r"^\w+: 10 produced, 0 lost$", shown, re.MULTILINE)
    assert shown.splitlines()[-1] in ("verdict: clean", "verdict: partly judged")


def test_spark_to_parquet():
    """Spark writes all rows."""
    assert run("spark_to_parquet.py").endswith("10 rows in clicks.parquet\n")


def test_each_program_is_tested():
    """No program is left out of these tests."""
    tested = {name.removeprefix("test_") + ".py" for name in globals() if name.startswith("test_")}

    assert set(PROGRAMS) <= tested
