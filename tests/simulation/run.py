"""One run of a plan: machines, brokers that are started again, clients, faults, and the end.

A run has three parts. While it is *noisy*, everybody works and faults happen. Then it is *quiet*:
what was broken is mended, no more is written than was begun, and every promise must be kept without
excuse. At last everything is read to its end, audited, and the brokers stopped, one after another;
then the history is judged.
"""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from memq.core.audit.result import Verdict
from memq.core.clock import CLOCKS_DIFFER_MS as BROKERS_DIFFER_MS
from memq.errors import MemqError, OffsetOutOfRangeError
from memq.runtime.files import sync_folder
from memq.storage.keys import parse_object_key
from memq.storage.open import open_uri
from tests.fakes.disk import PowerCut
from tests.fakes.object_store import ObjectStoreModel
from tests.simulation import history as h
from tests.simulation import workload
from tests.simulation.broker import PORT, serve
from tests.simulation.checkers import check
from tests.simulation.cluster import SimCluster
from tests.simulation.kafka import CLUSTER, OF_KAFKA_USUALLY, STATE, be_usual, kafka_of, serves
from tests.simulation.plan import FAULTS, OF_CLUSTER, OF_KAFKA, OF_STORE, Reader
from tests.simulation.world import BEGIN_NS, MAX_DRIFT, World

if TYPE_CHECKING:
    from memq.client.producer.delivery import Delivery
    from memq.core.access.rules import Rule
    from memq.core.audit.result import AuditResult
    from memq.core.notification import Notification
    from tests.fakes.faults import Faults
    from tests.simulation.broker import SimBroker
    from tests.simulation.plan import Deed, Plan
    from tests.simulation.recording import Promised
    from tests.simulation.world import Machine, Process

QUIET_S = 150.0  # a client that is to end, once nothing fails any more, ends in so long
SAMPLE_US = 500_000  # between two looks at memory at least,
SAMPLES = 1_000  # and looks in a run at most, about
ORPHANS_S = 30.0  # between two looks, and until one may see what is new
CLUSTER_ORPHANS_S = BROKERS_DIFFER_MS / 1_000 + 60  # the longest upload deadline, twice
CLOCK_ERROR_US = 2_500_000
"""Retention counts from when a Batch was sealed, not published; faults may come in between."""
CLOCKS_DIFFER_MS = 3_000
"""What is written down follows a watermark that was told up to a second ahead, and a clock with
some delay; and it is written down a little before it is published, which may take long."""
LOOKS = 5  # at a topic that retention removes something from all the time
SETTLE_S = 45.0  # kernels and sessions have forgotten the faults after so long


class Result(NamedTuple):
    """What came out of a run.

    Attributes:
        violations: what does not hold, as sentences; none is what everybody wants.
        counts: how often each fault and deed happened.
        digest: of the trace.
        callbacks: how many there were.
        seconds: of simulated time.
    """

    plan: Plan
    violations: list[str]
    counts: dict[str, int]
    digest: str
    callbacks: int
    seconds: float
    history: h.History
    notes: list[str]


class Run:
    """A plan that is carried out; see the module's theory of operation.

    Attributes:
        quiet: faults have stopped, and producers end.
        over: all has been read, and everybody ends.
        brokers: the latest that has started on each machine.
        bootstrap: where clients find them.
        cluster: what they share, where there are several.
    """

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan = plan
        self.world = world
        self.history = world.history
        drift_us = int(plan.seconds * 1e6 * 1.5 * MAX_DRIFT)
        delaying = ("freeze", "zombie", "cut_kafka", *OF_KAFKA)
        delayed_s = sum(deed.amount for deed in plan.deeds if deed.what in delaying)
        self.history.clock_error_us = CLOCK_ERROR_US + drift_us + int(delayed_s * 1e6)
        if plan.clustered:
            steps_s = sum(abs(deed.amount) for deed in plan.deeds if deed.what == "step_clock")
            self.history.clocks_differ_ms = CLOCKS_DIFFER_MS + int((steps_s + delayed_s) * 1e3)
        self.topics = {topic.name: topic for topic in plan.topics}
        self.jobs: dict[str, int] = {}
        self.sessions: dict[str, int] = {}
        self.done: set[str] = set()
        self.rules: set[Rule] = set()  # that were acked
        self.quiet = self.over = False
        self.faulty_queue = any(deed.what == "queue_faults" for deed in plan.deeds)
        self.faulty_storage = any(deed.what == "storage_faults" for deed in plan.deeds)
        first = world.machine(plan.brokers[0], disk=True)
        clock_ns = self._true_ns if plan.clustered else first.wall_ns
        self.store = ObjectStoreModel(world, self._stored, clock_ns) if plan.store else None
        self.kafka = kafka_of(self) if plan.kafka else None
        self.bootstrap = ",".join(f"{name}:{PORT}" for name in plan.brokers)
        self.brokers: dict[str, SimBroker] = {}
        self.open_sends: dict[Delivery, h.Send] = {}
        self.open_calls: dict[Promised, None] = {}
        self.open_commits: dict[h.Commit, None] = {}
        self.topic_ids: dict[str, str] = {}
        self.publications: dict[tuple[str, str, int, int], h.Durable] = {}
        self.batches: dict[str, tuple[h.Durable, Notification]] = {}
        self.forgotten: set[tuple[str, str, int, int]] = set()
        self.begun: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.violations: list[str] = []
        self.notes: list[str] = []
        self._faulty: list[tuple[Faults, str]] = []
        self._machines = {name: world.machine(name, disk=True) for name in plan.brokers}
        for name, machine in self._machines.items():
            machine.on_cut = partial(self._power_was_cut, name)
        self._restart_s = 0.5
        self._retired: set[str] = set()
        self._to_join = {deed.who for deed in plan.deeds if deed.what == "join"}
        self.cluster = SimCluster(self) if plan.clustered else None
        self._clients: dict[str, Any] = {}
        self._deeds: list[Any] = []

    @property
    def now_us(self) -> int:
        """The true time."""
        return self.world.timeline.now_us

    def _true_ns(self) -> int:
        return BEGIN_NS + self.now_us * 1_000

    # -- what is noted ----------------------------------------------------------------------

    def noted(self, process: Process, what: str, error: BaseException | None) -> None:
        """An error that may be; kept for whoever looks into a run."""
        text = f"{type(error).__name__}: {error}"
        self.notes.append(f"{self.world.now_s:.6f} {process.name} {what}: {text[:300]}")

    def wrong(self, text: str) -> None:
        """Something that must not be."""
        self.violations.append(f"{self.world.now_s:.6f} {text}")

    def unreadable(self, process: Process, spec: Reader, error: MemqError) -> None:
        """A reader was told an error; that of data is never right."""
        self.noted(process, "reader", error)
        if error.code in ("data_loss", "corrupt_data", "protocol_error"):
            self.wrong(f"{process.name} cannot read {spec.topic}: {error}")

    def published(self, durable: h.Durable, notification: Notification) -> None:
        """A notification is durable."""
        self.history.add(durable)
        self.publications[durable[1:]] = durable
        self.batches[notification.batch_id] = durable, notification

    def deleted(self, key: str) -> None:
        """An object was deleted by the broker."""
        parsed = parse_object_key(key)
        if key not in self.begun or parsed is None:
            return
        durable, _ = self.batches.get(parsed.batch_id, (None, None))
        at = (parsed.topic, parsed.topic_id)
        place = (-1, -1, None) if durable is None else (*durable[3:], durable.time_us)
        served = durable is not None and self.kafka and self._is_there(*at)
        for name, broker in self.brokers.items() if served else ():
            queue = getattr(broker.context.queue, "_inner", broker.context.queue)
            if self._machines[name].up and serves(queue, durable[1:]):
                self.wrong(f"{name} serves a notification whose object was deleted: {durable}")
        self.history.add(h.Removal(self.now_us, "object", *at, *place, self.begun[key]))

    def _is_there(self, topic: str, topic_id: str) -> bool:
        """Whether no broker knows it deleted; its objects go before all have heard of that."""
        for name, broker in self.brokers.items():
            found = [each.topic for each in broker.topics.hosted() if each.topic.name == topic]
            known = topic_id in [each.topic_id for each in found]
            if self._machines[name].up and broker.topics.names() and not known:
                return False
        return True

    def audited(self, process: Process, start_us: int, topic_id: str, result: AuditResult) -> None:
        """A topic was audited."""
        lost = [
            h.Run(*each.name, *run)
            for each in result.producers
            for run in (*each.lost, *each.damaged)
        ]
        folder = str(self.world.folder)  # another in each run
        wrong = tuple(str(each).replace(folder, "") for each in result.damage)
        verdict = {Verdict.CLEAN: h.CLEAN, Verdict.PARTLY: h.PARTLY}.get(result.verdict, h.UNCLEAN)
        here = (process.name, start_us, self.now_us, h.OK, result.topic, topic_id)
        self.history.add(h.Audit(*here, verdict=verdict, lost=tuple(lost), wrong=wrong))

    def object_at(self, uri: str) -> bytes:
        """What the storage holds under a URI, by no request of anybody.

        Raises:
            ObjectNotFoundError: nothing.
        """
        if self.store is not None:
            return self.store.held(uri)
        storage, key = open_uri(uri)
        return bytes(storage.get(key))

    def destroy(self, uri: str) -> bool:
        """Take an object away behind the system's back; False when there is none."""
        if self.store is not None:
            return self.store.destroy(uri)
        path = Path(urlsplit(uri).path)
        (machine,) = self._machines.values()
        with machine.disk.undisturbed():  # nothing that is planned meets this
            if not path.exists():
                return False
            path.unlink()
            sync_folder(path.parent)
        return True

    def faulty(self, faults: Faults, kind: str) -> None:
        """Faults of a life of the broker, to be counted."""
        self._faulty.append((faults, kind))

    # -- brokers ----------------------------------------------------------------------------

    def start_broker(self, name: str) -> None:
        """Start a broker, if it is down and not gone for good."""
        machine = self._machines[name]
        if not machine.up and not self.over and name not in self._retired | self._to_join:
            process = machine.start()
            process.loop.create_task(serve(self, process))

    def _start_brokers(self) -> None:
        for name in self._machines:
            self.start_broker(name)

    def broker_is_up(self, process: Process) -> None:
        """It serves; the clocks of its life are what everybody sees."""
        self.world.trace.add(f"{self.now_us} {process.name} is up")

    def broker_failed_to_start(self, process: Process, error: BaseException) -> None:
        """It could not start; a supervisor tries again."""
        self.noted(process, "start", error)
        # A start that waited for Kafka or ZooKeeper may end a little later than what it waited for.
        begun_us = process.loop._began_us if self.plan.kafka else self.now_us
        if (self.history.quiet and begun_us >= self.history.quiet[0].time_us) or not isinstance(
            error, MemqError
        ):
            self.wrong(f"{process.name} cannot start: {type(error).__name__}: {error}")
        process.machine.stopped(h.STOPPED, "could not start")
        self.world.timeline.after(1_000_000, self.start_broker, process.machine.name)

    def broker_failed(self, process: Process, error: BaseException) -> None:
        """An error that nothing expected has stopped it."""
        if not isinstance(error, PowerCut):
            self.wrong(f"{process.name}: unexpected {type(error).__name__}: {error}")
        process.machine.stopped(h.STOPPED, "unexpected error")
        self.world.timeline.after(500_000, self.start_broker, process.machine.name)

    def _power_was_cut(self, name: str) -> None:
        self.world.happened("cut_power_inside")
        self.world.timeline.after(int(self._restart_s * 1e6), self.start_broker, name)

    def _stored(self, key: str) -> None:
        self.written.setdefault(key, self.now_us)

    # -- clients ----------------------------------------------------------------------------

    def _start_client(self, spec: Any) -> None:
        machine = self.world.machine(spec.name)
        if machine.up or self.over or (self.quiet and spec.name in self.done):
            return
        process = machine.start()
        work = workload.read if isinstance(spec, Reader) else workload.produce
        self._task(process, work(self, process, spec))

    def _task(self, process: Process, work: Any) -> Any:
        """Run a coroutine of a client, which must not raise."""

        def ended(task: Any) -> None:
            if not task.cancelled() and task.exception() is not None:
                self.wrong(f"{process.name}: {task.exception()!r}")

        task = process.loop.create_task(work)
        task.add_done_callback(ended)
        return task

    def _deed(self, deed: Deed, number: int) -> None:
        """Have a client of its own do something."""
        process = self.world.machine(f"d{number}").start()
        task = self._task(process, workload.carry_out(self, process, deed))
        self._deeds.append(task)
        task.add_done_callback(lambda _: process.loop.call_soon(process.machine.stopped, h.STOPPED))

    # -- faults -----------------------------------------------------------------------------

    def _fault(self, deed: Deed) -> None:
        if self.quiet:
            return
        if deed.what in OF_STORE:
            self._of_store(deed)
        elif deed.what in OF_KAFKA:
            self._of_kafka(deed)
        elif deed.what in OF_CLUSTER and deed.what not in ("zombie", "join", "retire"):
            getattr(self.cluster, deed.what)(deed)
        elif deed.what not in ("storage_faults", "queue_faults"):  # planned for each life
            getattr(self, f"_{deed.what}")(deed)

    def _falls(self, deed: Deed) -> Machine | None:
        """The machine whose broker a deed takes down; None when it is down already."""
        machine = self._machines[deed.who]
        if not machine.up:
            return None
        self.world.happened(deed.what)
        if self.cluster is not None and self.cluster.governs(deed.who):
            self.world.happened("governor_falls")
        return machine

    def _kill(self, deed: Deed) -> None:
        machine = self._falls(deed)
        if machine is not None:
            end = machine.cut_power if deed.what == "cut_power" else machine.kill
            end()
            self.world.timeline.after(int(deed.amount * 1e6), self.start_broker, deed.who)

    _cut_power = _kill

    def _cut_power_inside(self, deed: Deed) -> None:
        machine = self._machines[deed.who]
        if machine.up:
            machine.disk.cut_after(int(deed.amount))

    def _stop(self, deed: Deed) -> None:
        broker = self.serving(deed.who)
        if broker is None:
            return
        machine = self._falls(deed)
        process = machine.process

        def stopped(_: object) -> None:
            if process.alive:
                machine.stopped(h.STOPPED)
                self.world.timeline.after(int(deed.amount * 1e6), self.start_broker, deed.who)

        process.loop.create_task(broker.stop()).add_done_callback(stopped)

    def serving(self, name: str) -> SimBroker | None:
        """The broker on a machine, if it is up and ready."""
        broker = self.brokers.get(name)
        if broker is None or not self._machines[name].up or not broker.context.ready:
            return None
        return broker

    def _join(self, deed: Deed) -> None:
        """A broker is added."""
        if deed.who in self._to_join:
            self._to_join.discard(deed.who)
            self.world.happened("join")
            self.start_broker(deed.who)

    def _retire(self, deed: Deed) -> None:
        """A broker is taken away for good."""
        if deed.who in self._to_join:
            return
        self._retired.add(deed.who)
        if deed.amount or self.serving(deed.who) is None:
            self._kill(deed)
        else:
            self._stop(deed)

    def _freeze(self, deed: Deed) -> None:
        machine = self._falls(deed)
        if machine is not None:
            machine.process.loop.freeze()
            self.world.timeline.after(int(deed.amount * 1e6), machine.process.loop.thaw)

    _zombie = _freeze
    """For longer than its session lasts."""

    def _freeze_client(self, deed: Deed) -> None:
        machine = self.world.machine(deed.who)
        if machine.up:
            self.world.happened("freeze_client")
            machine.process.loop.freeze()
            self.world.timeline.after(int(deed.amount * 1e6), machine.process.loop.thaw)

    def _cut_network(self, deed: Deed) -> None:
        self.world.happened("cut_network")
        self.world.network.cut(deed.broker, deed.who, int(deed.amount * 1e6))

    def _reset(self, deed: Deed) -> None:
        if self.world.network.reset(deed.broker, deed.who):
            self.world.happened("reset")

    def _choppy(self, deed: Deed) -> None:
        self.world.happened("choppy")
        self.world.network.choppy = deed.amount

    def _slow_network(self, deed: Deed) -> None:
        self.world.happened("slow_network")
        least, most = self.world.network.delay_us
        self.world.network.delay_us = least, min(int(most * deed.amount), 400_000)

    def _disk_full(self, deed: Deed) -> None:
        self.world.happened("disk_full")
        disk = self._machines[deed.who].disk
        disk.room_bytes = 0

        def free() -> None:
            disk.room_bytes = None

        self.world.timeline.after(int(deed.amount * 1e6), free)

    def _disk_fails(self, deed: Deed) -> None:
        rng = self.world.rng(f"fault/{deed.at_s}")
        self.world.happened("disk_fails")
        for _ in range(int(deed.amount)):
            call = rng.choice(("sync", "write", "create", "link", "rename", "mkdir", "sync_folder"))
            self._machines[deed.who].disk.fail(call, skip=rng.randint(0, 5))

    def _slow_disk(self, deed: Deed) -> None:
        machine = self._machines[deed.who]
        if machine.up:
            self.world.happened("slow_disk")
            machine.process.loop.slowness = deed.amount

    def _of_store(self, deed: Deed) -> None:
        self.world.happened(deed.what)
        slow = deed.what == "store_slow"
        name, value = {
            "store_slow": ("slowness", deed.amount),
            "store_stalls": ("stalls", 0.2),
            "store_storm": ("refuses", 0.5),
            "store_loses": ("loses", 0.3),
            "store_away": ("away", _away(deed)),
        }[deed.what]
        usual = {"slowness": 1.0, "away": ""}.get(name, 0.0)
        self._has(self.store, name, value, usual, 4.0 if slow else deed.amount)

    def _of_kafka(self, deed: Deed) -> None:
        self.world.happened(deed.what)
        values = {
            "kafka_slow": {"latency_s": (0.05, 1.0)},
            "kafka_away": {"away": _away(deed)},
            "kafka_loses": {"loses": 0.3},
            "kafka_drops": {"drops": 0.3},
            "kafka_refuses": {"refuses": 0.5},
            # And who follows hears of it later still, or never.
            "kafka_marks_late": {
                "marker_s": (0.0, 3.0),
                "told_s": None if _is_odd(deed) else (0.0, 3.0),
            },
        }[deed.what]
        for name, value in values.items():
            self._has(self.kafka, name, value, OF_KAFKA_USUALLY[name], deed.amount)

    def _has(self, service: Any, name: str, value: Any, usual: Any, seconds: float) -> None:
        """Let a service be so for a while."""
        setattr(service, name, value)
        self.world.timeline.after(int(seconds * 1e6), setattr, service, name, usual)

    def _step_clock(self, deed: Deed) -> None:
        self.world.happened("step_clock")
        self._machines[deed.who].wall_offset_us += int(deed.amount * 1e6)
        self.history.add(h.ClockStep(self.now_us, int(deed.amount * 1e3)))

    def _kill_client(self, deed: Deed) -> None:
        machine = self.world.machine(deed.who)
        if machine.up:
            self.world.happened("kill_client")
            machine.kill()
            spec = self._clients[deed.who]
            self.world.timeline.after(int(deed.amount * 1e6), self._start_client, spec)

    def _mend(self) -> None:
        """The end of all faults."""
        self.quiet = True
        world = self.world
        for faults, _ in self._faulty:
            faults._plan = ()
        self.faulty_queue = self.faulty_storage = False
        for machine in self._machines.values():
            machine.disk.mend()
            machine.disk.cut_after(None)
        if self.store is not None:
            self.store.mend()
        if self.kafka is not None:
            be_usual(self.kafka)
        if self.cluster is not None:
            self.cluster.mend()
        for machine in world.machines.values():
            if machine.up:
                machine.process.loop.thaw()
                machine.process.loop.slowness = 1.0
        world.network.delay_us, world.network.choppy = (50, 5_000), 0.05
        world.network.mend()
        self._to_join.clear()
        self._start_brokers()
        for spec in self._clients.values():
            self._start_client(spec)
        settled_us = self.now_us + int(SETTLE_S * 1e6)
        self.history.add(h.Quiet(self.now_us, settled_us))

    # -- the course of it -------------------------------------------------------------------

    def carry_out(self) -> None:
        """Do all of it."""
        plan, timeline = self.plan, self.world.timeline
        self._start()
        for spec in (*plan.producers, *plan.readers):
            self._clients[spec.name] = spec
            timeline.after(int(spec.start_s * 1e6), self._start_client, spec)
        for number, deed in enumerate(plan.deeds):
            what = self._fault if deed.what in FAULTS else self._deed
            args = (deed,) if deed.what in FAULTS else (deed, number)
            timeline.after(int(deed.at_s * 1e6), what, *args)
        timeline.sleep(plan.seconds)
        self._mend()
        self._wait(lambda: self.done >= {each.name for each in plan.producers}, "producers end")
        self._wait(lambda: all(task.done() for task in self._deeds), "deeds end")
        self._read_all()
        self._finish()

    def _start(self) -> None:
        self._start_brokers()
        process = self.world.machine("admin").start()

        async def create_all() -> None:
            for topic in self.topics:
                await workload.create(self, process, topic)

        process.loop.run(create_all(), timeout_s=20)
        process.machine.stopped(h.STOPPED)
        self._sample()

    def _sample(self) -> None:
        """Look at the memory of brokers, again and again."""
        if self.over:
            return
        for name, machine in self._machines.items():
            broker = self.serving(name)
            if broker is not None:
                memory, life = broker.context.memory, machine.process.name
                used, bound = memory.used_bytes, memory.limit_bytes
                self.history.add(h.Memory(self.now_us, life, "Messages", used, bound))
        every_us = max(SAMPLE_US, int(self.plan.seconds * 1e6 / SAMPLES))
        self.world.timeline.after(every_us, self._sample)

    def _wait(self, until: Any, what: str, seconds: float = QUIET_S) -> bool:
        found = self.world.timeline.run(until, deadline_us=self.now_us + int(seconds * 1e6))
        if not found:
            waiting = [
                f"{loop.name}: {', '.join(loop.waiting())}" for loop in self.world.timeline.loops
            ]
            self.wrong(f"{what}: not within {seconds:g} s without faults; {'; '.join(waiting)}")
        return found

    def _read_all(self) -> None:
        """Read every topic to its end."""
        tasks = []
        for number, topic in enumerate(self.topics):
            process = self.world.machine(f"final{number}").start()
            spec = Reader(name=f"final{number}", topic=topic)
            reading = workload._assigned(self, process, spec, until_end=True)
            tasks.append(self._task(process, reading))
        self._wait(lambda: all(task.done() for task in tasks), "final reads")
        if self.cluster is not None:
            # A broker that was taken away may have left a transaction open in Kafka, and one that
            # governs waits for those that it knows.
            self.world.timeline.sleep(max(0, self.history.quiet[0].settled_us - self.now_us) / 1e6)
        for deed in ("observe", "ask", "audit", *(["rules"] if self.plan.asks else [])):
            self._all_topics(deed)

    def _all_topics(self, what: str) -> None:
        process = self.world.machine(f"last-{what}").start()

        async def all_of_them() -> None:
            for name, topic in self.topics.items():
                for left in reversed(range(LOOKS if topic.brief else 1)):
                    try:
                        await workload.DEEDS[what](self, process, name)
                        break
                    except OffsetOutOfRangeError:  # retention came by in the middle of it
                        if not left:
                            raise

        task = process.loop.create_task(all_of_them())
        if self._wait(task.done, f"the last {what}"):
            try:
                task.result()
            except MemqError as exc:
                self.wrong(f"the last {what} failed: {exc!r}")

    def _finish(self) -> None:
        if self.cluster is not None:
            unsettled = self.cluster.unsettled
            if not self._wait(lambda: not unsettled(), "the cluster settles"):
                self.wrong(f"the cluster is not settled: {'; '.join(unsettled())}")
        else:
            self._wait(self._nothing_is_doomed, "deleted topics are removed")
        self.over = True
        for name, machine in self._machines.items():
            broker = self.brokers.get(name)
            if machine.up and broker is not None:
                task = machine.process.loop.create_task(broker.stop())
                if self._wait(task.done, "the broker stops", 60) and not task.result():
                    self.wrong("the broker did not drain, though nothing failed")
                if self.cluster is not None:
                    machine.stopped(h.STOPPED)
        self._look_what_is_left()
        for unfinished in (*self.open_sends.values(), *self.open_commits):
            self.history.add(unfinished)
        for call in self.open_calls:
            if call._process.alive and call._deadline_us < self.now_us:
                self.history.add(call._call(None))
        self.history.end_us = self.now_us
        for process, message, error in self.world.errors:
            self.wrong(f"{process}: {message}: {type(error).__name__}: {error}")
        for faults, kind in self._faulty:
            self.world.counts[kind] += sum(faults.struck.values())

    def _nothing_is_doomed(self) -> bool:
        """Whether a broker serves, and nothing is left of deleted topics; it may yet restart."""
        broker = self.serving(*self._machines)
        return broker is not None and not broker.topics._catalog.doomed()

    def _look_what_is_left(self) -> None:
        """Write down all objects and all folders of the queue that are there in the end."""
        held = {each.batch_id for each in self.history.batches}
        for key in self._all_keys():
            parsed = parse_object_key(key)
            if parsed is None:
                continue
            named = parsed.batch_id in held
            # It is old enough to go only at the next look for orphans; and in a cluster, where
            # another broker may just be about to publish it, by the slowest of clocks.
            old_s = ORPHANS_S + (CLUSTER_ORPHANS_S if self.plan.clustered else 0)
            written_us = self.written.get(key, 0) + int(old_s * 1e6)
            at = (parsed.topic, parsed.topic_id, written_us, named)
            self.history.add(h.Left(self.now_us, "object", key, *at))
        for queue_topic in self._all_queue_topics():
            at = (queue_topic, *h.split(queue_topic))
            self.history.add(h.Left(self.now_us, "queue", *at, 0, True))

    def _all_keys(self) -> list[str]:
        """Keys of all objects that there are, and of whatever else lies among them."""
        if self.store is not None:
            return sorted(self.store.objects)
        (machine,) = self._machines.values()
        folder = machine.folder / "objects"
        found = folder.glob("*/*/topics/**/*")
        return sorted(str(path.relative_to(folder)) for path in found if path.is_file())

    def _all_queue_topics(self) -> list[str]:
        """Topics of which the queue has something."""
        if self.kafka is not None:
            topics = sorted(self.kafka.partitions())
            return [each.removeprefix(CLUSTER) for each in topics if each != STATE]
        (machine,) = self._machines.values()
        return [path.name for path in sorted(machine.folder.glob("queue/topics/*"))]


def _is_odd(deed: Deed) -> bool:
    return int(deed.amount * 10) % 2 == 1


def _away(deed: Deed) -> str:
    """How a service is away: it says nothing, or refuses."""
    return "silent" if _is_odd(deed) else "refuse"


def run(plan: Plan) -> Result:
    """Carry out a plan in a world of its own."""
    enabled = gc.isenabled()
    gc.disable()  # `World` collects, always at the same step
    try:
        with World(plan.seed) as world:
            this = Run(plan, world)
            try:
                with contextlib.nullcontext() if this.store is None else this.store.entered():
                    this.carry_out()
            except Exception as exc:  # noqa: BLE001 - the simulation's own end is a finding as well
                this.wrong(f"the run ended by {type(exc).__name__}: {exc}")
            this.violations += judge(this.history)
            return Result(
                plan=plan,
                violations=this.violations,
                counts=dict(world.counts),
                digest=world.trace.digest(),
                callbacks=world.trace.count,
                seconds=world.now_s,
                history=this.history,
                notes=this.notes,
            )
    finally:
        if enabled:
            gc.enable()


def judge(history: h.History) -> list[str]:
    """What is wrong with a history."""
    return [str(violation) for violation in check(history)]
