"""Fair queuing, driven by hand."""

import asyncio

import pytest

from memq.broker.fair_queuing import ClientFlows, FairScheduler, ScheduledRequest
from tests.integration.broker.support import turns

LIMIT = 1_000


class Requests:
    """Requests that are served until the test says otherwise; remembers who was let in when."""

    def __init__(self) -> None:
        self.scheduler = FairScheduler(LIMIT)
        self.served: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(
        self, name: str, client: ClientFlows, size_bytes: int = 0, made_bytes: int | None = None
    ):
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.ensure_future(self._serve(name, client, size_bytes, made_bytes))

    async def _serve(self, name, client, size_bytes, made_bytes):
        async with ScheduledRequest(self.scheduler, client, size_bytes) as scheduled:
            self.served.append(name)
            if made_bytes is not None:
                scheduled.resize(made_bytes)
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


@pytest.fixture
def requests():
    return Requests()


async def test_clients_take_turns(requests) -> None:
    """A client with many requests has one turn for each turn of the others."""
    many, one, two = ClientFlows(), ClientFlows(), ClientFlows()
    for number in range(4):
        requests.ask(f"many {number}", many)
    requests.ask("one", one)
    requests.ask("two", two)
    await turns()
    assert requests.served[:4] == ["many 0", "many 1", "one", "two"]
    assert len(requests.served) == 6
    await requests.finish()


async def test_answers_of_all_have_a_bound(requests) -> None:
    """At the bound the next large one waits and is not overtaken; small ones go on."""
    clients = [ClientFlows() for _ in range(6)]
    for number, client in enumerate(clients[:4]):
        requests.ask(str(number), client, 240)
    requests.ask("waits", clients[4], 200)
    requests.ask("behind", clients[5], 10)
    requests.ask("small", clients[5])
    await turns()
    assert sorted(requests.served) == ["0", "1", "2", "3", "small"]
    assert requests.scheduler.full
    requests.end("2")
    await turns()
    assert requests.served[-2:] == ["waits", "behind"]
    assert not requests.scheduler.full
    await requests.finish()
    assert requests.scheduler.used_bytes == 0


async def test_an_answer_larger_than_a_bound_goes_alone(requests) -> None:
    """What can never fit is served when there is no other, of its client and of all."""
    one, two = ClientFlows(), ClientFlows()
    requests.ask("of one", one, 100)
    requests.ask("large", one, 600)
    requests.ask("huge", two, 5_000)
    await turns()
    assert requests.served == ["of one"]
    requests.end("of one")
    await turns()
    assert requests.served == ["of one", "huge"]
    requests.end("huge")
    await turns()
    assert requests.served == ["of one", "huge", "large"]
    await requests.finish()


async def test_a_client_that_does_not_read_is_passed_over(requests) -> None:
    """Requests of a client that does not read wait until it does; nobody waits for them."""
    deaf, other = ClientFlows(), ClientFlows()
    requests.scheduler.reads(deaf, reads=False)
    requests.ask("deaf", deaf, 1)
    requests.ask("deaf and small", deaf)
    requests.ask("other", other, 1)
    await turns()
    assert requests.served == ["other"]
    requests.scheduler.reads(deaf, reads=True)
    await turns()
    assert sorted(requests.served) == ["deaf", "deaf and small", "other"]
    await requests.finish()


async def test_who_gives_up_leaves_nothing_behind(requests) -> None:
    """A request that is given up, waiting or just let in, holds neither place nor memory."""
    holder, one, two = ClientFlows(), ClientFlows(), ClientFlows()
    requests.ask("holder", holder, 1_000)
    await turns()
    requests.ask("waits", one, 1_000)
    requests.ask("next", two, 1_000)
    await turns()
    await requests.give_up("waits")
    requests.end("holder")
    await turns()
    assert requests.served == ["holder", "next"]
    requests.ask("just let in", one, 500)
    requests.end("next")
    while requests.scheduler.used_bytes != 500:
        await asyncio.sleep(0)
    await requests.give_up("just let in")
    assert requests.scheduler.used_bytes == 0
