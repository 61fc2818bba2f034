"""Machines, their clocks and disks, and the processes that live and die on them."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from memq.runtime.system import Runtime
from tests.fakes.disk import ForgetfulDisk, PowerCut
from tests.fakes.loop import ProcessLoop, Timeline, Trace, sealed
from tests.fakes.network import Network, SimServer
from tests.simulation.history import CRASHED, STARTED, History, Life

if TYPE_CHECKING:
    from collections.abc import Callable

BEGIN_NS = 1_750_000_000_000_000_000  # by the wall clocks, when the simulation begins
MAX_DRIFT = 2e-4  # of a monotonic clock: a bad quartz, not trimmed by NTP
COLLECT_EVERY = 8  # runs
_MEMORY = "/dev/shm"  # noqa: S108 - the disks of the simulation are made of it
SCRATCH = _MEMORY if os.access(_MEMORY, os.W_OK) else None


class World:
    """One run: the time, the network, machines. Use it with `with`.

    Args:
        seed: of all chance; every use has a stream of its own, so that one more draw in one of them
            does not shift another.

    Attributes:
        history: what happened, for the checkers.
        counts: how often each fault happened.
        errors: what was raised where nobody caught it: process, message and error.
    """

    def __init__(self, seed: object) -> None:
        self.seed = seed
        self.trace = Trace()
        self.timeline = Timeline(self.rng("schedule"), self.trace)
        self.network = Network(self.timeline, self.rng("network"))
        self.history = History()
        self.counts: Counter[str] = Counter()
        self.errors: list[tuple[str, str, BaseException | None]] = []
        self.machines: dict[str, Machine] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self._bury)
            folder = tempfile.mkdtemp(prefix="memq-sim-", dir=SCRATCH)
            self.folder = Path(folder)
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            undo.enter_context(sealed())
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _bury(self) -> None:
        """Take down all processes, the dead ones too, where nobody minds what their ends do."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for loop in self.timeline.loops:
                loop.bury()
            self.timeline.loops.clear()
            self.machines.clear()
            _collect()
        finally:
            sys.unraisablehook = hook

    def rng(self, label: str) -> random.Random:
        """A stream of chance of its own."""
        return random.Random(f"{self.seed}/{label}")

    def machine(self, name: str, *, disk: bool = False) -> Machine:
        """The machine of that name; made when there is none, with a disk if it shall have one."""
        if name not in self.machines:
            machine = self.machines[name] = Machine(self, name)
            if disk:
                machine.disk = self._stack.enter_context(
                    ForgetfulDisk(
                        machine.folder, self.rng(f"disk/{name}"), clock_ns=machine.wall_ns
                    )
                )
        return self.machines[name]

    @property
    def now_us(self) -> int:
        """The true time, microseconds since the beginning."""
        return self.timeline.now_us

    @property
    def now_s(self) -> float:
        """The true time, in seconds."""
        return self.timeline.now_us / 1e6

    def happened(self, fault: str) -> None:
        """Count a fault."""
        self.counts[fault] += 1
        self.trace.add(f"{self.timeline.now_us} - {fault}")


_buried = 0


def _collect() -> None:
    """Collect what dead worlds leave; where what is kept is frozen, only now and then."""
    global _buried  # noqa: PLW0603 - it counts for the interpreter, as its garbage does
    _buried += 1
    if not gc.get_freeze_count() or _buried % COLLECT_EVERY == 0:
        gc.collect()


class Machine:
    """A machine: an address, a clock, perhaps a disk, and up to one process.

    Attributes:
        name: its address as well.
        folder: of the data of its programs.
        disk: what `folder` is on; None for plain files.
        process: that runs on it, or ran last.
        wall_offset_us: how far its wall clock is off the truth.
        on_cut: called when its power has failed in the middle of something.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process: Process | None = None
        self.disk: ForgetfulDisk | None = None
        self.wall_offset_us = 0
        self.lives = 0
        self.on_cut: Callable[[], None] = lambda: None
        self.folder = world.folder / name
        self.folder.mkdir()

    def __repr__(self) -> str:
        return f"<Machine {self.name} [{'up' if self.up else 'down'} | life {self.lives}]>"

    @property
    def up(self) -> bool:
        """Whether a process lives on it."""
        return self.process is not None and self.process.loop.alive

    def wall_ns(self) -> int:
        """Its wall clock."""
        return BEGIN_NS + (self.world.timeline.now_us + self.wall_offset_us) * 1_000

    def start(self) -> Process:
        """A new process."""
        assert not self.up
        self.lives += 1
        self.process = Process(self)
        self.world.network.up(self.name)
        if self.lives > 1:
            self.world.network.returned(self.name)
        self._record(STARTED)
        return self.process

    def stopped(self, event: str, detail: str = "") -> None:
        """The process has ended by itself."""
        assert self.process is not None
        self.process.loop.crash()
        self.world.network.kill(self.process.loop)
        if self.disk is not None:
            self.disk.kill()
        self._record(event, detail)

    def kill(self) -> None:
        """The process dies at once, in whatever it does; the machine and its files stay."""
        self.stopped(CRASHED, "kill")

    def cut_power(self) -> None:
        """The machine dies: nobody is told, and the disk forgets what was not durable."""
        assert self.process is not None
        self.process.loop.crash()
        self.world.network.vanish(self.process.loop)
        self.world.network.down(self.name)
        if self.disk is not None:
            self.disk.crash()
        self._record(CRASHED, "power cut")

    def _record(self, event: str, detail: str = "") -> None:
        world = self.world
        world.history.add(Life(world.now_us, f"{self.name}/{self.lives}", event, detail))
        world.trace.add(f"{world.now_us} {self.name}/{self.lives} {event} {detail}")


class Process:
    """One life of a program on a machine.

    Attributes:
        machine: where it runs.
        name: of this life.
        loop: its event loop.
        runtime: its clocks, chance and threads.
    """

    def __init__(self, machine: Machine) -> None:
        world = machine.world
        self.machine = machine
        self.name = f"{machine.name}/{machine.lives}"
        chance, names = world.rng(f"chance/{self.name}"), world.rng(f"ids/{self.name}")
        self.loop = SimLoop(
            machine,
            self.name,
            uptime_us=int(chance.uniform(1e6, 1e11)),
            rate=1 + chance.uniform(-MAX_DRIFT, MAX_DRIFT),
        )
        self.runtime = Runtime(
            mono_s=self.loop.time,
            wall_ns=machine.wall_ns,
            random=chance.random,
            token_hex=lambda count: names.randbytes(count).hex(),
            threads=self.loop.threads,
            boot_s=self.loop.time,
        )

    @property
    def alive(self) -> bool:
        """Whether it runs, or is frozen."""
        return self.loop.alive


class SimLoop(ProcessLoop):
    """The event loop of a process that is on the network."""

    def __init__(self, machine: Machine, name: str, **clock: Any) -> None:
        world = machine.world

        def on_error(message: str, error: BaseException | None) -> None:
            if not isinstance(error, PowerCut):
                world.errors.append((name, message, error))

        super().__init__(world.timeline, name, on_error=on_error, **clock)
        self._machine = machine
        self._network = world.network

    def _turn(self) -> None:
        super()._turn()
        self._look_at_the_power()

    def carry_out(self, step: Callable[[], None]) -> None:
        """A job of a thread."""
        with contextlib.suppress(PowerCut):
            step()
        self._look_at_the_power()

    def _look_at_the_power(self) -> None:
        machine = self._machine
        if machine.disk is not None and machine.disk.is_off and self.alive:
            machine.cut_power()
            machine.on_cut()

    async def create_server(self, protocol_factory, host=None, port=None, **options):
        """Listen on this machine."""
        server = SimServer(self._network, self, protocol_factory, self._machine.name, port)
        if options.get("start_serving", True):
            await server.start_serving()
        return server

    async def create_connection(self, protocol_factory, host=None, port=None, **options):
        """Connect to a machine by its name."""
        outcome = self.create_future()
        self._network.dial(self, self._machine.name, host, port, outcome)
        transport = await outcome
        protocol = protocol_factory()
        transport.attach(protocol)
        return transport, protocol
