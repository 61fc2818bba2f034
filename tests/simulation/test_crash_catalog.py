"""The catalog opens from whatever a power cut leaves of it, with all that it promised."""

import pytest

from memq.broker.catalog import Catalog
from memq.core.governor.topics import altered_topic, new_topic
from memq.core.topic import TopicConfig
from memq.errors import QueueError
from tests.simulation.crashes import PLANS, disks, explore

NAMES = ("a", "b", "c")
STEPS = ("create", "sync", "rename", "sync_folder")


class CatalogUnderTest:
    """A model is {name: (topic_id, batch ages)} and {topic_id: whether it must be doomed}."""

    def __init__(self):
        self.lives = 0

    def plan(self, rng):
        """Topics are made, changed and ended, as the broker does it, with faults."""
        actions = []
        for _ in range(20):
            kind = rng.choices(("create", "alter", "delete", "end"), (4, 4, 3, 2))[0]
            if kind == "end":
                actions.append((rng.choice(("reopen", "kill", "crash")),))
            else:
                self.lives += 1
                fault = (rng.choice(STEPS), rng.randrange(3)) if rng.random() < 0.3 else None
                actions.append((kind, rng.choice(NAMES), f"life{self.lives}", fault))
        return actions

    def open(self, folder):
        return Catalog(folder / "data" / "catalog")

    def close(self, catalog):
        pass

    def act(self, catalog, model, action, disk):
        kind, name, life, fault = action
        if (kind == "create") == (name in catalog):
            return model
        held = catalog.get(name).topic_id if name in catalog else ""
        if fault is not None:
            disk.fail(fault[0], skip=fault[1])
        try:
            getattr(self, "_" + kind)(catalog, name, life)
        except QueueError:
            return self._failed(model, action)
        finally:
            disk.mend()
        live, doomed = (dict(part) for part in model)
        if kind == "create":
            live[name] = (life, {200})
        elif kind == "alter":
            live[name] = (held, {age_of(life)})
        else:
            live.pop(name)
            doomed[held] = True
        return live, doomed

    def _failed(self, model, action):
        """Nobody was told how it ended: both ways are fine until it is done again."""
        kind, name, life, _ = action
        live, doomed = (dict(part) for part in model)
        if kind == "alter" and live[name] is not None:
            live[name] = (live[name][0], live[name][1] | {age_of(life)})
        else:
            live[name] = None
        return live, doomed

    def _create(self, catalog, name, life):
        topic = new_topic(
            TopicConfig.create(name), (), now_ms=1, topic_id=life, request_id="request"
        )
        catalog.announce(topic)
        catalog.save(topic)
        catalog.forget(topic)

    def _alter(self, catalog, name, life):
        options = {"batch_age": f"{age_of(life)}ms"}
        catalog.save(altered_topic(catalog.get(name), options, None, 0))

    def _delete(self, catalog, name, life):
        catalog.delete(name)

    def check(self, catalog, model, action):
        live, doomed = model or ({}, {})
        kind, acted, life, _ = action if action and len(action) == 4 else ("", "", "", None)
        seen = {}
        for name in NAMES:
            held = live.get(name, ())
            if name not in catalog:
                assert not held or (kind == "delete" and acted == name), f"{name} is lost"
                if held and kind == "delete":
                    assert held[0] in named(catalog.doomed()), f"{name} ended and is not doomed"
                continue
            topic = catalog.get(name)
            if held is None:
                pass
            elif held:
                ages = held[1] | ({age_of(life)} if kind == "alter" and acted == name else set())
                assert topic.topic_id == held[0]
                assert topic.config.batch_age_ms in ages
            else:
                assert (kind, acted, topic.topic_id) == ("create", name, life)
            seen[name] = (topic.topic_id, {topic.config.batch_age_ms})
        found = named(catalog.doomed())
        assert {life for life, must in doomed.items() if must} <= found
        assert not found & {topic_id for topic_id, _ in seen.values()}
        return seen, dict.fromkeys(found, True)

    def use(self, catalog, model):
        live, doomed = (dict(part) for part in model)
        for topic in catalog.doomed():
            catalog.forget(topic)
            doomed.pop(topic.topic_id)
        for name in NAMES:
            if name in live:
                self._delete(catalog, name, "")
                doomed[live.pop(name)[0]] = True
            self._create(catalog, name, f"used-{name}")
            live[name] = (f"used-{name}", {200})
        return live, doomed


def age_of(life):
    """A batch age that no other action gives."""
    return 1000 + int(life[4:])


def named(topics):
    """The topic ids of topics."""
    return {topic.topic_id for topic in topics}


@pytest.mark.parametrize("seed", range(PLANS))
def test_the_catalog_keeps_its_promises_through_any_crash(memory_path, seed):
    """Topics are there or gone as was said, and what is left to remove is known."""
    assert explore(CatalogUnderTest(), seed, memory_path) > 20


@pytest.mark.parametrize("kind", ["alter", "delete"])
def test_what_was_refused_does_not_hold_after_a_power_cut(memory_path, kind):
    """A change that could not be made durable, and was refused, is undone for good."""
    for disk in disks(memory_path, 20):
        component, catalog = CatalogUnderTest(), Catalog(disk.root / "catalog")
        component._create(catalog, "a", "life1")
        disk.fail("sync_folder")
        with pytest.raises(QueueError):
            getattr(component, "_" + kind)(catalog, "a", "life2")
        disk.crash()
        again = Catalog(disk.root / "catalog")
        assert again.get("a") == catalog.get("a")
        assert not again.doomed()


def test_what_a_failed_creation_left_is_withdrawn_before_its_data_is_removed(memory_path):
    """A topic whose own file was written, though its creation failed, does not come back empty."""
    for disk in disks(memory_path, 20):
        catalog = Catalog(disk.root / "catalog")
        topic = new_topic(TopicConfig.create("a"), (), now_ms=1, topic_id="life1", request_id="")
        catalog.announce(topic)
        disk.fail("sync_folder")
        with pytest.raises(QueueError):
            catalog.save(topic)
        catalog.doom(topic)
        catalog.withdraw(topic)
        catalog.forget(topic)
        disk.crash()
        again = Catalog(disk.root / "catalog")
        assert "a" not in again
        assert named(again.doomed()) <= {"life1"}


def test_a_withdrawal_that_failed_is_made_durable_by_the_next(memory_path):
    """A file that was removed when the disk failed does not come back behind its topic's data."""
    for disk in disks(memory_path, 20):
        component, catalog = CatalogUnderTest(), Catalog(disk.root / "catalog")
        component._create(catalog, "a", "life1")
        topic = catalog._topics.pop("a")  # as after a creation that failed behind its file
        catalog.announce(topic)
        catalog.doom(topic)
        disk.fail("sync_folder")
        with pytest.raises(QueueError):
            catalog.withdraw(topic)
        catalog.withdraw(topic)
        disk.crash()
        assert "a" not in Catalog(disk.root / "catalog")
