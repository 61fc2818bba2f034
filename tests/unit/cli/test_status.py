"""What `memq status` shows of what brokers say, and how it ends."""

from __future__ import annotations

import json

import pytest

from memq.cli.lag import lag_row
from memq.cli.main import main
from memq.client.admin import AdminClient
from memq.client.lag import GroupLag, GroupPartition, Lag
from memq.client.status import ClusterStatus
from memq.core.wire.messages import BrokerStatus, ServiceState
from memq.errors import CorruptDataError, UnavailableError

LAG = GroupLag("g", "t", [], [GroupPartition(0, 5, 0, 9, Lag(4, 40, 400, 1.5), "", None)])


@pytest.fixture
def shown(monkeypatch, capsys):
    """Runs the command where brokers say this; exit code, stdout and stderr."""
    asked = []

    def run(found, *arguments):
        def status(_, timeout_s):
            asked.append(timeout_s)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(AdminClient, "status", status)
        code = main(["status", "-b", "127.0.0.1:1", *arguments])
        return code, *capsys.readouterr()

    run.asked = asked
    return run


def broker(name, **fields):
    """What a broker says."""
    return BrokerStatus(id=name, address=f"{name}:1", version="1.2", **fields)


def test_brokers_that_are_well(shown):
    """A line for each, with the age of its watermark and the fuller one of its disks."""
    services = [ServiceState(name="storage", where="s3://x/"), ServiceState(name="disk")]
    found = ClusterStatus(
        "c",
        [
            broker("a", free_bytes={"/x": 9 << 20, "/y": 3 << 20}, services=services),
            broker("b", watermark_age_ms=-5, services=[ServiceState(name="queue", where="q")]),
            broker("d", watermark_age_ms=61_000),
        ],
        {},
        None,
        "",
        LAG,
    )
    code, out, err = shown(found)
    assert (code, err) == (0, "")
    first, _, titles, a, b, d, _, *rest = out.splitlines()
    assert first == "ok: 3 brokers of cluster c"
    assert titles.split() == ["BROKER", "ADDRESS", "VERSION", "STATE", "WATERMARK", "DISK-FREE"]
    assert a.split() == ["a", "a:1", "1.2", "ready", "0s", "3.0", "MiB"]
    assert b.split()[3:] == ["ready", "0s", "-"]
    assert d.split()[3:] == ["ready", "1m", "1s", "-"]
    assert rest == [
        "storage: s3://x/",
        "disk: ok",
        "queue: q",
        "worst lag: g of t, 40 records",
    ]
    assert shown.asked == [5.0]


def test_what_is_wrong_comes_first_and_is_the_exit_code(shown):
    """In both forms; who is silent has a line of its own."""
    gone = ServiceState(name="storage", where="x", since_ms=0, error="503")
    found = ClusterStatus(
        "c",
        [broker("a", not_ready=[gone.words(), "it stops"], services=[gone])],
        {"b": "frozen"},
        None,
        "",
    )
    code, out, _ = shown(found, "--timeout", "700ms")
    lines = out.splitlines()
    assert code == 1
    assert lines[:3] == found.problems()
    assert [line.split()[3:5] for line in lines if line.startswith("a ")] == [["not", "ready"]]
    assert [line.split()[3] for line in lines if line.startswith("b ")] == ["silent"]
    assert f"storage: {gone.words()}" in lines
    assert "worst lag" not in out
    code, out, _ = shown(found, "-o", "json")
    told = json.loads(out)
    assert (code, told["problems"], told["silent"]) == (1, found.problems(), {"b": "frozen"})
    assert (told["worst_lag"], told["cluster"], told["cluster_id"]) == (None, None, "c")
    assert told["brokers"][0]["services"][0]["error"] == "503"
    assert shown.asked == [0.7, 5.0]
    code, out, _ = shown(
        found._replace(brokers=[broker("a")], silent={}, worst_lag=LAG), "-o", "json"
    )
    assert (code, json.loads(out)["worst_lag"]) == (0, lag_row(LAG))


@pytest.mark.parametrize("error", [UnavailableError("away"), CorruptDataError("bad")], ids=type)
def test_nobody_answers(shown, error):
    """It has an exit code of its own, whatever the reason."""
    code, out, err = shown(error)
    assert (code, out) == (2, "")
    assert err == f"memq: error: no broker tells its state: {error}\n"
