"""The simulated disk itself: it runs steps, fails where told, and loses power when asked."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    MakeDirectory,
    Plan,
    Rename,
    Step,
    Sync,
    SyncDirectory,
    SyncFiles,
    Truncate,
    WriteFile,
)
from clustor.sim.disk.content import FileFate, SimFile
from clustor.sim.disk.fates import (
    count_file_fates,
    draw_file_fate,
    file_fates,
    fraction_kept,
    newest_fate,
)
from clustor.sim.disk.names import DIRECTORY, FileNumber, SimNames


class DiskStalled(Exception):
    """The disk answers nothing now; the step was not begun and may be tried again later."""


class TooManyCrashStates(Exception):
    """There are more outcomes than the caller wants to see one by one."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"at least {count} crash states, the limit is {limit}")
        self.count = count
        self.limit = limit


@dataclass(frozen=True, slots=True)
class CrashChoice:
    """One outcome of a loss of power. The default keeps nothing that was not synced."""

    operations: frozenset[int] = frozenset()
    """Which operations of the directory journal survive, by position."""
    files: Mapping[FileNumber, FileFate] = field(default_factory=dict)


_NOTHING_KEPT = FileFate()


class SimDisk:
    """A disk for one partition's directory, with the promises of `clustor.log.steps` and no more.

    Reads see the latest writes. `copy` is cheap: file contents are shared until written.
    """

    def __init__(self, *, reorder_directory_ops: bool = False) -> None:
        self._names = SimNames(reorder=reorder_directory_ops)
        self._files: dict[FileNumber, SimFile] = {}
        self._owned: set[FileNumber] = set()
        """Files that no copy of this disk shares; only these are changed in place."""
        self._next_number: FileNumber = 0
        self._failing_syncs: dict[str, bool] = {}
        self._room_bytes: int | None = None
        self._lost = False
        self.stalled = False
        """While set, every step raises DiskStalled and changes nothing."""

    def copy(self) -> SimDisk:
        """Return an independent twin, faults and all."""
        twin = SimDisk.__new__(SimDisk)
        twin._names = self._names.copy()
        twin._files = self._files.copy()
        twin._owned = set()
        self._owned = set()
        twin._next_number = self._next_number
        twin._failing_syncs = self._failing_syncs.copy()
        twin._room_bytes = self._room_bytes
        twin._lost = self._lost
        twin.stalled = self.stalled
        return twin

    # Running steps

    def execute(self, plan: Plan) -> None:
        """Run the steps in order; the first that fails raises, and the rest is not run."""
        for step in plan:
            self.run_step(step)

    def crash_points(self, plan: Plan) -> Iterator[SimDisk]:
        """Run the plan here; yield a copy before the first step and after each one."""
        yield self.copy()
        for step in plan:
            self.run_step(step)
            yield self.copy()

    def run_step(self, step: Step) -> None:
        """Run one step; raise the OSError that a real disk would."""
        if self.stalled:
            raise DiskStalled
        self._require_present()
        match step:
            case Create():
                self._create(step)
            case WriteFile():
                self._write(step)
            case Sync():
                self._sync(step.file)
            case SyncFiles():
                self._sync_files(step)
            case SyncDirectory():
                self._names.sync(step.directory)
                self._forget_unreachable()
            case MakeDirectory():
                self._names.make_directory(step.directory)
            case Rename():
                self._names.rename(step.source, step.target)
            case Truncate():
                number = self._names.file(step.file)
                self._own(number).truncate(step.size_bytes)
            case DeleteFile():
                self._names.delete(step.file)
            case _:
                assert_never(step)

    # Storage

    def names(self, directory: str) -> list[str]:
        """List the names directly below `directory`, sorted; a missing directory is empty."""
        self._require_present()
        try:
            self._names.require_directory(directory)
        except FileNotFoundError:
            return []
        prefix = f"{directory}/" if directory else ""
        below = (path for path in self._names.visible if path.startswith(prefix))
        return sorted(path[len(prefix) :] for path in below if "/" not in path[len(prefix) :])

    def size(self, file: FileName) -> int:
        """Return the file's length in bytes."""
        self._require_present()
        return self._files[self._names.file(file)].size

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        self._require_present()
        return self._files[self._names.file(file)].read(offset, length)

    def digest(self) -> bytes:
        """Tell apart what readers see: every name, and the bytes of every file."""
        seen = hashlib.blake2b(digest_size=16)
        for path, number in sorted(self._names.visible.items()):
            file = self._files.get(number)
            data = b"" if file is None else file.read(0, file.size)
            seen.update(b"%d %d %s" % (number == DIRECTORY, len(data), path.encode()))
            seen.update(data)
        return seen.digest()

    # Faults, all off until called

    def fail_next_sync(self, file: FileName, *, evict: bool = False) -> None:
        """Let the next Sync or SyncFiles of `file` raise EIO.

        Its un-synced sectors then count as clean: a later Sync succeeds and does not write them,
        until they are written anew. With `evict` readers see the old bytes at once.
        """
        self._failing_syncs[file] = evict

    def limit_room(self, room_bytes: int | None) -> None:
        """Let files grow by `room_bytes` more; the write that exceeds it is cut short by ENOSPC."""
        self._room_bytes = room_bytes

    def flip_bit(self, file: FileName, offset: int, bit: int) -> None:
        """Flip one bit of the file, in what is durable and in what is cached."""
        number = self._names.file(file)
        if not (0 <= offset < self._files[number].size and 0 <= bit < 8):
            raise ValueError(f"no bit {bit} at {offset} of {file}")
        self._own(number).flip_bit(offset, bit)

    def lose(self) -> None:
        """Lose the whole disk: from now on everything raises EIO."""
        self._lost = True

    # Loss of power

    @property
    def is_synced(self) -> bool:
        """Say whether a crash now could change nothing."""
        files = self._visible_files()
        return not self._names.journal and all(file.is_synced for file in files.values())

    def crash(self, choice: CrashChoice) -> SimDisk:
        """Return the disk that the next start finds; this one is left as it is."""
        after = SimDisk.__new__(SimDisk)
        after._names = self._names.crashed(choice.operations)
        after._files = {}
        for number in set(after._names.durable.values()) - {DIRECTORY}:
            file = self._files[number]
            if not file.is_synced:
                file = file.crashed(choice.files.get(number, _NOTHING_KEPT))
            after._files[number] = file
        after._owned = set()
        self._owned = set()
        after._next_number = self._next_number
        after._failing_syncs = {}
        after._room_bytes = self._room_bytes
        after._lost = self._lost
        after.stalled = False
        return after

    def crash_choices(self, max_exhaustive: int = 4096) -> Iterator[CrashChoice]:
        """Yield every outcome: each un-synced sector in each of its versions, or one of them torn.

        Raises TooManyCrashStates, before the first, when there are more than `max_exhaustive`.
        """
        self._require_countable(max_exhaustive)
        for operations in self._names.survivor_sets():
            numbers = self._unsynced(operations)
            for files in self._combinations(numbers):
                yield CrashChoice(operations, files)

    def crash_states(self, max_exhaustive: int = 4096) -> Iterator[SimDisk]:
        """Yield the disk after each outcome that `crash_choices` names."""
        return (self.crash(choice) for choice in self.crash_choices(max_exhaustive))

    def crashes(self, rng: Random, *, max_exhaustive: int, samples: int) -> Iterator[SimDisk]:
        """Yield every outcome when they are few, else both extremes and `samples` drawn ones."""
        try:
            choices = list(self.crash_choices(max_exhaustive))
        except TooManyCrashStates:
            choices = [CrashChoice(), self.everything_kept()]
            choices += [self.random_choice(rng) for _ in range(samples)]
        return (self.crash(choice) for choice in choices)

    def everything_kept(self) -> CrashChoice:
        """Return the outcome in which the disk had written all in time."""
        operations = frozenset(range(len(self._names.journal)))
        fates = {at: newest_fate(self._files[at]) for at in self._unsynced(operations)}
        return CrashChoice(operations, fates)

    def random_choice(self, rng: Random) -> CrashChoice:
        """Draw an outcome: how much survives is drawn first, then each fate on its own."""
        kept_fraction = fraction_kept(rng)
        operations: set[int] = set()
        for at, needed in enumerate(self._names.needs()):
            if needed <= operations and rng.random() < kept_fraction:
                operations.add(at)
        survivors = frozenset(operations)
        files = {
            number: draw_file_fate(self._files[number], rng, fraction_kept(rng))
            for number in self._unsynced(survivors)
        }
        return CrashChoice(survivors, files)

    def random_crash(self, rng: Random) -> SimDisk:
        """Return the disk after an outcome drawn from `rng`."""
        return self.crash(self.random_choice(rng))

    # Within

    def _create(self, step: Create) -> None:
        self._names.create(step.file, self._next_number)
        self._files[self._next_number] = SimFile()
        self._owned.add(self._next_number)
        self._next_number += 1

    def _write(self, step: WriteFile) -> None:
        file = self._own(self._names.file(step.file))
        if self._room_bytes is None:
            file.write(step.offset, step.data)
            return
        growth = max(0, step.offset + len(step.data) - max(file.size, step.offset))
        missing = max(0, growth - self._room_bytes)
        file.write(step.offset, step.data[: len(step.data) - missing])
        self._room_bytes -= growth - missing
        if missing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), step.file)

    def _sync(self, name: FileName) -> None:
        file = self._own(self._names.file(name))
        evict = self._failing_syncs.pop(name, None)
        if evict is not None:
            file.fail_sync(evict=evict)
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        file.sync()

    def _sync_files(self, step: SyncFiles) -> None:
        """Sync what the step names and nothing else: the least that any real disk does.

        One that syncs the whole filesystem does more. Nobody may rely on it, so it is not here.
        """
        for name in step.files:
            self._names.file(name)  # a name that is not there ends the step before it begins
        for name in step.files:
            self._sync(name)

    def _own(self, number: FileNumber) -> SimFile:
        """Return the file for changing, parted from the copies that share it."""
        if number not in self._owned:
            self._files[number] = self._files[number].copy()
            self._owned.add(number)
        return self._files[number]

    def _require_present(self) -> None:
        if self._lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _visible_files(self) -> dict[FileNumber, SimFile]:
        numbers = set(self._names.visible.values()) - {DIRECTORY}
        return {number: self._files[number] for number in numbers}

    def _forget_unreachable(self) -> None:
        reachable = self._names.reachable()
        for number in [number for number in self._files if number not in reachable]:
            del self._files[number]
            self._owned.discard(number)

    def _unsynced(self, operations: frozenset[int]) -> list[FileNumber]:
        """List the un-synced files that still have a name when `operations` survive."""
        entries = self._names.durable.copy()
        for at in sorted(operations):
            self._names.journal[at].apply(entries)
        named = sorted(set(entries.values()) - {DIRECTORY})
        return [number for number in named if not self._files[number].is_synced]

    def _require_countable(self, limit: int) -> None:
        total = 0
        counts = {number: count_file_fates(file, limit) for number, file in self._files.items()}
        for operations in self._names.survivor_sets():
            product = 1
            for number in self._unsynced(operations):
                product *= counts[number]
            total += product
            if total > limit:
                raise TooManyCrashStates(total, limit)

    def _combinations(self, numbers: list[FileNumber]) -> Iterator[dict[FileNumber, FileFate]]:
        if not numbers:
            yield {}
            return
        for rest in self._combinations(numbers[1:]):
            for fate in file_fates(self._files[numbers[0]]):
                yield {numbers[0]: fate, **rest}
