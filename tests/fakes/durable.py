"""What of a folder would survive a power cut: the model under the disk that forgets.

Theory of operation. Two things are told apart for every inode: what it *is* (the real file or
folder, as the process sees it) and what of it is *durable*. They differ by

- names: each change of names (create, link, rename, unlink, mkdir, rmdir) waits in one line until
  an fsync of its folder commits it;
- content: a file's size and its blocks of 4 KiB, until an fsync of the file.

The rules by which a power cut may choose, all of them legal for a POSIX file system that keeps a
journal, and some of them never seen on ext4, which commits all names in one order:

1. The changes of one folder survive in their order: with a change survive those before it in the
   same folder. Folders are independent of each other, but a change that touches two of them (a
   rename) is one, and brings those before it in both. A rename therefore shows at both ends or at
   none.
2. fsync of a folder commits its changes, and by rule 1 what they need. It commits neither the name
   of the folder nor the content of what is named in it.
3. fsync of a file commits its size and its blocks, and no name of it, not even the first one.
4. Of blocks that were not synced any subset survives, whole or torn at a sector of 512 bytes, and
   apart from the names of the file. So does the size: the old one, the new one, or one of whole
   blocks between them. What a size covers and no block was written to reads as zeros.
5. The kernel may write any block and commit the oldest change of a name at any time by itself.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

BLOCK = 4096
SECTOR = 512
ZEROS = bytes(BLOCK)

CALLS = (
    *("open", "close", "read", "pread", "preadv", "write", "writev", "pwrite", "lseek"),
    *("ftruncate", "posix_fallocate", "fsync", "fdatasync", "fstat", "stat", "dup2", "utime"),
    *("link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "scandir", "listdir"),
)
real = SimpleNamespace(**{name: getattr(os, name) for name in CALLS})
"""The system calls as they are, whatever is installed in their place."""


@dataclass(eq=False, slots=True, repr=False)
class Inode:
    """A file or a folder: what of it is durable.

    Attributes:
        number: in the order in which they were made; what makes runs repeatable.
        names: of a folder, the durable ones; None for a file.
        size: of a file, the durable one.
        blocks: the durable blocks that are not zeros; None when all that the file has is durable.
        hidden_writes: it is written past the calls, through a map or a Python file, so that what
            changed is found by comparing.
        stale: blocks whose write failed: they are as given here, no longer dirty, and not durable.
        kept: its name outside the disk, once it has lost the last one inside.
    """

    number: int
    names: dict[str, Inode] | None = None
    size: int = 0
    blocks: dict[int, bytes] | None = None
    hidden_writes: bool = False
    stale: dict[int, bytes] = field(default_factory=dict)
    kept: Path | None = None

    def __repr__(self) -> str:
        return f"<Inode {self.number} [{'file' if self.names is None else 'folder'}]>"


class Change(NamedTuple):
    """A change of names that survives as one: (folder, name, the inode or None for none)."""

    parts: tuple[tuple[Inode, str, Inode | None], ...]


class Content(NamedTuple):
    """What a file holds; blocks of zeros are left out."""

    size: int
    blocks: dict[int, bytes]


class State(NamedTuple):
    """What one power cut leaves: the changes of names that survive, and files not as they are."""

    changes: tuple[Change, ...]
    files: dict[Inode, Content]


# -- content ------------------------------------------------------------------------------------


def content_of(path: str) -> Content:
    """What a file holds now. Holes cost nothing."""
    fd = real.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = real.fstat(fd).st_size
        return Content(size, dict(_blocks(fd, size)))
    finally:
        real.close(fd)


def _blocks(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    stop = 0
    while stop < size:
        try:
            start = real.lseek(fd, stop, os.SEEK_DATA) // BLOCK * BLOCK
        except OSError:  # only a hole is left
            return
        stop = real.lseek(fd, start, os.SEEK_HOLE)
        piece = real.pread(fd, stop - start, start)
        if not piece:
            return
        for at in range(0, len(piece), BLOCK):
            block = piece[at : at + BLOCK]
            if len(block) < BLOCK:
                block = block.ljust(BLOCK, b"\0")
            if block != ZEROS:
                yield (start + at) // BLOCK, block


def dirty_blocks(inode: Inode, live: Content) -> list[int]:
    """The blocks that are not durable, ascending."""
    durable = inode.blocks
    if durable is None:
        return []
    now = live.blocks
    changed = {n for n, block in now.items() if durable.get(n) != block}
    changed |= {n for n in durable if n not in now}
    for number, block in list(inode.stale.items()):
        if now.get(number, ZEROS) == block:
            changed.discard(number)
        else:
            del inode.stale[number]  # written again: dirty again
    return sorted(changed)


def make_durable(inode: Inode, live: Content, numbers: Iterable[int]) -> None:
    """Write these blocks to the model's device."""
    if inode.blocks is None:
        return
    for number in numbers:
        block = live.blocks.get(number)
        if block is None:
            inode.blocks.pop(number, None)
        else:
            inode.blocks[number] = block


def before_writing(inode: Inode, path: str) -> None:
    """Note what is durable before a file is changed that is so in whole."""
    if inode.blocks is None:
        inode.size, inode.blocks = content_of(path)


def synced(inode: Inode, path: str) -> None:
    """All of a file is durable."""
    if inode.blocks is None:
        return
    if inode.hidden_writes or inode.stale:
        live = content_of(path)
        make_durable(inode, live, dirty_blocks(inode, live))
        inode.size = live.size
    else:
        inode.blocks = None


# -- names --------------------------------------------------------------------------------------


def closure(pending: Sequence[Change], wanted: set[int]) -> list[int]:
    """The places of the changes that must survive when the wanted ones do, by rule 1."""
    folders: set[Inode] = set()
    chosen = []
    for place in range(max(wanted, default=-1), -1, -1):  # plain loops: each fsync comes here
        parts = pending[place].parts
        if place not in wanted:
            for part in parts:
                if part[0] in folders:
                    break
            else:
                continue
        chosen.append(place)
        for part in parts:
            folders.add(part[0])
    return chosen[::-1]


def changes_of(pending: Sequence[Change], folder: Inode) -> list[int]:
    """The places of the changes that an fsync of the folder commits."""
    for last in range(len(pending) - 1, -1, -1):
        for part in pending[last].parts:
            if part[0] is folder:
                return closure(pending, {last})
    return []


def _tree(root: Inode, changes: Iterable[Change]) -> Iterator[tuple[str, Inode]]:
    """Yield what is below a folder when these changes survive, folders before their content."""
    names: dict[Inode, dict[str, Inode]] = {}
    for change in changes:
        for folder, name, inode in change.parts:
            held = names.setdefault(folder, dict(folder.names or {}))
            if inode is None:
                held.pop(name, None)
            else:
                held[name] = inode
    folders = [(root, "")]
    while folders:
        folder, path = folders.pop()
        for name, inode in sorted(names.get(folder, folder.names or {}).items()):
            yield f"{path}/{name}", inode
            if inode.names is not None:
                folders.append((inode, f"{path}/{name}"))


# -- states -------------------------------------------------------------------------------------


class Dirty(NamedTuple):
    """A file that is not durable as it is, and what of it is not."""

    inode: Inode
    live: Content
    blocks: list[int]


def everything(pending: Sequence[Change], files: Sequence[Dirty]) -> State:
    """The state in which the power cut lost nothing."""
    return State(
        tuple(pending), {each.inode: _mixed(each, each.live.size, each.blocks) for each in files}
    )


def nothing(files: Sequence[Dirty]) -> State:
    """The state in which only what was synced is there."""
    return State((), {each.inode: Content(each.inode.size, _durable(each)) for each in files})


def draw(pending: Sequence[Change], files: Sequence[Dirty], rng: random.Random) -> State:
    """Some legal state."""
    density = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    wanted = {place for place in range(len(pending)) if rng.random() < density}
    changes = tuple(pending[place] for place in closure(pending, wanted))
    return State(changes, {each.inode: _drawn(each, rng) for each in files})


def legal_states(
    pending: Sequence[Change], files: Sequence[Dirty], limit: int, rng: random.Random
) -> list[State]:
    """All legal states without torn blocks when they are no more than `limit`, or so many drawn.

    Among those drawn are the four corners: names and content, each in whole or not at all.
    """
    units = [(each.inode, number) for each in files for number in (*each.blocks, -1)]
    if len(units) + len(pending) <= 8:
        found = list(_all_states(pending, files, units))
        if len(found) <= limit:
            return found
    whole, least = everything(pending, files), nothing(files)
    corners = [whole, least, State(whole.changes, least.files), State((), whole.files)]
    drawn = [draw(pending, files, rng) for _ in range(limit - len(corners))]
    return (corners + drawn)[:limit]


def _all_states(
    pending: Sequence[Change], files: Sequence[Dirty], units: Sequence[tuple[Inode, int]]
) -> Iterator[State]:
    """Yield a state for each choice of names, blocks and sizes (block -1)."""
    prefixes = {
        tuple(closure(pending, set(wanted)))
        for count in range(len(pending) + 1)
        for wanted in itertools.combinations(range(len(pending)), count)
    }
    for places in sorted(prefixes):
        changes = tuple(pending[place] for place in places)
        for picks in itertools.product((False, True), repeat=len(units)):
            chosen = {*itertools.compress(units, picks)}
            contents = {}
            for each in files:
                size = (each.live if (each.inode, -1) in chosen else each.inode).size
                blocks = [number for number in each.blocks if (each.inode, number) in chosen]
                contents[each.inode] = _mixed(each, size, blocks)
            yield State(changes, contents)


def _durable(each: Dirty) -> dict[int, bytes]:
    return dict(each.inode.blocks or {})


def _mixed(each: Dirty, size: int, new: Iterable[int]) -> Content:
    blocks = _durable(each)
    for number in new:
        block = each.live.blocks.get(number)
        if block is None:
            blocks.pop(number, None)
        else:
            blocks[number] = block
    return Content(size, blocks)


def _drawn(each: Dirty, rng: random.Random) -> Content:
    density = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
    content = _mixed(each, 0, [n for n in each.blocks if rng.random() < density])
    if each.blocks and rng.random() < 0.25:
        number = rng.choice(each.blocks)
        old = (each.inode.blocks or {}).get(number, ZEROS)
        content.blocks[number] = _torn(old, each.live.blocks.get(number, ZEROS), rng)
    low, high = sorted((each.inode.size, each.live.size))
    sizes = [low, high, rng.randrange(low, high + 1) // BLOCK * BLOCK]
    return content._replace(size=min(high, max(low, rng.choice(sizes))))


def _torn(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Some sectors of the new block, the others of the old one."""
    pieces = ((old, new)[rng.random() < 0.5][at : at + SECTOR] for at in range(0, BLOCK, SECTOR))
    return b"".join(pieces)


# -- making a state real ------------------------------------------------------------------------

COPY_BYTES = 64 << 10
"""Files up to here are copied, so that whoever opens the state may write into them; longer ones
that are whole and were only written through calls are linked, which costs nothing."""


def build(root: Inode, state: State, target: str, paths: dict[Inode, str]) -> None:
    """Make the state in a new folder.

    Args:
        root: the folder of the disk.
        state: legal.
        target: the folder, which does not exist.
        paths: of the real files, also of those that lost their names.
    """
    made: dict[Inode, str] = {}
    real.mkdir(target)
    for path, inode in _tree(root, state.changes):
        there = f"{target}{path}"
        if inode.names is not None:
            real.mkdir(there)
        elif inode in made:
            real.link(made[inode], there)
        else:
            _make_file(inode, state.files.get(inode), there, paths[inode])
            made[inode] = there


def signature(root: Inode, state: State) -> tuple[object, ...]:
    """Equal for states that leave the same tree."""
    found: list[object] = []
    for path, inode in _tree(root, state.changes):
        content = state.files.get(inode)
        known = content and (content.size, hash(tuple(sorted(content.blocks.items()))))
        found.append((path, inode.number, known))
    return tuple(found)


def _make_file(inode: Inode, content: Content | None, path: str, source: str) -> None:
    found = real.stat(source)
    if content is None:  # durable as it is
        if not inode.hidden_writes and found.st_size > COPY_BYTES:
            real.link(source, path)
            return
        content = content_of(source) if inode.blocks is None else Content(inode.size, inode.blocks)
    fd = real.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for number, block in content.blocks.items():
            if number * BLOCK < content.size:
                real.pwrite(fd, block[: content.size - number * BLOCK], number * BLOCK)
        real.ftruncate(fd, content.size)
    finally:
        real.close(fd)
    real.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
