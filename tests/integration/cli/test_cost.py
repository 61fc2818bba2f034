"""`memq cost`: the model, the meter of a topic, and what a range has cost."""

import json
import tomllib
from importlib.resources import files

import pytest

from memq.cli import cost
from memq.core.manifest import Manifest, encode_manifest

PRICES = files("memq.core").joinpath("prices.toml").read_text()


@pytest.fixture
def rows(memq):
    """Runs the command; what it printed as JSON."""
    return lambda *arguments: json.loads(memq("cost", *arguments, "-o", "json"))


def manifest(tmp_path, **counts):
    path = tmp_path / "manifest.json"
    it = Manifest(
        job="j",
        topic="t",
        topic_id="0" * 16,
        partition=1,
        start=5,
        end=9,
        records=0,
        crc_sum=0,
        output="out",
        files=[],
        started_ms=1,
        finished_ms=2,
        **counts,
    )
    path.write_bytes(encode_manifest(it))
    return path


def test_a_workload_is_modelled(rows):
    """Each system has its lines and their sum, and each input what it changes."""
    found = rows("--mb-per-second", "30", "--readers", "3", "--against", "kafka", "--sensitivity")
    systems = {row["system"] for row in found}
    assert systems == {"memq", "kafka tuned", "kafka default"}
    for system in systems:
        lines = [row for row in found if row["system"] == system and row["amount"] is not None]
        (total,) = [r["dollars"] for r in found if (r["system"], r["item"]) == (system, "total")]
        assert sum(row["dollars"] for row in lines) == pytest.approx(total, abs=0.1)
    changes = [row for row in found if row["unit"] == "more a month"]
    assert changes[0]["item"] == "mb_per_second doubled"


def test_the_table_says_whose_prices_it_has(memq, capfdbinary):
    """People are told date and region, and dollars with cents."""
    shown = memq("cost", "--mb-per-second", "30").decode()
    assert "total at worst" in shown
    assert "417.31" in shown


def test_a_topic_is_metered(rows, memq, topic, lines):
    """Batches of the last hour, their bytes, and what a group has committed of them."""
    memq("produce", topic, "--input", lines)
    memq("group", "reset-offsets", "reports", topic, "--to-latest", "--execute")
    memq("produce", topic, "--input", lines)  # which the group has not read
    memq("group", "reset-offsets", "others", topic, "--to-earliest", "--execute")
    listed = json.loads(memq("batch", "list", topic, "-o", "json"))

    found = {row["who"]: row for row in rows(topic)}

    assert found["brokers"]["batches"] == len(listed)
    assert found["brokers"]["size_bytes"] == sum(each["size_bytes"] for each in listed)
    assert 0 < found["group reports"]["batches"] < len(listed)
    assert found["group reports"]["requests"] == found["group reports"]["batches"]
    assert found["group others"]["requests"] == found["group others"]["dollars_a_day"] == 0
    # The topic is some seconds old: an hour would make its rates smaller than they are.
    window_s = found["brokers"]["window_seconds"]
    assert window_s < 600
    puts = found["brokers"]["batches"] * 1.03 * 86_400 / window_s
    dollars = puts * tomllib.loads(PRICES)["put_per_1000"] / 1_000
    assert found["brokers"]["dollars_a_day"] == pytest.approx(dollars, rel=0.01)
    assert found["storage"]["dollars_a_day"] >= 0


def test_a_topic_with_too_much_is_refused(memq, topic, lines, monkeypatch):
    """What would take long to count names the limit, and the way out."""
    memq("produce", topic, "--input", lines)
    monkeypatch.setattr(cost, "MAX_BATCHES", 0)
    assert "give a later --since, such as 5m" in memq("cost", topic, code=1)


def test_a_range_has_cost_its_requests(rows, tmp_path):
    """Spark reads the index of each Batch, and its Messages by ranges of a MiB."""
    path = manifest(tmp_path, batches=4, messages=32, bytes=4 * (8 << 20))
    (row,) = rows("--manifest", path)
    assert (row["batches"], row["requests"]) == (4, 4 * 9)
    assert row["dollars"] == pytest.approx(36 * 0.0004 / 1_000, abs=1e-6)

    (row,) = rows("--manifest", manifest(tmp_path, batches=0, messages=0, bytes=0))
    assert (row["requests"], row["dollars"]) == (0, 0)


def test_prices_of_ones_own(rows, memq, tmp_path):
    """A file replaces them all, and one that is wrong is named."""
    path = tmp_path / "prices.toml"
    path.write_text(PRICES.replace("object_gb_month = 0.023", "object_gb_month = 0.046"))
    usual, dear = rows("--mb-per-second", "1"), rows("--mb-per-second", "1", "--prices", path)
    stored = [next(r["dollars"] for r in each if r["item"] == "objects") for each in (usual, dear)]
    assert stored[1] == pytest.approx(2 * stored[0], abs=0.02)

    path.write_text("put_per_1000 = ")
    assert "prices.toml: Invalid value" in memq(
        "cost", "--mb-per-second", "1", "--prices", path, code=1
    )
    assert "No such file" in memq(
        "cost", "--mb-per-second", "1", "--prices", tmp_path / "none", code=1
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give one of --mb-per-second, --manifest and TOPIC"),
        (["t", "--mb-per-second", "1"], 2, "give one of"),
        (["--mb-per-second", "0"], 2, "expected a number from 0.001"),
        (["--mb-per-second", "nan"], 2, "nan"),
        (["--mb-per-second", "900", "--embedded"], 1, "an embedded queue has one"),
        (["t", "--since", "2999-01-01T00:00Z"], 1, "is not before now"),
        (["--manifest", "nowhere"], 1, "nowhere"),
    ],
)
def test_what_cannot_be_told_is_refused(memq, arguments, code, message):
    """With what is expected."""
    assert message in memq("cost", *arguments, code=code)
