"""Crash a component before every step that it takes on a disk, and judge what it opens to.

A component runs a plan of actions on a `ForgetfulDisk`. Before each step of the disk, and when an
action has ended, the states that a power cut could leave there are saved: all of them where they
are few, else some, by a seed. Each is then opened, compared with the model of what was promised by
then, used, and some are crashed again while they are opened. `MEMQ_CRASH_STATES` (states at each
step) and `MEMQ_CRASH_PLANS` (plans of each component) look for longer.
"""

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.fakes import durable
from tests.fakes.disk import ForgetfulDisk, PowerCut

STATES = int(os.environ.get("MEMQ_CRASH_STATES", "3"))
PLANS = int(os.environ.get("MEMQ_CRASH_PLANS", "2"))
_AGAIN = 0.2
"""How many states are crashed again."""
_USED = 0.4
"""How many states are used after they were opened."""
_KILLED = 0.2
"""How many actions may end by a kill."""


class Component(Protocol):
    """What is crashed. A model is plain data and says what was promised."""

    def plan(self, rng: random.Random) -> list[Any]:
        """Actions to take, one after the other."""

    def open(self, folder: Path) -> Any:
        """Open it, or make it."""

    def close(self, handle: Any) -> None:
        """Close it politely."""

    def act(self, handle: Any, model: Any, action: Any, disk: ForgetfulDisk) -> Any:
        """Take an action; the model after it. Planned faults are taken back."""

    def check(self, handle: Any, model: Any, action: Any) -> Any:
        """Compare it with a model and the action that was cut off, if any; a model of what it is.

        Raises:
            AssertionError: a promise is broken.
        """

    def use(self, handle: Any, model: Any) -> Any:
        """Use it, so that what does not work on shows; the model after that."""


def disks(folder: Path, count: int, **options: Any) -> Iterator[ForgetfulDisk]:
    """Give a disk for each of so many seeds, one after the other."""
    for seed in range(count):
        with ForgetfulDisk(folder / str(seed), random.Random(seed), **options) as disk:
            yield disk


class Crashed(NamedTuple):
    """One state: where it is, and before which step the power failed."""

    folder: Path
    step: str


class Crashes:
    """The states that a disk could be in, saved as its steps come; each of them once."""

    def __init__(self, disk: ForgetfulDisk, scratch: Path, seed: int, *, limit: int) -> None:
        self.taken = 0
        self._disk = disk
        self._scratch = scratch
        self._rng = random.Random(seed)
        self._limit = limit
        self._found: list[Crashed] = []
        self._seen: set[int] = set()
        scratch.mkdir()
        disk.on_step = self._look

    def now(self) -> None:
        """Save the states before the step that is not there yet."""
        self._look("the next step", "")

    def take(self) -> Iterator[Crashed]:
        """The states saved since the last time; each is removed when the next is asked for."""
        self._seen.clear()
        while self._found:
            crashed = self._found.pop(0)
            yield crashed
            shutil.rmtree(crashed.folder)

    def _look(self, step: str, path: str) -> None:
        for state in self._disk.states(self._limit, self._rng):
            mark = hash(durable.signature(self._disk._tree, state))
            if mark not in self._seen:
                self._seen.add(mark)
                self.taken += 1
                folder = self._scratch / str(self.taken)
                self._disk.save(state, folder)
                self._found.append(Crashed(folder, f"{step} {path}".strip()))


def explore(
    component: Component,
    seed: int,
    scratch: Path,
    *,
    states: int = STATES,
    write_back: float = 0.05,
) -> int:
    """Run one plan and judge all that its crashes leave; how many states that were.

    Raises:
        AssertionError: a promise is broken; says where.
    """
    rng = random.Random(seed)
    plan = component.plan(rng)
    with ForgetfulDisk(scratch / "live", random.Random(seed), write_back=write_back) as disk:
        crashes = Crashes(disk, scratch / "crashed", seed, limit=states)

        def judge(model: Any, action: Any) -> None:
            for crashed in crashes.take():
                with _said(seed, plan[:place], action, crashed.step):
                    _judge(component, crashed.folder, model, action, rng)

        place = 0
        handle = component.open(disk.root)
        model = component.check(handle, None, None)
        judge(model, ("open",))
        for place, action in enumerate(plan):
            before = model
            if action[0] in ("kill", "crash", "reopen"):
                if action[0] == "reopen":
                    component.close(handle)
                else:
                    getattr(disk, action[0])()
                handle = component.open(disk.root)
                with _said(seed, plan[:place], action, "it"):
                    model = component.check(handle, before, None)
            elif rng.random() < _KILLED:
                disk.cut_after(rng.randrange(12), power=False)
                with _said(seed, plan[:place], action, "a kill"):
                    try:
                        model = component.act(handle, before, action, disk)
                        disk.cut_after(None)
                    except PowerCut:
                        disk.kill()
                        handle = component.open(disk.root)
                        model = component.check(handle, before, action)
            else:
                with _said(seed, plan[:place], action, "nothing"):
                    model = component.act(handle, before, action, disk)
            judge(before, action)
            crashes.now()
            judge(model, None)
        disk.on_step = None
        component.close(handle)
        return crashes.taken


def _judge(component: Component, folder: Path, model: Any, action: Any, rng: random.Random) -> None:
    """Open a state, compare it, use it; and do the same when opening it is crashed as well."""
    again = rng.random() < _AGAIN
    used = rng.random() < _USED
    if again:
        _judge_again(component, folder, model, action, random.Random(rng.randrange(1 << 30)))
        return
    with _opened(component, folder) as handle:
        seen = component.check(handle, model, action)
        if used:
            seen = component.use(handle, seen)
    if used:
        with _opened(component, folder) as handle:
            component.check(handle, seen, None)


def _judge_again(
    component: Component, folder: Path, model: Any, action: Any, rng: random.Random
) -> None:
    scratch = folder.with_name(f"{folder.name}-again")
    with ForgetfulDisk(folder, rng) as disk:
        crashes = Crashes(disk, scratch, rng.randrange(1 << 30), limit=2)
        handle = component.open(folder)
        seen = component.check(handle, model, action)
        for crashed in crashes.take():
            _open_and_check(component, crashed, model, action)
        crashes.now()
        for crashed in crashes.take():  # what was seen must not change any more
            _open_and_check(component, crashed, seen, None)
        disk.on_step = None
        if rng.random() < _USED:
            seen = component.use(handle, seen)
            disk.crash()
            with _opened(component, folder) as handle:
                component.check(handle, seen, None)
        else:
            component.close(handle)
    shutil.rmtree(scratch)


def _open_and_check(component: Component, crashed: Crashed, model: Any, action: Any) -> None:
    with _said_again(crashed.step), _opened(component, crashed.folder) as handle:
        component.check(handle, model, action)


@contextlib.contextmanager
def _opened(component: Component, folder: Path) -> Iterator[Any]:
    handle = component.open(folder)
    try:
        yield handle
    finally:
        component.close(handle)


@contextlib.contextmanager
def _said(seed: int, before: list[Any], action: Any, step: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        raise AssertionError(
            f"seed {seed}: after {before}\nduring {action}, crashed before {step}: {exc!r}"
        ) from exc


@contextlib.contextmanager
def _said_again(step: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        raise AssertionError(f"then again, before {step}: {exc!r}") from exc


class InlineLoop(asyncio.SelectorEventLoop):
    """An event loop that runs the jobs of executors itself, at its next turn."""

    def __init__(self) -> None:
        super().__init__()
        self._cut: PowerCut | None = None

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()

        def run() -> None:
            try:
                future.set_result(func(*args))
            except PowerCut as cut:
                self._cut = cut
                self.stop()
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is the job's outcome
                future.set_exception(exc)

        self.call_soon(run)
        return future

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """The outcome of an awaitable.

        Raises:
            PowerCut: a job was cut off; what waits for it waits for ever.
        """
        task = self.create_task(awaitable)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if self._cut is not None:
            task._log_destroy_pending = False
            cut, self._cut = self._cut, None
            raise cut
        return task.result()
