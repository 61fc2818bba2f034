"""When a put is made a second time beside the first."""

import asyncio
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.errors import StorageError
from memq.runtime.hedging import EXTRA_SHARE, MIN_KNOWN, RECENT, WINDOW, Hedging, first_success

MIB = 1 << 20


def fed(hedging, seconds, size_bytes=8 * MIB, *, succeeded=True):
    """Let puts of so many seconds end, one after the other."""
    for each in seconds:
        hedging.ended(hedging.began(size_bytes), each, succeeded=succeeded)


def known(count=400, seed=1):
    """A rule that has seen puts of 100 to 200 ms."""
    hedging, rng = Hedging(), random.Random(seed)
    fed(hedging, [rng.uniform(0.1, 0.2) for _ in range(count)])
    return hedging


def test_a_put_is_overdue_above_97_of_100_of_its_size():
    """The delay is the 97th percentile of the latest puts, of each size by itself."""
    hedging = Hedging()
    rng = random.Random(3)
    large = [rng.uniform(0.1, 0.5) for _ in range(WINDOW)]
    fed(hedging, large)
    fed(hedging, [0.01] * WINDOW, 64 << 10)
    delay = hedging.began(8 * MIB).delay_s
    assert 0.96 <= sum(each < delay for each in large) / WINDOW <= 0.98
    assert hedging.began(64 << 10).delay_s == 0.01


def test_there_is_no_hedge_while_the_store_slows_down():
    """When many of the puts under way are overdue, or have failed, none of the others is hedged."""
    hedging = known(2_000)
    puts = [hedging.began(8 * MIB) for _ in range(12)]
    answers = [hedging.overdue(put) for put in puts]
    assert answers[0]
    assert not any(answers[8:])
    hedging = known(2_000)
    fed(hedging, [0.01] * (RECENT // 4), succeeded=False)
    assert not hedging.overdue(hedging.began(8 * MIB))
    fed(hedging, [0.15] * RECENT)
    assert hedging.overdue(hedging.began(8 * MIB))


@given(st.lists(st.tuples(st.sampled_from(["begin", "overdue", "ok", "bad"]), st.integers(0, 9))))
def test_counts_never_go_astray(steps):
    """Whatever happens in whatever order: counts fit what is under way, and the share is kept."""
    hedging, puts, hedged = Hedging(), [], set()
    fed(hedging, [0.1] * MIN_KNOWN)
    for what, number in steps:
        if what == "begin":
            puts.append(hedging.began(8 * MIB))
        elif puts:
            put = puts[number % len(puts)]
            if what == "overdue" and id(put) not in hedged:
                hedged |= {id(put)} if hedging.overdue(put) else set()
            elif what in ("ok", "bad"):
                puts.remove(put)
                hedging.ended(put, 0.1, succeeded=what == "ok")
    assert f"of {len(puts)} under way" in repr(hedging)
    assert f"| {sum(put.overdue for put in puts)} of" in repr(hedging)
    assert hedging.hedges <= EXTRA_SHARE * hedging.requests


@pytest.mark.parametrize("succeeds", [*itertools.product([True, False], repeat=2)])
@pytest.mark.parametrize("first", [0, 1])
async def test_the_first_success_is_the_answer(first, succeeds):
    """One that fails waits for the other; of two failures the one begun last is told."""
    hedging, attempts = known(), []

    def attempt():
        attempts.append(asyncio.get_running_loop().create_future())
        return attempts[-1]

    request = asyncio.ensure_future(first_success(attempt, hedging, 8 * MIB, lambda: 50.0))
    while len(attempts) < 2:
        await asyncio.sleep(0.001)
    for number in (first, 1 - first):
        if succeeds[number]:
            attempts[number].set_result(f"answer {number}")
            assert await request == f"answer {number}"
            break
        attempts[number].set_exception(StorageError(f"attempt {number}"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert request.done() == (number != first)
    else:
        with pytest.raises(StorageError, match="attempt 1"):
            await request
    assert len(attempts) == 2
    assert "0 of 0 under way overdue" in repr(hedging)
    assert hedging._recent[-1], "it was overdue"
