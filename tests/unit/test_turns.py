"""Turns, driven by hand."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from memq.broker.turns import AT_A_TIME, Line, Turn, Turns

LIMIT = 1_000


class Requests:
    """Requests that are served until the test says otherwise; remembers who was let in when."""

    def __init__(self) -> None:
        self.turns = Turns(LIMIT)
        self.served: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str, line: Line, size_bytes: int = 0, made_bytes: int | None = None):
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.ensure_future(self._serve(name, line, size_bytes, made_bytes))

    async def _serve(self, name, line, size_bytes, made_bytes):
        async with Turn(self.turns, line, size_bytes) as turn:
            self.served.append(name)
            if made_bytes is not None:
                turn.resize(made_bytes)
            await self._ends[name].wait()

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)

    async def finish(self) -> None:
        self.end(*self._ends)
        await asyncio.gather(*self._tasks.values())


async def rest() -> None:
    """As many turns of the event loop as anything here can take."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def requests():
    return Requests()


async def test_lines_take_turns(requests) -> None:
    """A line with many requests has one turn for each turn of the others."""
    many, one, two = Line(), Line(), Line()
    for number in range(4):
        requests.ask(f"many {number}", many)
    requests.ask("one", one)
    requests.ask("two", two)
    await rest()
    assert requests.served[:4] == ["many 0", "many 1", "one", "two"]
    assert len(requests.served) == 6
    await requests.finish()


async def test_one_of_a_kind_in_a_turn_of_the_event_loop(requests) -> None:
    """However many ask at once, a turn of the event loop lets one small and one large one in."""
    lines = [Line() for _ in range(10)]
    for number, line in enumerate(lines):
        requests.ask(f"small {number}", line)
        requests.ask(f"large {number}", line, 1)
    counts = []
    for _ in range(30):
        await asyncio.sleep(0)
        counts.append(len(requests.served))
    assert counts[-1] == 20
    assert all(after - before <= 2 for before, after in itertools.pairwise(counts))
    await requests.finish()


async def test_few_of_a_line_at_a_time(requests) -> None:
    """A line has so many in service, and the next one when one of them is done."""
    line = Line()
    for number in range(AT_A_TIME + 2):
        requests.ask(str(number), line)
    await rest()
    assert len(requests.served) == AT_A_TIME
    requests.end("0")
    await rest()
    assert len(requests.served) == AT_A_TIME + 1
    await requests.finish()


async def test_answers_of_all_have_a_bound(requests) -> None:
    """At the bound the next large one waits and is not overtaken; small ones go on."""
    lines = [Line() for _ in range(6)]
    for number, line in enumerate(lines[:4]):
        requests.ask(str(number), line, 240)
    requests.ask("waits", lines[4], 200)
    requests.ask("behind", lines[5], 10)
    requests.ask("small", lines[5])
    await rest()
    assert sorted(requests.served) == ["0", "1", "2", "3", "small"]
    assert requests.turns.full
    assert repr(requests.turns) == "<Turns [960/1000 bytes of answers | 2 lanes wait | full]>"
    requests.end("2")
    await rest()
    assert requests.served[-2:] == ["waits", "behind"]
    assert not requests.turns.full
    await requests.finish()
    assert requests.turns.used_bytes == 0


async def test_answers_of_one_line_have_a_bound(requests) -> None:
    """A line that holds its share waits for itself, and nobody waits for it."""
    greedy, other = Line(), Line()
    for number in range(3):
        requests.ask(f"greedy {number}", greedy, 30)
    requests.ask("other", other, 30)
    await rest()
    assert sorted(requests.served) == ["greedy 0", "greedy 1", "other"]
    assert not requests.turns.full
    requests.end("greedy 0")
    await rest()
    assert requests.served[-1] == "greedy 2"
    await requests.finish()


async def test_an_answer_larger_than_a_bound_goes_alone(requests) -> None:
    """What can never fit is served when there is no other, of its line and of all."""
    one, two = Line(), Line()
    requests.ask("of one", one, 100)
    requests.ask("large", one, 600)
    requests.ask("huge", two, 5_000)
    await rest()
    assert requests.served == ["of one"]
    requests.end("of one")
    await rest()
    assert requests.served == ["of one", "huge"]
    requests.end("huge")
    await rest()
    assert requests.served == ["of one", "huge", "large"]
    await requests.finish()


async def test_a_small_outcome_makes_room_at_once(requests) -> None:
    """What was reserved for an answer and not needed is there for others as soon as it is made."""
    lines = [Line() for _ in range(3)]
    requests.ask("0", lines[0], 900, made_bytes=10)
    requests.ask("1", lines[1], 900, made_bytes=20)
    requests.ask("of the same line", lines[0], 50, made_bytes=50)
    await rest()
    assert sorted(requests.served) == ["0", "1", "of the same line"]
    assert requests.turns.used_bytes == 80
    await requests.finish()


async def test_a_client_that_does_not_read_is_passed_over(requests) -> None:
    """Requests of a client that does not read wait until it does; nobody waits for them."""
    deaf, other = Line(), Line()
    requests.turns.reads(deaf, reads=False)
    requests.ask("deaf", deaf, 1)
    requests.ask("deaf and small", deaf)
    requests.ask("other", other, 1)
    await rest()
    assert requests.served == ["other"]
    requests.turns.reads(deaf, reads=True)
    await rest()
    assert sorted(requests.served) == ["deaf", "deaf and small", "other"]
    await requests.finish()


async def test_who_gives_up_leaves_nothing_behind(requests) -> None:
    """A request that is given up, waiting or just let in, holds neither place nor memory."""
    holder, one, two = Line(), Line(), Line()
    requests.ask("holder", holder, 1_000)
    await rest()
    requests.ask("waits", one, 1_000)
    requests.ask("next", two, 1_000)
    await rest()
    await requests.give_up("waits")
    requests.end("holder")
    await rest()
    assert requests.served == ["holder", "next"]
    requests.ask("just let in", one, 500)
    requests.end("next")
    while requests.turns.used_bytes != 500:
        await asyncio.sleep(0)
    await requests.give_up("just let in")
    assert requests.turns.used_bytes == 0
