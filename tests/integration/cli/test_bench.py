"""`memq bench`."""

from __future__ import annotations

import json
import os


def test_bench(memq):
    """Each benchmark prints its figures and what they depend on."""
    write = ("bench", "produce", "load", "--records", 2_500, "--value-bytes", 100, "-o", "json")
    made = [json.loads(memq(*write)) for _ in range(2)][1]
    read = json.loads(memq("bench", "consume", "load", "--each", "-o", "json"))
    some = json.loads(memq("bench", "consume", "load", "--records", 1, "-o", "json"))
    both = json.loads(memq("bench", "e2e", "load", "--rate", 2_000, "--seconds", 0.5, "-o", "json"))

    assert (made["records"], read["records"], both["records"]) == (2_500, 5_000, 1_000)
    assert 1 <= some["records"] <= 2_500
    for row in (made, both):
        assert 0 < row["latency_p50_ms"] <= row["latency_p99_ms"] <= row["latency_p100_ms"]
        assert (row["linger_ms"], row["batch_age_ms"], row["acks"]) == (10, 200, "all")
    for row in (made, read, both):
        assert row["records_per_s"] > 0
        assert row["cpus"] == len(os.sched_getaffinity(0))
