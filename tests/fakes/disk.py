"""A disk that forgets at a power cut what was not fsynced, under code that runs unchanged.

    with ForgetfulDisk(root, random.Random(seed)) as disk:
        ...                     # the product works on real files below `root`
        disk.crash()            # the power fails: `root` is what may have survived
        ...                     # a new life opens `root`, under the same path

Theory of operation. The files are real, mapped pages included, in a folder that is best on tmpfs.
While a disk is entered, the calls of this process that change files below its root pass through
`file_calls`, and the disk keeps what of it is durable (`durable`, which states the rules by which a
power cut chooses). Content is looked at only by fsync and at a crash, in blocks of 4 KiB, and holes
cost nothing; so pages are claimed as holes here, and not as blocks.

Lives. `crash` builds the state in fresh inodes and puts it in the place of `root`. Descriptors and
maps of the old life go on working on the old inodes, which nobody finds any more; descriptors that
were left open are turned to /dev/null, so that a late `close` of one harms nobody and a file lock
is let go. The caller must not let the old life run on: what opens files by path reaches the new
one. `kill` ends a life like SIGKILL: the same, but nothing is forgotten.

A cut in the middle. Code between two calls cannot be stopped from outside, so `cut_after(n)` lets
the n-th next step raise `PowerCut` and decides there and then what survives: whatever `finally`
and `except` do until `crash` is called, in files or maps, is without effect.

Faults are planned: `fail` (any call, any error; a failed fsync forgets what it should have written,
as Linux does), `room_bytes` (then ENOSPC), `short_writes`. `counts` says what has happened.

Not seen: writes of other processes, and `mmap.flush`, which the product does not use.
"""

import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.fakes import durable, file_calls
from tests.fakes.durable import BLOCK, Change, Dirty, Inode, State, content_of, real

_MAX_FILES = 64
"""Python files that were opened, before those that are closed are dropped."""
_MAX_PENDING = 256
"""Changes of names that wait; the kernel would not keep them for longer than seconds either."""

STEPS = (
    *("create", "write", "truncate", "allocate", "link", "rename", "unlink", "mkdir", "rmdir"),
    *("sync", "sync_folder"),
)
"""What changes the disk or what of it is durable; a crash may come before any of them."""
READS = ("open", "read")


class PowerCut(BaseException):
    """The power failed, or the process died. Nobody but the world of the test may catch it."""


@dataclass
class _Fault:
    call: str
    error: int
    skip: int
    times: int


class ForgetfulDisk:
    """One disk, which is the folder `root`. What is there when it is entered is durable.

    Args:
        root: the folder; made when there is none. Folders beside it, with its name and a dot in
            front, are used as well.
        rng: chooses what survives, and all else that the disk may choose.
        write_back: how likely the kernel writes something by itself, at each step.
        clock_ns: gives the times of files; None leaves them to the system.

    Attributes:
        counts: how often each step, fault and crash happened.
        room_bytes: how much may still be claimed before the disk is full; None for no limit.
        short_writes: how likely a write takes only a part.
        on_step: called before each step with its name and the path, if any.
        is_off: a cut has come, and `crash` has not been called.
    """

    def __init__(
        self,
        root: Path,
        rng: random.Random,
        *,
        write_back: float = 0.0,
        clock_ns: Callable[[], int] | None = None,
    ) -> None:
        self.root = root.absolute()
        self.counts: Counter[str] = Counter()
        self.room_bytes: int | None = None
        self.short_writes = 0.0
        self.on_step: Callable[[str, str], None] | None = None
        self.is_off = False
        self.lock = threading.RLock()
        self._rng = rng
        self._write_back = write_back
        self._clock_ns = clock_ns
        self._beside = self.root.with_name(f".{self.root.name}.disk")
        self._faults: list[_Fault] = []
        self._cut_after: int | None = None
        self._cut_power = True
        self._decided = False
        self._numbers = 0
        self._fds: dict[int, tuple[int, int]] = {}
        self._files: list[Any] = []  # kept, so that a life that is cut off cannot lose one unclosed
        self._dead_fds: set[int] = set()

    def __repr__(self) -> str:
        state = "off" if self.is_off else f"{len(self._pending)} changes of names not durable"
        return f"<ForgetfulDisk {self.root} [{state}]>"

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._beside, ignore_errors=True)
        self._beside.mkdir()
        self._start_life()
        file_calls.install(self)
        return self

    def __exit__(self, *_: object) -> None:
        file_calls.uninstall(self)
        while self._dead_fds:
            real.close(self._dead_fds.pop())
        shutil.rmtree(self._beside, ignore_errors=True)

    # -- faults ---------------------------------------------------------------------------------

    def fail(self, call: str, error: int = errno.EIO, *, skip: int = 0, times: int = 1) -> None:
        """Let a call fail: the first `skip` of its kind pass, the next `times` raise `error`.

        Args:
            call: one of `STEPS` or `READS`. A "sync" that fails has written any of the file's
                blocks, and the others are dirty no more: a later one succeeds without them.
            error: number of the error.
            skip: how many pass before.
            times: how many fail.
        """
        if call not in STEPS + READS:
            raise ValueError(f"{call!r} is no step; use one of {', '.join(STEPS + READS)}")
        self._faults.append(_Fault(call, error, skip, times))

    def mend(self) -> None:
        """Forget all planned faults."""
        self._faults.clear()
        self.room_bytes, self.short_writes = None, 0.0

    def cut_after(self, steps: int | None, *, power: bool = True) -> None:
        """Let the power fail before the step that follows the next `steps`; None takes it back.

        Without `power` only the process dies there, and `kill` is to follow instead of `crash`.
        """
        self._cut_after, self._cut_power = steps, power

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """What is done meanwhile meets nothing that is planned."""
        faults, cut_after = self._faults, self._cut_after
        self._faults, self._cut_after = [], None
        try:
            yield
        finally:
            self._faults, self._cut_after = faults, cut_after

    # -- the ends of a life ---------------------------------------------------------------------

    def crash(self) -> None:
        """The power fails, if it did not yet: `root` is now what survived, for a new life."""
        with self.lock:
            if not self._decided:
                self._power_off()
            self.counts["crash"] += 1
            self._end_life()
            self.inodes = {}  # the old ones are nobody's any more
            real.rename(self.root, self._beside / "dead")
            real.rename(self._beside / "next", self.root)
            shutil.rmtree(self._beside)
            self._beside.mkdir()
            self._start_life()
            self.is_off = self._decided = False
            self._cut_after = None

    def kill(self) -> None:
        """The process dies and the kernel lives: descriptors are closed, nothing is forgotten."""
        with self.lock:
            self.counts["kill"] += 1
            self._end_life()
            self.is_off, self._cut_after = False, None

    def states(self, limit: int, rng: random.Random) -> list[State]:
        """What a power cut could leave now: all if they are few, or `limit` drawn; no two alike."""
        with self.lock:
            dirty = self._dirty()
            found = durable.legal_states(self._pending, dirty, limit, rng)
            return list({durable.signature(self._tree, state): state for state in found}.values())

    def save(self, state: State, target: Path) -> None:
        """Make one of `states` in a new folder, before the next step is done."""
        with self.lock:
            durable.build(self._tree, state, str(target), self._paths())

    # -- told by the calls ----------------------------------------------------------------------

    def step(self, call: str, path: object = "") -> None:
        """A call of `STEPS` or `READS` is about to be made: raise what it shall raise.

        Raises:
            PowerCut: the power fails before it, or has failed.
            OSError: a planned fault.
        """
        if self.is_off:
            raise PowerCut(f"{self.root} has no power")
        if call not in READS:
            if self.on_step is not None:
                self.on_step(call, os.fsdecode(path))
            if self._cut_after is not None:
                if self._cut_after == 0:
                    if self._cut_power:
                        self._power_off()
                    self.is_off = True
                    raise PowerCut(f"cut before {call} of {path!r}")
                self._cut_after -= 1
            if self._write_back and self._rng.random() < self._write_back:
                self._write_something_back()
        self.counts[call] += 1
        if call != "sync":
            self.raise_planned(call, path)

    def raise_planned(self, call: str, path: object = "") -> None:
        """Raise the fault that is planned for this call, if any."""
        for fault in self._faults:
            if fault.call == call:
                if fault.skip:
                    fault.skip -= 1
                    return
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                self.counts[f"{call} fails with {errno.errorcode[fault.error]}"] += 1
                raise OSError(fault.error, os.strerror(fault.error), os.fsdecode(path))

    def claim(self, wanted_bytes: int, *, partly: bool = False) -> int:
        """Take room for so many bytes; how many there is room for.

        Raises:
            OSError: ENOSPC.
        """
        room = self.room_bytes
        granted = wanted_bytes if room is None else min(wanted_bytes, room)
        if granted < wanted_bytes and not (partly and granted):
            self.counts["ENOSPC"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if partly and granted > 1 and self._rng.random() < self.short_writes:
            self.counts["short write"] += 1
            granted = self._rng.randrange(1, granted)
        if room is not None:
            self.room_bytes = room - granted
        return granted

    def new_inode(self, *, folder: bool) -> Inode:
        """An inode that was made just now: nothing of it is durable."""
        self._numbers += 1
        inode = Inode(self._numbers, names={} if folder else None, blocks={})
        if not folder:
            self._writable.append(inode)
        return inode

    def writable(self, inode: Inode, path: str, *, hidden: bool) -> None:
        """A file is about to be written through calls, or where they are not seen."""
        if inode.blocks is None:
            durable.before_writing(inode, path)
            self._writable.append(inode)
        inode.hidden_writes |= hidden

    def change(self, *parts: tuple[Inode, str, Inode | None]) -> None:
        """Names have changed."""
        self._pending.append(Change(parts))
        if len(self._pending) >= _MAX_PENDING:
            self._forget()

    def keep(self, inode: Inode, path: str, dir_fd: int | None) -> None:
        """A file is about to lose its last name, but a durable one may still name it."""
        inode.kept = self._beside / f"kept-{inode.number}"
        real.link(path, inode.kept, src_dir_fd=dir_fd, follow_symlinks=False)
        self._kept.append(inode)

    def sync(self, inode: Inode, path: str) -> None:
        """A file or folder is fsynced.

        Raises:
            OSError: a planned fault.
        """
        if inode.names is not None:
            self._commit(durable.changes_of(self._pending, inode))
            return
        try:
            self.raise_planned("sync", path)
        except OSError:
            self._forget_dirty_pages(inode, path)
            raise
        durable.synced(inode, path)

    def opened(self, fd: int, key: tuple[int, int]) -> None:
        """A descriptor was opened by `os.open`."""
        self._fds[fd] = key

    def closed(self, fd: int) -> None:
        """A descriptor is about to be closed."""
        self._fds.pop(fd, None)
        self._dead_fds.discard(fd)

    def opened_file(self, file: Any) -> None:
        """A Python file was opened."""
        if len(self._files) > _MAX_FILES:
            self._files = [each for each in self._files if not each.closed]
        self._files.append(file)

    def stamp(self, where: int | str) -> None:
        """A file was written."""
        if self._clock_ns is not None:
            now = self._clock_ns()
            real.utime(where, ns=(now, now))

    # -- inside ---------------------------------------------------------------------------------

    def _start_life(self) -> None:
        """Take what is there for durable."""
        self._pending: list[Change] = []
        self._kept: list[Inode] = []
        self._writable: list[Inode] = []
        self.inodes: dict[tuple[int, int], Inode] = {}
        self._device = real.stat(self.root).st_dev
        self._tree = self._learn(self.root)

    def _learn(self, folder: Path) -> Inode:
        found = Inode(self._numbers, names={})
        self._numbers += 1
        self.inodes[self._device, real.stat(folder).st_ino] = found
        with real.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    inode = self._learn(Path(entry.path))
                else:
                    inode = self.inodes.get((self._device, entry.inode()))
                    if inode is None:
                        inode = Inode(self._numbers)
                        self._numbers += 1
                        self.inodes[self._device, entry.inode()] = inode
                found.names[entry.name] = inode
        return found

    def _end_life(self) -> None:
        """Turn what is still open to /dev/null."""
        null = real.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd, key in self._fds.items():
            if file_calls.key_of(fd) == key:  # else it was closed past us, and is another's now
                real.dup2(null, fd, inheritable=False)
                self._dead_fds.add(fd)
        for file in self._files:
            if not file.closed:
                real.dup2(null, file.fileno(), inheritable=False)
                file.close()
        real.close(null)
        self._fds.clear()
        self._files.clear()

    def _power_off(self) -> None:
        """Decide what survives, and make it, before anybody can change anything."""
        state = durable.draw(self._pending, self._dirty(), self._rng)
        lost = len(self._pending) - len(state.changes)
        self.counts["names lost"] += lost
        self.save(state, self._beside / "next")
        self.is_off = self._decided = True

    def _paths(self) -> dict[Inode, str]:
        """Where the inodes are now."""
        found = {inode: str(inode.kept) for inode in self._kept}
        device, inodes = self._device, self.inodes
        folders = [str(self.root)]
        while folders:
            with real.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif inode := inodes.get((device, entry.inode())):
                        found[inode] = entry.path
        return found

    def _dirty(self) -> list[Dirty]:
        """The files that are not durable as they are."""
        paths = self._paths()
        self._writable = [
            inode for inode in self._writable if inode.blocks is not None and inode in paths
        ]
        found = []
        for inode in self._writable:
            live = content_of(paths[inode])
            blocks = durable.dirty_blocks(inode, live)
            if blocks or live.size != inode.size:
                found.append(Dirty(inode, live, blocks))
        return found

    def _commit(self, places: list[int]) -> None:
        for place in places:
            for folder, name, inode in self._pending[place].parts:
                if inode is None:
                    folder.names.pop(name, None)
                else:
                    folder.names[name] = inode
        gone = set(places)
        self._pending = [each for at, each in enumerate(self._pending) if at not in gone]

    def _forget(self) -> None:
        """Commit the oldest changes, and drop what no crash can bring back then."""
        self._commit(list(range(len(self._pending) // 2)))
        reachable = self._reachable()
        for inode in self._kept:
            if inode not in reachable:
                found = real.stat(inode.kept)
                self.inodes.pop((found.st_dev, found.st_ino), None)
                real.unlink(inode.kept)
        self._kept = [inode for inode in self._kept if inode in reachable]
        self._writable = [inode for inode in self._writable if inode in reachable]

    def _reachable(self) -> set[Inode]:
        found: set[Inode] = set()
        seen = [self._tree]
        named: dict[Inode, list[Inode]] = {}
        for change in self._pending:
            for folder, _, inode in change.parts:
                if inode is not None:
                    named.setdefault(folder, []).append(inode)
        while seen:
            inode = seen.pop()
            if inode not in found:
                found.add(inode)
                if inode.names is not None:
                    seen += inode.names.values()
                    seen += named.get(inode, ())
        return found

    def _forget_dirty_pages(self, inode: Inode, path: str) -> None:
        """What an fsync that fails does: any block was written, the others are dirty no more.

        Linux keeps a block that could not be written in memory until it drops it, and then the old
        one is read. Where a write to memory would not be seen the block is dropped at once: it may
        be written again with the same bytes, which makes it dirty again.
        """
        live = content_of(path)
        for number in durable.dirty_blocks(inode, live):
            if self._rng.random() < 0.5:
                durable.make_durable(inode, live, [number])
            elif inode.hidden_writes or self._rng.random() < 0.5:
                self._drop_block(inode, path, number, live.size)
            else:
                inode.stale[number] = live.blocks.get(number, durable.ZEROS)
        if live.size > inode.size and self._rng.random() < 0.5:
            inode.size = live.size

    def _drop_block(self, inode: Inode, path: str, number: int, size: int) -> None:
        block = (inode.blocks or {}).get(number, durable.ZEROS)
        fd = real.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            real.pwrite(fd, block[: size - number * BLOCK], number * BLOCK)
        finally:
            real.close(fd)

    def _write_something_back(self) -> None:
        """The kernel writes a block, or the oldest changes of names, by itself."""
        self.counts["write back"] += 1
        if self._pending and self._rng.random() < 0.5:
            self._commit(list(range(self._rng.randrange(len(self._pending)) + 1)))
            return
        dirty = self._dirty()
        if dirty:
            inode, live, blocks = self._rng.choice(dirty)
            inode.size = max(inode.size, live.size)
            if blocks:
                durable.make_durable(inode, live, [self._rng.choice(blocks)])
