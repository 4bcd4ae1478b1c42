"""A disk in memory that can lose power, fail a call, and take a write in parts: the file calls of a ledger on it.

What a power cut leaves (`after_power_cut`) is what was synced, and of the rest
whatever chance says: each sector that was written and not synced has landed,
or not, or holds rubbish; a file has any length that it has had since its sync;
a name that was made, moved or removed is so only once its directory was synced,
else perhaps; a rename lands whole or not at all.

A sync that fails is the kernel's (LEDGER section 2.3): of what it was to write
some has landed, the cache goes on showing all of it, and the next sync says
that all is well. `forget_cache` brings to light what the disk holds. A
directory's sync that fails loses nothing for good: what keeps names is
journaled, and asked again it writes them or fails again.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from sidecar.ledger.files import DiskFiles

SECTOR_BYTES: Final = 512
_SECTORS_APART_MAX: Final = 160  # of a longer write, runs of this many share a fate
_ZEROS: Final = bytes(1 << 20)
_NOISE: Final = random.Random(1).randbytes(1 << 12)

# What a fate says of one thing that was not synced.
LOST, LANDED, RUBBISH = 0, 1, 2


class Fates:
    """What becomes of everything that was not synced; `said` is all that was decided, so that two can be compared."""

    def __init__(self, chance: random.Random, *, way: str | None = None) -> None:
        self._chance = chance
        self._way = way or self._chance.choice(("any", "any", "most", "few", "rubbish", "front", "back"))
        self.said: list[int] = []

    def of(self, count: int) -> list[int]:
        """Of so many things in the order in which they were done."""
        chosen: list[int] = getattr(self, f"_{self._way}")(count)
        self.said += chosen
        return chosen

    def of_size(self, sizes: Sequence[int]) -> int:
        at = {"none": 0, "all": len(sizes) - 1}.get(self._way, self._chance.randrange(len(sizes)))
        self.said.append(at)
        return sizes[at]

    def rubbish(self, written: bytes, before: bytes) -> bytes:
        """Half of the one and half of the other, or noise."""
        at = self._chance.randrange(1, SECTOR_BYTES)
        self.said.append(at)
        if at % 2:
            return written[:at] + before[at:]
        return _NOISE[at : at + len(written)].ljust(len(written), b"?")

    def _none(self, count: int) -> list[int]:
        return [LOST] * count

    def _all(self, count: int) -> list[int]:
        return [LANDED] * count

    def _any(self, count: int) -> list[int]:
        return self._chance.choices((LOST, LANDED, RUBBISH), (9, 9, 2), k=count)

    def _most(self, count: int) -> list[int]:
        return self._but_one([LANDED] * count)

    def _few(self, count: int) -> list[int]:
        return self._but_one([LOST] * count)

    def _rubbish(self, count: int) -> list[int]:
        return self._chance.choices((LANDED, RUBBISH), (3, 1), k=count)

    def _front(self, count: int) -> list[int]:
        landed = self._chance.randrange(count + 1)
        return [LANDED] * landed + [LOST] * (count - landed)

    def _back(self, count: int) -> list[int]:
        return self._front(count)[::-1]

    def _but_one(self, fates: list[int]) -> list[int]:
        if fates:
            at = self._chance.randrange(len(fates))
            fates[at] = self._chance.choice([fate for fate in (LOST, LANDED, RUBBISH) if fate != fates[at]])
        return fates


class _Settled(Fates):
    """Where nothing is left to chance, and so nothing is remembered."""

    def of(self, count: int) -> list[int]:
        return [LANDED if self._way == "all" else LOST] * count

    def of_size(self, sizes: Sequence[int]) -> int:
        return sizes[-1 if self._way == "all" else 0]


ALL_LANDED: Final = _Settled(random.Random(0), way="all")
NONE_LANDED: Final = _Settled(random.Random(0), way="none")


class _Write:
    """Whole sectors in the cache, from `at`; `size` is the file's length with them, as the cache has it."""

    __slots__ = ("at", "content", "size", "unit_bytes", "units", "unsynced")

    def __init__(self, at: int, content: bytes, size: int) -> None:
        self.at = at
        self.content = content
        self.size = size
        self.unsynced = True
        sectors = len(content) // SECTOR_BYTES
        self.unit_bytes = SECTOR_BYTES * (1 if sectors <= _SECTORS_APART_MAX else _SECTORS_APART_MAX)
        self.units = -(-len(content) // self.unit_bytes)

    def copied(self) -> _Write:
        copy = _Write(self.at, self.content, self.size)
        copy.unsynced = self.unsynced
        return copy


class File:
    """What the disk holds of a file, and over it what the cache alone shows.

    Zeros at the end are only counted: a segment is mostly those.
    """

    def __init__(self, durable: bytes = b"", durable_bytes: int = 0) -> None:
        self.durable = durable
        self.durable_bytes = durable_bytes
        self.size = durable_bytes
        self._cache: list[_Write] = []

    def read(self, length: int, at: int) -> bytes:
        end = max(at, min(at + length, self.size))
        on_disk = self.durable[at:end]
        if not self._cache:
            return on_disk if len(on_disk) == end - at else on_disk.ljust(end - at, b"\0")
        shown = bytearray(on_disk.ljust(end - at, b"\0"))
        for write in self._cache:
            begin, stop = max(at, write.at), min(end, write.at + len(write.content))
            if begin < stop:
                shown[begin - at : stop - at] = write.content[begin - write.at : stop - write.at]
        return bytes(shown)

    def shown(self) -> tuple[bytes, int]:
        """What a process reads, without the zeros at the end, and the length with them."""
        content = self.durable
        if self._cache:
            content = self.read(self.size, 0)
            used = self.size
            while used and content[max(0, used - SECTOR_BYTES) : used].count(0) == min(used, SECTOR_BYTES):
                used = max(0, used - SECTOR_BYTES)
            content = content[:used]
        return content.rstrip(b"\0"), self.size

    def shows_what_is_lost(self) -> bool:
        """A sync failed, and the cache says otherwise."""
        return any(not write.unsynced for write in self._cache)

    def write(self, content: bytes, at: int) -> None:
        begin, end = at - at % SECTOR_BYTES, at + len(content)
        behind = -end % SECTOR_BYTES
        if begin != at or behind:
            whole = self.read(at - begin, begin).ljust(at - begin, b"\0") + content + self.read(behind, end)
            content = whole.ljust(end + behind - begin, b"\0")
        self.size = max(self.size, end)
        self._cache.append(_Write(begin, content, self.size))

    def empty(self) -> None:
        """At once on the disk too: done only to the lock's file, whose content is for people."""
        self.durable, self.durable_bytes, self.size = b"", 0, 0
        self._cache.clear()

    def give_back(self, offset: int) -> None:
        """Whatever stood from there on reads as zeros; only of a file that is on the disk as it is shown."""
        if not self._cache:
            self.durable = self.durable[:offset]

    def sync(self) -> None:
        self._take(ALL_LANDED)
        if all(write.unsynced for write in self._cache):
            self._cache.clear()
        self._written_out()

    def fail_sync(self, fates: Fates) -> None:
        self._take(fates)
        self._written_out()

    def forget_cache(self) -> None:
        self._cache.clear()
        self.size = self.durable_bytes

    def copied(self) -> File:
        copy = File(self.durable, self.durable_bytes)
        copy.size = self.size
        copy._cache = [write.copied() for write in self._cache]
        return copy

    def cut(self, fates: Fates) -> File:
        """What a power cut leaves."""
        left = File(self.durable, self.durable_bytes)
        left._cache = self._cache
        left._take(fates)
        left._cache = []
        left.size = left.durable_bytes
        return left

    def _take(self, fates: Fates) -> None:
        """What was not synced comes to the disk, or doesn't."""
        unsynced = [write for write in self._cache if write.unsynced]
        if not unsynced:
            return
        size = fates.of_size([self.durable_bytes, *[write.size for write in unsynced]])
        content = bytearray(self.durable)
        for write in unsynced:
            if fates is ALL_LANDED:
                _take_piece(content, write.at, write.content, LANDED, fates)
                continue
            for at, fate in zip(range(0, len(write.content), write.unit_bytes), fates.of(write.units), strict=True):
                if fate != LOST:
                    _take_piece(content, write.at + at, write.content[at : at + write.unit_bytes], fate, fates)
        del content[size:]
        self.durable, self.durable_bytes = bytes(content), size

    def _written_out(self) -> None:
        """The cache takes all for written; what it alone shows stays, below what comes after it."""
        for write in self._cache:
            write.unsynced = False


def _take_piece(content: bytearray, at: int, piece: bytes, fate: int, fates: Fates) -> None:
    end = at + len(piece)
    if fate == RUBBISH:
        piece = fates.rubbish(piece, bytes(content[at:end]).ljust(len(piece), b"\0"))
    if at >= len(content) and not piece[0] and piece == _ZEROS[: len(piece)]:
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at:end] = piece


class Directory:
    """Names as every process sees them, and as they stand on the disk."""

    def __init__(self, names: dict[str, Node] | None = None) -> None:
        self.names = names or {}
        self._durable = dict(self.names)
        self._unsynced: list[tuple[str | None, str | None, Node | None]] = []  # a name that goes; one that comes

    def change(self, goes: str | None, comes: str | None = None, node: Node | None = None) -> None:
        """In one step, as a rename is."""
        change = goes, comes, node
        _apply(self.names, change)
        self._unsynced.append(change)

    def sync(self) -> None:
        self._durable = dict(self.names)
        self._unsynced.clear()

    def copied(self) -> Directory:
        twins: dict[int, Node] = {}

        def twin(node: Node) -> Node:
            return twins.setdefault(id(node), node.copied()) if id(node) not in twins else twins[id(node)]

        copy = Directory({name: twin(node) for name, node in self.names.items()})
        copy._durable = {name: twin(node) for name, node in self._durable.items()}
        copy._unsynced = [(goes, comes, node and twin(node)) for goes, comes, node in self._unsynced]
        return copy

    def cut(self, fates: Fates) -> Directory:
        """What a power cut leaves, with all that is in it."""
        names = self._durable
        if self._unsynced:
            names = dict(names)
            for change, fate in zip(self._unsynced, fates.of(len(self._unsynced)), strict=True):
                if fate != LOST:
                    _apply(names, change)
        return Directory({name: _cut(node, fates) for name, node in names.items()})


Node = File | Directory


def _apply(names: dict[str, Node], change: tuple[str | None, str | None, Node | None]) -> None:
    goes, comes, node = change
    if goes is not None:
        names.pop(goes, None)
    if comes is not None and node is not None:
        names[comes] = node


def _cut(node: Node, fates: Fates) -> Node:
    return node.cut(fates)


class Fault(Struct, frozen=True):
    """A call that fails. `done`: it says so, and has done what it was to do all the same (of a write, half)."""

    code: int = errno.EIO
    done: bool = False

    def raised(self) -> OSError:
        return OSError(self.code, os.strerror(self.code))


def _never(call: str, number: int) -> Fault | None:
    return None


class SimDisk(DiskFiles):
    """The file calls of one process on such a disk.

    `fault` says of each call, by its name and number, whether it fails;
    `about_to` is told of each that is about to change the disk;
    `write_bytes_max` is how much one write call takes.
    """

    def __init__(self, root: Directory | None = None, chance: random.Random | None = None) -> None:
        self.root = root or Directory()
        self.calls = 0
        self.fault: Callable[[str, int], Fault | None] = _never
        self.about_to: Callable[[str], None] = lambda call: None
        self.write_bytes_max: int | None = None
        self.descriptors: dict[int, Node] = {}
        self._locked: set[int] = set()
        self._next_descriptor = 1 << 20  # none that the real system gives
        self._chance = chance or random.Random(0)

    def after_power_cut(self, fates: Fates) -> SimDisk:
        """What another process finds when the power is back."""
        return SimDisk(self.root.cut(fates), self._chance)

    def after_exit(self) -> SimDisk:
        """What another process finds when this one is gone and the cache is not."""
        return SimDisk(self.root.copied(), self._chance)

    def file(self, path: Path) -> File:
        """For a test to look at."""
        node = self._node(path)
        assert isinstance(node, File)
        return node

    def names_in(self, path: Path) -> list[str]:
        """As `names`, uncounted, and none where there is no such directory."""
        try:
            return sorted(self._directory(path).names)
        except OSError:
            return []

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """For a test that looks through the ledger: no call made meanwhile fails, or is counted."""
        calls, fault, self.fault = self.calls, self.fault, _never
        try:
            yield
        finally:
            self.calls, self.fault = calls, fault

    # --- what is asked ----------------------------------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        self._called("exists")
        try:
            self._node(path)
        except OSError:
            return False
        return True

    def names(self, directory: Path) -> list[str]:
        self._called("names")
        return sorted(self._directory(directory).names)

    def size(self, descriptor: int) -> int:
        self._called("size")
        return self._file(descriptor).size

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        self._called("read")
        return self._file(descriptor).read(length, offset)

    def free_bytes(self, directory: Path) -> int:
        self._called("free_bytes")
        return 1 << 30

    # --- descriptors ------------------------------------------------------------------------------------------

    def open_to_read(self, path: Path) -> int:
        self._called("open_to_read")
        return self._opened(self._node(path))

    def create(self, path: Path) -> int:
        fault = self._changes("create")
        directory = self._directory(path.parent)
        if path.name in directory.names:
            raise Fault(errno.EEXIST).raised()
        made = File()
        if fault is None or fault.done:
            directory.change(None, path.name, made)
        self._raise(fault)
        return self._opened(made)

    def lock(self, path: Path) -> int | None:
        self._raise(self._changes("lock"))
        directory = self._directory(path.parent)
        if path.name not in directory.names:
            directory.change(None, path.name, File())
        node = directory.names[path.name]
        if id(node) in self._locked:
            return None
        self._locked.add(id(node))
        return self._opened(node)

    def keep_directory(self, path: Path) -> None:
        self.let_directory_go()
        self._called("keep_directory")
        self._kept = path, self._opened(self._directory(path))

    def let_directory_go(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self.close(kept[1])

    def close(self, descriptor: int) -> None:
        """Gone it is in any case, as on Linux. Its number may then be somebody else's: nothing is closed twice."""
        assert descriptor in self.descriptors, "closed twice"
        self._locked.discard(id(self.descriptors.pop(descriptor)))
        self._called("close")

    # --- what changes the disk --------------------------------------------------------------------------------

    def write_in_place(self, descriptor: int) -> None:
        self._file(descriptor)

    def write_some(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        fault = self._changes("write_some")
        content = b"".join(pieces)[: self.write_bytes_max]
        if fault is None:
            self._file(descriptor).write(content, offset)
        elif fault.done:
            self._file(descriptor).write(content[: len(content) // 2], offset)
        self._raise(fault)
        return len(content)

    def write_zeros(self, descriptor: int, size: int, go_on: Callable[[], bool]) -> None:
        self._fill(descriptor, 0, size, go_on)

    def truncate(self, descriptor: int) -> None:
        fault = self._changes("truncate")
        if fault is None or fault.done:
            self._file(descriptor).empty()
        self._raise(fault)

    def sync(self, descriptor: int) -> None:
        self._sync(self._file(descriptor), self._changes("sync"))

    def forget_cache(self, descriptor: int) -> None:
        file = self._file(descriptor)
        self._sync(file, self._changes("forget_cache"))
        file.forget_cache()

    def forget_if_it_can(self, descriptor: int) -> None:
        return  # advice, which a kernel may leave

    def sync_directory(self, path: Path) -> None:
        fault = self._changes("sync_directory")
        directory = self._directory(path)
        if fault is None or fault.done:
            directory.sync()
        self._raise(fault)

    def make_one_directory(self, path: Path, mode: int) -> None:
        fault = self._changes("make_one_directory")
        if fault is None or fault.done:
            self._directory(path.parent).change(None, path.name, Directory())
        self._raise(fault)

    def rename(self, old: Path, new: Path) -> None:
        fault = self._changes("rename")
        assert old.parent == new.parent, "a ledger moves nothing to another directory"
        node = self._node(old)
        if fault is None or fault.done:
            self._directory(old.parent).change(old.name, new.name, node)
        self._raise(fault)

    def unlink(self, path: Path) -> None:
        fault = self._changes("unlink")
        self._node(path)
        if fault is None or fault.done:
            self._directory(path.parent).change(path.name)
        self._raise(fault)

    def give_back_zeros(self, path: Path, offset: int) -> None:
        self._raise(self._changes("give_back_zeros"))
        self.file(path).give_back(offset)

    # --- inside -----------------------------------------------------------------------------------------------

    def _called(self, call: str) -> None:
        self._raise(self._counted(call))

    def _counted(self, call: str) -> Fault | None:
        self.calls += 1
        return self.fault(call, self.calls)

    def _changes(self, call: str) -> Fault | None:
        self.about_to(call)
        return self._counted(call)

    def _raise(self, fault: Fault | None) -> None:
        if fault is not None:
            raise fault.raised()

    def _sync(self, file: File, fault: Fault | None) -> None:
        if fault is None or fault.done:
            file.sync()
        else:
            file.fail_sync(Fates(self._chance))
        self._raise(fault)

    def _opened(self, node: Node) -> int:
        self._next_descriptor += 1
        self.descriptors[self._next_descriptor] = node
        return self._next_descriptor

    def _file(self, descriptor: int) -> File:
        node = self.descriptors[descriptor]
        assert isinstance(node, File)
        return node

    def _node(self, path: Path) -> Node:
        node: Node = self.root
        for name in path.parts[1:]:
            if not isinstance(node, Directory) or name not in node.names:
                raise Fault(errno.ENOENT).raised()
            node = node.names[name]
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise Fault(errno.ENOTDIR).raised()
        return node
