"""A value that is asked for again before it ends, by one of all who want it."""

import asyncio

import pytest

from memq.errors import ForbiddenError, UnavailableError
from memq.runtime.renewed import AGAIN_S, Renewed


class Source:
    """Gives numbers that are good for 100 s by its clock; an error is raised instead."""

    def __init__(self):
        self.now_s, self.asked, self.error = 0.0, [], None
        self.renewed = Renewed(lambda: self.now_s, 0.5)

    async def ask(self, left_s):
        self.asked.append(left_s)
        await asyncio.sleep(0)
        self.now_s += 1
        if self.error is not None:
            raise self.error
        return len(self.asked), 100.0

    async def at(self, now_s):
        self.now_s = now_s
        return await self.renewed.get(self.ask)


async def test_it_is_renewed_before_its_end():
    """It is the same for its share of the time, which counts from when it was asked for."""
    source = Source()
    assert await source.at(10) == (1, 99)
    assert await source.at(59.9) == (1, pytest.approx(50.1))
    assert await source.at(60) == (2, 99)
    assert source.asked == [0, 50]


async def test_one_asks_for_all():
    """Of many who wait one asks; and when it is refused, all are."""
    source = Source()
    assert {value for value, _ in await asyncio.gather(*[source.at(0) for _ in range(9)])} == {1}
    source.error = ForbiddenError("no more")
    found = await asyncio.gather(*[source.at(200) for _ in range(9)], return_exceptions=True)
    assert {(type(each), str(each)) for each in found} == {(ForbiddenError, "no more")}
    assert source.asked == [0, 0]
    source.error = None
    assert await source.at(300) == (3, 99)


async def test_what_may_pass_is_no_trouble_while_it_is_good():
    """It is given out until its end, and asked for again after a while."""
    source = Source()
    await source.at(0)
    source.error = UnavailableError("away")
    assert (await source.at(60))[0] == 1
    assert (await source.at(61 + AGAIN_S - 0.1))[0] == 1
    assert source.asked == [0, 40]
    assert (await source.at(61 + AGAIN_S))[0] == 1
    assert len(source.asked) == 3
    with pytest.raises(UnavailableError):
        await source.at(100)


async def test_a_refusal_counts_at_once():
    """It is the answer though the value is still good."""
    source = Source()
    await source.at(0)
    source.error = ForbiddenError("no more")
    with pytest.raises(ForbiddenError):
        await source.at(60)


async def test_a_refusal_is_repeated_for_a_while():
    """Who was refused is not asked about again at once; an error that may pass is."""
    source = Source()
    source.error = ForbiddenError("no")
    for now_s in (0, 1, AGAIN_S):
        with pytest.raises(ForbiddenError):
            await source.at(now_s)
    assert len(source.asked) == 1
    source.error = UnavailableError("away")
    for now_s in (2 + AGAIN_S, 3 + AGAIN_S):
        with pytest.raises(UnavailableError):
            await source.at(now_s)
    assert len(source.asked) == 3


async def test_who_goes_away_ends_no_question():
    """The next who comes hears the answer to the same one."""
    source, answered = Source(), asyncio.Event()

    async def ask(left_s):
        source.asked.append(left_s)
        await answered.wait()
        return 7, 100.0

    for _ in range(5):
        gone = asyncio.ensure_future(source.renewed.get(ask))
        await asyncio.sleep(0)
        gone.cancel()
    waits = asyncio.ensure_future(source.renewed.get(ask))
    await asyncio.sleep(0)
    answered.set()
    assert await waits == (7, 100.0)
    assert len(source.asked) == 1
