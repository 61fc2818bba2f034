"""The embedded queue opens from whatever a power cut leaves of it, with all that it promised."""

import contextlib
import copy
import random

import pytest

from memq.core.queue import Publication
from memq.errors import PublishUncertainError, QueueError
from memq.queue.embedded.queue import EmbeddedQueue
from tests.fakes.disk import ForgetfulDisk, PowerCut
from tests.simulation.crashes import PLANS, STATES, InlineLoop, explore

TOPICS = ("a", "b")
PARTITIONS = 2
GROUPS = ("g", "h")


@pytest.fixture
def loop():
    """Where the queue runs."""
    found = InlineLoop()
    yield found
    found.close()


class Payload(str):
    """The name of a payload, such as <7:100>, short enough to read in a failure."""

    __slots__ = ()

    def encoded(self):
        size = int(self.partition(":")[2][:-1])
        return self.encode() * (size // len(self) + 1)

    @classmethod
    def decoded(cls, data):
        name = cls(data[: data.index(b">") + 1].decode())
        assert data == name.encoded()
        return name


class QueueUnderTest:
    """A model is {topic: (entries by partition, starts, uncertain payloads, offsets by group)}.

    An entry is its payload; the model of a partition holds those that were truncated as well.
    """

    def __init__(self, loop):
        self.run = loop.run
        self.owned = set()
        self.published = 0

    def plan(self, rng):
        """Topics made and removed; most of it publishing, committing and truncating."""
        actions = [("create", "a")]
        for _ in range(14):
            kind = rng.choices(
                ("publish", "commit", "truncate", "topic", "group", "fails", "full", "end"),
                (6, 4, 3, 2, 1, 2, 1, 2),
            )[0]
            topic = rng.choice(TOPICS)
            if kind in ("publish", "fails", "full"):
                payloads = [
                    (rng.randrange(PARTITIONS), self._named(rng.choice((4, 100, 700, 3900))))
                    for _ in range(rng.choice((1, 1, 3, 12)))
                ]
                actions.append((kind, topic, payloads, rng.randrange(4)))
                if kind != "publish":
                    actions.append(("fence", topic))
            elif kind == "commit":
                offsets = {p: rng.random() for p in range(PARTITIONS) if rng.random() < 0.8}
                actions.append(("commit", topic, rng.choice(GROUPS), offsets))
            elif kind == "truncate":
                actions.append(("truncate", topic, rng.randrange(PARTITIONS), rng.random()))
            elif kind == "topic":
                actions.append((rng.choice(("create", "delete")), topic))
            elif kind == "group":
                actions.append(("delete_group", topic, rng.choice(GROUPS)))
            else:
                actions.append((rng.choice(("reopen", "kill", "crash")),))
        return actions

    def _named(self, size):
        """A payload: its name in brackets, filled up to a size."""
        self.published += 1
        return Payload(f"<{self.published}:{size}>")

    def open(self, folder):
        async def made():
            return EmbeddedQueue(folder / "queue", page_bytes=4096, index_page_items=8)

        self.owned.clear()
        return self.run(made())

    def close(self, queue):
        with contextlib.suppress(PublishUncertainError):
            self.run(queue.close())

    # -- actions --------------------------------------------------------------------------------

    def act(self, queue, model, action, disk):
        after = copy.deepcopy(model)
        kind, topic, *rest = action
        if topic in model or kind == "create":
            if kind == "fails":
                disk.fail("sync", skip=rest[1])
            if kind == "full":
                disk.room_bytes = rest[1] * 1000
            try:
                self.run(getattr(self, "_" + kind)(queue, after, topic, *rest))
            finally:
                disk.mend()
        return after

    async def _create(self, queue, model, topic):
        await queue.create_topic(topic, PARTITIONS)
        if topic not in model:
            model[topic] = new_topic()

    async def _delete(self, queue, model, topic):
        await queue.delete_topic(topic)
        del model[topic]
        self.owned.discard(topic)

    async def _own(self, queue, topic):
        if topic not in self.owned:
            await queue.fence(topic, 0)
            self.owned.add(topic)

    async def _publish(self, queue, model, topic, payloads, _=0):
        await self._own(queue, topic)
        offsets = await queue.publish(
            topic, 0, [Publication(p, data.encoded(), 1) for p, data in payloads]
        )
        for (partition, data), offset in zip(payloads, offsets, strict=True):
            assert offset == len(model[topic]["entries"][partition])
            model[topic]["entries"][partition].append(data)

    async def _fails(self, queue, model, topic, payloads, _):
        try:
            await self._publish(queue, model, topic, payloads)
        except PublishUncertainError:
            self.owned.discard(topic)
            model[topic]["uncertain"] = payloads
        except QueueError:
            pass

    _full = _fails

    async def _fence(self, queue, model, topic):
        await queue.fence(topic, 0)
        self.owned.add(topic)
        model[topic] = await self._seen(queue, topic, model[topic], model[topic]["uncertain"])

    async def _truncate(self, queue, model, topic, partition, part):
        found = model[topic]
        offset = int(part * (len(found["entries"][partition]) + 1))
        await queue.truncate(topic, partition, offset)
        found["starts"][partition] = max(found["starts"][partition], offset)

    async def _commit(self, queue, model, topic, group, parts):
        await self._own(queue, topic)
        offsets = offsets_at(model[topic], parts)
        await queue.commit(group, topic, offsets)
        held = model[topic]["groups"].setdefault(group, {})
        held.update(offsets)

    async def _delete_group(self, queue, model, topic, group):
        await self._own(queue, topic)
        await queue.delete_group(group, topic)
        model[topic]["groups"].pop(group, None)

    # -- promises -------------------------------------------------------------------------------

    def check(self, queue, model, action):
        return self.run(self._check(queue, model or {}, action or ("",)))

    async def _check(self, queue, model, action):
        names = await queue.topics()
        kind, topic, *_rest = (*action, "", "")
        must = set(model) - ({topic} if kind == "delete" else set())
        may = set(model) | ({topic} if kind == "create" else set())
        assert must <= set(names) <= may
        return {
            name: await self._check_topic(
                queue, name, model.get(name, new_topic()), action if name == topic else ("",)
            )
            for name in names
        }

    async def _check_topic(self, queue, name, promised, action):
        kind, *rest = action
        publishing = kind in ("publish", "fails", "full")
        starts = list(promised["starts"])
        if kind == "truncate":
            partition, part = rest[1:]
            offset = int(part * (len(promised["entries"][partition]) + 1))
            starts[partition] = max(starts[partition], offset)
        uncertain = rest[1] if publishing else promised["uncertain"]
        seen = await self._seen(queue, name, promised | {"starts": starts}, uncertain)
        groups = promised["groups"]
        for group in GROUPS:
            held = await queue.committed(group, name)
            before = groups.get(group, {})
            allowed = [before]
            if kind == "commit" and rest[1] == group:
                allowed.append(before | offsets_at(promised, rest[2]))
            if kind == "delete_group" and rest[1] == group:
                allowed.append({})
            assert held in allowed, f"group {group} of {name} has {held}, not one of {allowed}"
            seen["groups"].pop(group, None)
            if group in await queue.groups(name):
                seen["groups"][group] = held
        return seen

    async def _seen(self, queue, name, promised, uncertain):
        """What the partitions of a topic hold, which is all that was promised."""
        seen = new_topic() | {"groups": copy.deepcopy(promised["groups"])}
        for partition in range(PARTITIONS):
            start, end = await queue.offsets(name, partition)
            known = promised["entries"][partition]
            assert start <= promised["starts"][partition], "entries are gone that were not removed"
            assert end >= len(known), (
                f"the end of {name}/{partition} went from {len(known)} to {end}"
            )
            extra = [data for to, data in uncertain if to == partition]
            entries = await queue.fetch(
                name, partition, start, max_entries=10_000, max_bytes=1 << 30
            )
            assert [entry.offset for entry in entries] == list(range(start, end))
            found = [Payload.decoded(entry.payload) for entry in entries]
            assert found == (known + extra)[start:end], f"{name}/{partition} from {start} differs"
            seen["entries"][partition] = known + extra[: end - len(known)]
            seen["starts"][partition] = start
        return seen

    def use(self, queue, model):
        self.owned.clear()
        after = copy.deepcopy(model)
        for topic in list(after):
            payloads = [(p, Payload("<used:900>")) for p in range(PARTITIONS)] * 2
            self.run(self._publish(queue, after, topic, payloads))
            self.run(self._commit(queue, after, topic, "g", {0: 0.5}))
            self.run(self._truncate(queue, after, topic, 0, 0.9))
        for topic in TOPICS:
            if topic in after:
                self.run(self._delete(queue, after, topic))
                break
        self.run(self._create(queue, after, "a"))
        return after


def offsets_at(topic, parts):
    """Offsets of partitions, from how far each lies between 0 and the end."""
    return {p: int(part * (len(topic["entries"][p]) + 1)) for p, part in parts.items()}


def new_topic():
    """The model of a topic that was made just now."""
    return {
        "entries": [[] for _ in range(PARTITIONS)],
        "starts": [0] * PARTITIONS,
        "uncertain": [],
        "groups": {},
    }


@pytest.mark.parametrize("seed", range(PLANS))
def test_the_queue_keeps_its_promises_through_any_crash(loop, memory_path, seed):
    """Topics are whole, entries and offsets unchanged, commits whole, whatever a crash leaves."""
    assert explore(QueueUnderTest(loop), seed, memory_path) > 10


class OneLife(QueueUnderTest):
    """A topic is made, used, deleted and recreated."""

    def plan(self, rng):
        payloads = [(0, self._named(700)) for _ in range(9)]
        commit = ("commit", "a", "g", {0: 0.5, 1: 0.0})
        publish = ("publish", "a", payloads, 0)
        return [("create", "a"), publish, commit, ("delete", "a"), ("create", "a")]


def test_a_topic_appears_and_vanishes_as_a_whole(loop, memory_path):
    """Whatever a power cut leaves of making or deleting a topic, all of it is there or nothing."""
    assert explore(OneLife(loop), 0, memory_path, states=2 * STATES, write_back=0.0) > 50


@pytest.mark.parametrize("action", ["create", "delete", "commit"])
def test_what_opening_shows_after_a_kill_stays_so(loop, memory_path, action):
    """Whatever a killed process had not synced, a power cut after the next start takes nothing."""
    component = QueueUnderTest(loop)
    for seed in range(150):
        steps = seed % 25
        with ForgetfulDisk(memory_path / str(seed), random.Random(seed)) as disk:
            queue = component.open(disk.root)
            model = component.act(queue, {}, ("create", "a"), disk)
            model = component.act(queue, model, ("publish", "a", [(0, Payload("<1:9>"))], 0), disk)
            disk.cut_after(steps, power=False)
            last = {"create": ("create", "b"), "delete": ("delete", "a")}.get(
                action, ("commit", "a", "g", {0: 0.9})
            )
            try:
                component.act(queue, model, last, disk)
                disk.cut_after(None)
            except PowerCut:
                pass
            disk.kill()
            shown = component.check(component.open(disk.root), model, last)
            disk.crash()
            again = component.open(disk.root)
            component.check(again, shown, None)
            component.close(again)
