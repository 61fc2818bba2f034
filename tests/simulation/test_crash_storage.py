"""Local storage holds whole objects and no others, whatever a power cut leaves of it."""

import pytest

from memq.errors import ObjectNotFoundError, StorageError
from memq.storage.local import LocalStorage
from tests.simulation.crashes import PLANS, disks, explore

KEYS = ("a/1", "a/2", "b/c/1", "b/c/2", "d")
STEPS = ("create", "write", "sync", "link", "sync_folder", "unlink", "mkdir")


class StorageUnderTest:
    """A model is ({key: whether it must be there}); a key's object is always the same bytes."""

    def plan(self, rng):
        """Puts, some of them again or with a fault, and deletions."""
        actions = []
        for _ in range(16):
            kinds = ("put", "put_fails", "delete", "delete_fails", "clean", "end")
            (kind,) = rng.choices(kinds, (6, 3, 3, 2, 1, 2))
            if kind == "end":
                actions.append((rng.choice(("reopen", "kill", "crash")),))
            else:
                actions.append((kind, rng.choice(KEYS), rng.choice(STEPS), rng.randrange(3)))
        return actions

    def open(self, folder):
        return LocalStorage(folder / "objects")

    def close(self, storage):
        pass

    def act(self, storage, model, action, disk):
        kind, key, step, skip = action
        kind, _, fails = kind.partition("_")
        if kind == "clean":
            storage.clean_temporary(older_than_ms=-(10**15), now_ms=0)
            return model
        disk.short_writes = skip / 3
        if fails:
            disk.fail(step, skip=skip)
        others = {name: must for name, must in model.items() if name != key}
        try:
            if kind == "delete":
                storage.delete(key)
                return others
            storage.put(key, [content(key)[:5000], content(key)[5000:]], timeout_s=1000)
        except StorageError:
            if kind == "delete":
                return others | ({key: False} if key in model else {})
            return {key: False} | model
        finally:
            disk.mend()
        return model | {key: True}

    def check(self, storage, model, action):
        model = model or {}
        kind, acted, *_ = (*(action or ()), "", "")
        seen = {}
        for key in KEYS:
            try:
                assert storage.get(key).to_pybytes() == content(key), f"{key} is not whole"
                seen[key] = True
            except ObjectNotFoundError:
                deleted = kind.startswith("delete") and acted == key
                assert deleted or not model.get(key), f"{key} is lost"
                continue
            put = kind.startswith("put") and acted == key
            assert put or key in model, f"{key} is there"
        assert {found.key: found.size_bytes for found in storage.list("")} == {
            key: len(content(key)) for key in seen
        }
        # What is seen need not be durable. What a list has left out does not come back.
        return {key: bool(model.get(key)) and acted != key for key in seen}

    def use(self, storage, model):
        for key in KEYS:
            storage.put(key, [content(key)], timeout_s=1000)
        storage.delete("a/2")
        return dict.fromkeys(KEYS, True) | {"a/2": False}


def content(key):
    """The bytes of an object."""
    return (f"<{key}>" * 4000)[: 3 + 4000 * len(key)].encode()


@pytest.mark.parametrize("seed", range(PLANS))
def test_storage_keeps_its_promises_through_any_crash(memory_path, seed):
    """An object is there in whole from the end of its put on, and never in part."""
    assert explore(StorageUnderTest(), seed, memory_path) > 20


def test_a_put_that_found_its_object_there_is_durable(memory_path):
    """A put that is tried again after its folder could not be synced makes the name durable."""
    for disk in disks(memory_path, 30):
        storage = LocalStorage(disk.root)
        disk.fail("sync_folder", skip=2)
        with pytest.raises(StorageError):
            storage.put("a/1", [b"x" * 9000], timeout_s=1000)
        storage.put("a/1", [b"x" * 9000], timeout_s=1000)
        disk.crash()
        assert LocalStorage(disk.root).get("a/1").to_pybytes() == b"x" * 9000


def test_a_root_of_a_process_that_was_killed_survives(memory_path):
    """An object below a root whose maker was killed before it could sync it stays."""
    for disk in disks(memory_path, 10):
        (disk.root / "objects").mkdir()
        disk.kill()
        LocalStorage(disk.root / "objects").put("a/b", [b"x" * 10_000], timeout_s=10)
        disk.crash()
        assert bytes(LocalStorage(disk.root / "objects").get("a/b")) == b"x" * 10_000
