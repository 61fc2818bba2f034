"""Some seeds in the suite; `make simulate` runs as many as there is time for."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import Deed, Plan, Producer, Reader, Topic, draw
from tests.simulation.run import Result, run
from tests.simulation.shrink import shrink

ROOT = Path(__file__).parents[2]


LATE_PUT = 7_004_993
"""A put takes effect five seconds after it was asked for: an orphan that retention removes."""


@pytest.mark.parametrize("seed", [*range(200, 208), LATE_PUT])
def test_a_seed_keeps_every_promise(seed):
    """Whatever the faults of this seed, no promise is broken."""
    assert run(draw(seed)).violations == []


def test_a_run_is_the_same_in_another_process():
    """The trace depends on neither the process nor its hashes of strings."""
    program = (
        "from tests.simulation.plan import draw\n"
        "from tests.simulation.run import run\n"
        "print(run(draw(1_100)).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert digests == {run(draw(1_100)).digest}


def test_a_failure_is_made_smaller():
    """Of all that a plan does, what has nothing to do with its failure is left out."""
    plan = Plan(
        seed=1,
        seconds=10.0,
        topics=(Topic(name="t0"), Topic(name="t1")),
        producers=tuple(Producer(name=f"p{number}", topic="t0") for number in range(4)),
        readers=(Reader(name="r0", topic="t1"), Reader(name="g0", topic="t0", group="g")),
        deeds=tuple(Deed(at_s=number, what="kill", who="b") for number in range(9)),
    )

    def fails(plan):
        guilty = any(deed.at_s == 5 for deed in plan.deeds) and any(
            producer.name == "p2" for producer in plan.producers
        )
        return _result(plan, ["1.0 value p2.7 is lost at 12"] if guilty else [])

    small = shrink(fails(plan), fails).plan
    assert [deed.at_s for deed in small.deeds] == [5]
    assert [producer.name for producer in small.producers] == ["p2"]
    assert small.readers == ()
    assert [topic.name for topic in small.topics] == ["t0"]


def _result(plan, violations):
    return Result(
        plan=plan,
        violations=violations,
        counts={},
        digest="",
        callbacks=0,
        seconds=0.0,
        history=None,
        notes=[],
    )
