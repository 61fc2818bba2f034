"""What is done in one run, as plain data drawn from a seed.

A plan holds everything that is decided before the run; chance inside the run (delays, what a power
cut leaves) comes from streams of the same seed. So a plan that is made smaller, by leaving deeds,
readers or producers out, is run with the same seed, and one that still fails says what matters.

Not every run has every fault: each seed switches some kinds on (swarm testing), for where
everything happens at once, one fault hides the effect of another. And most runs are small: what
breaks a protocol takes few Messages in an unlucky order, and many small runs meet more orders than
a few big ones. One in `BUSY` is big all the same, for what only a crowd shows.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

import msgspec

_DOWN_S = (0.0, 0.1, 1.0, 4.0)  # until it is started again
_FROZEN_S = (0.5, 2.0, 6.0, 12.0, 40.0)
_SLOWER = (3.0, 10.0, 40.0)
_LASTS_S = (1.0, 4.0, 8.0)
_AWAY_S = (0.5, 0.6, 2.0, 2.1, 6.0, 6.1)  # some of them silently
_ALWAYS = (0.0,)
FAULTS: dict[str, tuple[float, ...]] = {
    "kill": _DOWN_S,
    "cut_power": _DOWN_S,
    "cut_power_inside": (0, 1, 2, 5, 10, 30, 100),  # steps of the disk until the power fails
    "stop": _DOWN_S,
    "freeze": _FROZEN_S,
    "cut_network": (0.2, 2.0, 8.0, 35.0),
    "reset": _ALWAYS,
    "choppy": (0.2, 0.6, 0.9),  # how likely bytes come in pieces
    "slow_network": _SLOWER,
    "disk_full": (0.5, 2.0, 5.0),
    "disk_fails": (1, 1, 2, 5),  # calls
    "slow_disk": _SLOWER,
    "storage_faults": _ALWAYS,
    "queue_faults": _ALWAYS,
    "step_clock": (0.3, 2, 30, 600, 7_200, 90_000, 8 * 86_400),  # forwards or back
    "kill_client": _DOWN_S,
    "freeze_client": _FROZEN_S,
    "store_slow": _SLOWER,
    "store_stalls": _LASTS_S,
    "store_storm": _LASTS_S,
    "store_loses": _LASTS_S,
    "store_away": _AWAY_S,
    "kafka_slow": _LASTS_S,
    "kafka_away": (*_AWAY_S, 25.0, 25.1),
    "kafka_loses": _LASTS_S,
    "kafka_drops": _LASTS_S,
    "kafka_refuses": _LASTS_S,
    "kafka_marks_late": _LASTS_S,
    "zookeeper_away": (0.5, 2.0, 5.0, 15.0),
    "zookeeper_slow": (10.0, 100.0, 400.0),
    "zookeeper_loses": (1, 1, 2, 4),  # changes
    "zookeeper_resets": _ALWAYS,
    "cut_zookeeper": (1.0, 2.5, 4.0, 9.0, 9.1),
    "zookeeper_expires": _ALWAYS,
    "cut_kafka": (*_LASTS_S, 20.0),
    "zombie": (3.5, 5.0, 9.0),
    "drain": (0.5, 3.0, 8.0),  # until it is withdrawn
    "rebalance": _ALWAYS,
    "join": _ALWAYS,
    "retire": (0, 1),  # whether it is killed
}
"""Kinds of faults, each with what its amount may be: seconds, if nothing else is said, or how many
times slower. Each must have happened in a campaign."""

DEEDS = ("create_again", "alter", "create", "range", "observe", "ask", "audit", "lose")
"""What else is done beside producing and consuming."""


GROUP = "g"  # of all readers that are in one
BROKERS = ("b", "b2", "b3")
BUSY = 12
IN_STORE = 0.4  # of all runs
OF_STORE = tuple(kind for kind in FAULTS if kind.startswith("store_"))
IN_KAFKA = 0.3  # likewise
IN_ACCESS = 0.4  # of runs have brokers that ask
OF_KAFKA = tuple(kind for kind in FAULTS if kind.startswith("kafka_"))
IN_CLUSTER = 0.3  # likewise; then there are a store and Kafka as well
OF_CLUSTER = tuple(FAULTS)[list(FAULTS).index("zookeeper_away") :]
OF_ONE_BROKER = ("kill", "cut_power", "stop", "freeze", "step_clock")
"""What happens to brokers of a cluster more often than to one that is alone."""
OF_SERVICES = (*OF_STORE, *OF_KAFKA, *OF_CLUSTER)


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, with its options as users write them."""

    name: str
    typed: bool = False
    options: dict[str, str | int | bool] = {}

    @property
    def brief(self) -> bool:
        """Whether retention removes anything while a run lasts."""
        return self.options.get("retention", "7d") != "7d"


class Producer(msgspec.Struct, frozen=True, kw_only=True):
    """A producer, which writes bursts of Messages until the run is quiet.

    Attributes:
        stable: its jobs have an id of their own, and begin anew under it after a crash.
        by_key: its records are placed by their key.
        burst: Messages that are written one after the other; in a job, all of its Messages.
        records: most records of a Message.
        pause_s: mean time between bursts.
    """

    name: str
    topic: str
    stable: bool = False
    by_key: bool = False
    acks: str = "all"
    in_flight: int = 5
    burst: int = 3
    records: int = 3
    pause_s: float = 1.0
    start_s: float = 0.0


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer.

    Attributes:
        group: that it is a member of; empty for one that reads all partitions by itself.
        auto: commits by itself.
        stay_s: mean time until it leaves and another comes; 0 to stay.
        stall: how likely it stops polling for longer than it may, after a Batch.
    """

    name: str
    topic: str
    group: str = ""
    auto: bool = False
    stay_s: float = 0.0
    stall: float = 0.0
    start_s: float = 0.0


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, or something else that is done once.

    Attributes:
        who: a machine or a topic.
        amount: seconds, steps, or how much of it, as the kind has it.
        broker: at the other end, for what is between a client and a broker.
    """

    at_s: float
    what: str
    who: str = ""
    amount: float = 0.0
    broker: str = "b"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run.

    Attributes:
        seconds: until the faults stop; then everything is read to its end.
        retention_s: between two looks of the broker at what has expired.
        idle_s: between two looks of the broker at timeouts, disks and groups, which are most of
            what an idle one does; 0 for as often as it does.
        park: how long a Message waits for a place in its write partition.
        store: Batches are in an object store, and not on the disk of the broker.
        kafka: Notifications are in Kafka, and not on the disk of the broker.
        brokers: their machines; several are a cluster. One that joins is there from then on.
        asks: brokers ask clients who they are, and somebody is there who may do nothing.
    """

    seed: int
    seconds: float
    topics: tuple[Topic, ...]
    producers: tuple[Producer, ...]
    readers: tuple[Reader, ...]
    deeds: tuple[Deed, ...]
    retention_s: float = 5.0
    idle_s: float = 0.0
    park: str = "10s"
    store: bool = False
    kafka: bool = False
    brokers: tuple[str, ...] = ("b",)
    asks: bool = False

    @property
    def clustered(self) -> bool:
        """Whether the brokers share a ZooKeeper."""
        return len(self.brokers) > 1


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"{seed}/plan")
    busy = rng.randrange(BUSY) == 0
    seconds = rng.choice((10, 12, 16, 24) if busy else (10, 10, 11))
    many = (1, 1, 2, 2, 3) if busy else (1, 1, 1, 1, 2)
    topics = tuple(_topic(rng, number) for number in range(rng.choice(many)))
    names = [topic.name for topic in topics]
    producers = tuple(
        _producer(rng, number, names, seconds, busy=busy)
        for number in range(rng.randint(1, 4 if busy else 2))
    )
    producers = tuple(_keyed(random.Random(f"{seed}/keys"), producers, topics))
    readers = tuple(_readers(rng, names, seconds, busy=busy))
    deeds = _deeds(rng, topics, producers, readers, seconds)
    of_cluster = random.Random(f"{seed}/cluster")
    brokers = BROKERS[: of_cluster.choice((2, 2, 3)) if of_cluster.random() < IN_CLUSTER else 1]
    clustered = len(brokers) > 1
    if clustered:
        deeds = [*_placed(of_cluster, deeds, brokers), *_of_cluster(of_cluster, brokers, seconds)]
        for _ in range(of_cluster.choice((0, 3, 8))):  # what moves is told by several
            who = of_cluster.choice(names)
            deeds.append(Deed(at_s=of_cluster.uniform(0.5, seconds), what="ask", who=who))
    of_store = random.Random(f"{seed}/store")
    store = of_store.random() < IN_STORE or clustered
    if store:
        deeds += _of_service(of_store, OF_STORE, seconds)
    of_kafka = random.Random(f"{seed}/kafka")
    kafka = of_kafka.random() < IN_KAFKA or clustered
    if kafka:
        deeds += _of_service(of_kafka, OF_KAFKA, seconds)
    of_access = random.Random(f"{seed}/access")
    asks = of_access.random() < IN_ACCESS
    for what in (("intrude",) * 2 + ("rule",) * of_access.choice((1, 4))) if asks else ():
        at_s, who = of_access.uniform(0.5, seconds), of_access.choice(names)
        deeds.append(Deed(at_s=at_s, what=what, who=who))
    return Plan(
        seed=seed,
        seconds=seconds,
        topics=topics,
        producers=producers,
        readers=readers,
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at_s)),
        retention_s=rng.choice((1.0, 5.0)),
        park=rng.choice(("50ms", "500ms", "10s")),
        store=store,
        kafka=kafka,
        brokers=brokers,
        asks=asks,
    )


def _topic(rng: random.Random, number: int) -> Topic:
    write = rng.choice((1, 1, 2, 3))
    brief = rng.random() < 0.15
    options: dict[str, str | int | bool] = {
        "write_partitions": write,
        "read_partitions": rng.choice((1, 2, 3, 4)),
        "ordering": rng.choice(("none", "none", "producer")),
        "batch_age": rng.choice(("20ms", "100ms", "200ms", "500ms")),
        "batch_messages": rng.choice((2, 5, 10_000)),
        "ring_slots": rng.choice((1, 2, 8)),
        "upload_deadline": rng.choice(("2s", "5s", "30s")),
        "dedup_window": "10s" if brief else "1h",
        "retention": rng.choice(("10s", "15s")) if brief else "7d",
        "audited": rng.random() < 0.6,
    }
    if brief:
        options["upload_deadline"] = "2s"
    return Topic(name=f"t{number}", typed=rng.random() < 0.2, options=options)


def _producer(
    rng: random.Random, number: int, topics: list[str], seconds: float, *, busy: bool
) -> Producer:
    return Producer(
        name=f"p{number}",
        topic=rng.choice(topics),
        stable=rng.random() < 0.35,
        acks=rng.choice(("all", "all", "all", "all", "all", "1", "0")),
        in_flight=rng.choice((1, 2, 5, 16)),
        burst=rng.choice((1, 3, 8, 20) if busy else (1, 2, 4)),
        records=rng.choice((1, 3, 10) if busy else (1, 3)),
        pause_s=rng.choice((0.3, 1.0, 3.0) if busy else (1.0, 2.0, 4.0)),
        start_s=rng.uniform(0, seconds / 3),
    )


def _keyed(
    rng: random.Random, producers: Iterable[Producer], topics: Iterable[Topic]
) -> Iterator[Producer]:
    """The producers, some of which place their records by key."""
    typed = {topic.name for topic in topics if topic.typed}
    for each in producers:
        by_key = rng.random() < 0.3 and each.topic not in typed
        yield msgspec.structs.replace(each, by_key=by_key)


def _readers(
    rng: random.Random, topics: list[str], seconds: float, *, busy: bool
) -> Iterator[Reader]:
    for number in range(rng.choice((0, 1, 1, 2) if busy else (0, 0, 1))):
        yield Reader(name=f"r{number}", topic=rng.choice(topics), start_s=rng.uniform(0, seconds))
    if rng.random() < 0.75:
        topic, auto = rng.choice(topics), rng.random() < 0.5
        for number in range(rng.choice((1, 2, 2, 3) if busy else (1, 2, 2))):
            yield Reader(
                name=f"g{number}",
                topic=topic,
                group=GROUP,
                auto=auto,
                stay_s=rng.choice((0.0, 0.0, 3.0, 8.0)),
                stall=rng.choice((0.0, 0.0, 0.03)),
                start_s=rng.uniform(0, seconds * 0.7),
            )


def _deeds(
    rng: random.Random,
    topics: tuple[Topic, ...],
    producers: tuple[Producer, ...],
    readers: tuple[Reader, ...],
    seconds: float,
) -> list[Deed]:
    found: list[Deed] = []
    clients = [each.name for each in (*producers, *readers)]
    kinds = [kind for kind in FAULTS if kind not in OF_SERVICES and rng.random() < 0.3]
    # A Message that the network holds back for longer than its topic remembers is a new one.
    longest_cut_s = 8.0 if any(topic.brief for topic in topics) else 60.0
    for kind in kinds:
        for _ in range(rng.choice((1, 1, 2, 3))):
            at_s = rng.uniform(0.2, seconds)
            who = rng.choice(clients) if kind in _OF_CLIENTS else "b"
            amount = _amount(rng, kind)
            if kind == "cut_network":
                amount = min(amount, longest_cut_s)
            found.append(Deed(at_s=at_s, what=kind, who=who, amount=amount))
    for kind, chance in (
        ("create_again", 0.15),
        ("alter", 0.2),
        ("create", 0.1),
        ("range", 0.3),
        ("observe", 0.3),
        ("ask", 0.4),
        ("audit", 0.15),
        ("lose", 0.06),
    ):
        if rng.random() < chance:
            for _ in range(rng.choice((1, 2, 3))):
                who = rng.choice(topics).name
                found.append(Deed(at_s=rng.uniform(0.5, seconds), what=kind, who=who))
    return sorted(found, key=lambda deed: deed.at_s)


def _of_service(rng: random.Random, kinds: Iterable[str], seconds: float) -> Iterator[Deed]:
    for kind in kinds:
        if rng.random() < 0.4:
            for _ in range(rng.choice((1, 1, 2))):
                amount = rng.choice(FAULTS[kind])
                yield Deed(at_s=rng.uniform(0.2, seconds), what=kind, amount=amount)


def _placed(rng: random.Random, deeds: Iterable[Deed], brokers: Sequence[str]) -> Iterator[Deed]:
    """The same deeds, at any of several brokers."""
    for deed in deeds:
        who = rng.choice(brokers) if deed.who == "b" else deed.who
        yield msgspec.structs.replace(deed, who=who, broker=rng.choice(brokers))


def _of_cluster(rng: random.Random, brokers: Sequence[str], seconds: float) -> Iterator[Deed]:
    """What happens to a cluster; brokers that share one die more often."""
    for kind in (*OF_ONE_BROKER, *OF_CLUSTER):
        if rng.random() >= _CHANCES.get(kind, 0.25):
            continue
        for _ in range(1 if kind in ("join", "retire") else rng.choice((1, 1, 2, 3))):
            # Not the first: somebody is to be there from the beginning to the end.
            who = rng.choice(brokers[1:] if kind in ("join", "retire") else brokers)
            at_s, amount = rng.uniform(0.2, seconds), _amount(rng, kind)
            yield Deed(at_s=at_s, what=kind, who=who, amount=amount)


_CHANCES = {"join": 0.15, "retire": 0.15, "zombie": 0.3, "drain": 0.2, "rebalance": 0.1}

_OF_CLIENTS = frozenset({"kill_client", "freeze_client", "cut_network", "reset"})


def _amount(rng: random.Random, kind: str) -> float:
    amount = rng.choice(FAULTS[kind])
    return amount * rng.choice((-1, 1)) if kind == "step_clock" else amount


def speed(seed: int) -> Plan:
    """One broker, four producers and two consumers, and nothing goes wrong: for measuring."""
    topic = Topic(name="t0", options={"write_partitions": 2, "read_partitions": 2, "audited": True})
    producers = [
        Producer(name=f"p{number}", topic="t0", burst=2, pause_s=2.0) for number in range(4)
    ]
    readers = [Reader(name="r0", topic="t0"), Reader(name="g0", topic="t0", group="g", auto=True)]
    return calm(seed, 300.0, topic, producers, readers)


def year(seed: int) -> Plan:
    """A year of a topic that somebody writes to every few hours; the broker dies now and then."""
    options = {"read_partitions": 2, "retention": "30d", "batch_age": "500ms"}
    topic = Topic(name="t0", options=options)
    day_s, seconds = 86_400.0, 365 * 86_400.0
    producers = [
        Producer(name=f"p{number}", topic="t0", stable=True, burst=3, pause_s=day_s / 4)
        for number in range(2)
    ]
    rng = random.Random(f"{seed}/year")
    deeds = [
        Deed(at_s=rng.uniform(day_s, seconds), what=what, who="b", amount=_amount(rng, what))
        for what in ("kill", "cut_power", "stop")
        for _ in range(12)
    ]
    deeds += [
        Deed(at_s=number * 30 * day_s, what=what, who="t0")
        for number in range(1, 12)
        for what in ("observe", "ask", "audit", "range")
    ]
    return msgspec.structs.replace(
        calm(seed, seconds, topic, producers, []),
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at_s)),
        retention_s=3_600.0,
        idle_s=60.0,
    )


def calm(
    seed: int, seconds: float, topic: Topic, producers: list[Producer], readers: list[Reader]
) -> Plan:
    """A run in which nothing goes wrong."""
    return Plan(
        seed=seed,
        seconds=seconds,
        topics=(topic,),
        producers=tuple(producers),
        readers=tuple(readers),
        deeds=(),
    )
