"""`memq status`: one line says what is wrong, the exit code that something is, within seconds."""

import json
import socket

import pytest

from memq.cli.main import main
from memq.core.wire import messages as m
from memq.errors import InvalidRequestError, UnavailableError
from tests.fakes.tiny_broker import TinyBroker
from tests.integration.cli.processes import in_thread

SINCE_MS = 1_795_000_000_000


def own(tiny, name="b1", *, others=(), **fields):
    """What a broker tells of itself."""
    seen = [m.ClusterBroker(id=name, address=tiny.address)]
    seen += [m.ClusterBroker(id=each, address=address) for each, address in others]
    told = m.BrokerStatus(id=name, address=tiny.address, version="1", **fields)
    return m.DescribeClusterAnswer(cluster_id="c", governor="", brokers=seen, status=told)


def test_all_is_well(memq, broker):
    """With nothing wrong it says so, shows the broker and its services, and exits with 0."""
    shown = memq("status").decode()
    assert shown.startswith("ok: 1 broker of cluster memq\n")
    assert broker.address in shown
    found = json.loads(memq("status", "-o", "json"))
    assert (found["problems"], found["silent"]) == ([], {})
    (one,) = found["brokers"]
    assert one["address"] == broker.address
    assert one["free_bytes"]
    assert {each["name"]: each["since_ms"] for each in one["services"]} == {
        "storage": None,
        "queue": None,
        "disk": None,
    }


def test_what_is_wrong_is_the_first_line(capsys):
    """A service that refuses is named with its brokers and the way out; then who is dead."""
    with socket.create_server(("127.0.0.1", 0)) as frozen, in_thread(TinyBroker()) as tiny:
        refuses = m.ServiceState(name="kafka", where="k:9092", since_ms=SINCE_MS, error="no answer")
        tiny.answers[m.DescribeCluster] = own(
            tiny,
            others=[("b2", f"127.0.0.1:{frozen.getsockname()[1]}")],
            services=[m.ServiceState(name="storage", where="s3://x/"), refuses],
            not_ready=["it is not certain to be part of its cluster"],
            free_bytes={"/x": 9 << 20, "/y": 3 << 20},
            watermark_age_ms=61_000,
        )
        assert main(["status", "-b", tiny.address]) == 1
    problems, _, table = capsys.readouterr().out.partition("\n\n")
    assert [line.partition(": ")[0] for line in problems.splitlines()] == [
        "kafka (k:9092) refuses since 2026-11-18T11:06:40.000Z",
        "broker b2 does not answer",
        "broker b1 is not ready",
    ]
    rows = {line.split()[0]: line.split()[3:] for line in table.splitlines() if line}
    assert rows["b1"] == ["not", "ready", "1m", "1s", "3.0", "MiB"]
    assert rows["b2"][0] == "silent"
    assert "storage: s3://x/" in table


@pytest.mark.parametrize("error", [InvalidRequestError("no cluster"), UnavailableError("draining")])
def test_a_broker_that_tells_nothing_is_no_broker_that_answers(capsys, error):
    """An older version, and one that refuses, are exit code 2 with what it said."""
    with in_thread(TinyBroker()) as tiny:
        tiny.answers[m.DescribeCluster] = error
        assert main(["status", "-b", tiny.address]) == 2
    assert str(error) in capsys.readouterr().err
