"""One partition's directory: its steps on real files, its fences, and what its plans came to."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, assert_never

from clustor.log.steps import (
    Create,
    DeleteFile,
    MakeDirectory,
    Plan,
    Rename,
    Step,
    Sync,
    SyncDirectory,
    SyncFiles,
    Truncate,
    WriteFile,
    directory_of,
)
from clustor.runtime.disk.bulk import SyncFailure, sync_all, trusts_syncfs
from clustor.runtime.disk.errors import FileFenced, PathRefused, plan_failed
from clustor.runtime.disk.files import UNKNOWN, FileTable, OpenFile
from clustor.runtime.disk.paths import Directories, parts_of
from clustor.runtime.disk.reserve import RESERVE_STEP_BYTES, reserve

PATH_STEPS = (Create, DeleteFile, MakeDirectory, Rename, SyncDirectory)
"""Steps that need nothing but names: several of them can be run one behind the other elsewhere."""

SyncDurations: TypeAlias = tuple[int, ...]
"""Nanoseconds that each Sync of a plan took, in order."""


class Halves(NamedTuple):
    """A step as what may block, and what its owner notes when that is over.

    `work` touches names below the partition's root and descriptors that it was given, so that any
    thread may run it while its partition is busy with nothing else; `settle` takes its result in
    the thread of the owner, to whom the table of open files belongs.
    """

    work: Callable[[], Any]
    settle: Callable[[Any], None]


class SyncRefused(Exception):  # a fact on its way to PlanFailed
    """The sync itself failed, not the way to the file."""

    def __init__(self, code: int, file: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.file = file


class Partition:
    """The files below one root. Made by a disk's `open_partition`; one thread at a time uses it."""

    def __init__(self, root: Path, number: int, table: FileTable) -> None:
        self.root = root
        self.number = number
        self._table = table
        self._directories = Directories(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._trusts_syncfs: bool | None = None  # asked when it matters
        self._fences: dict[str, str] = {}
        """Names whose sync failed (a directory's ends in `/`), each with the reason."""
        self.failures = 0
        """How many plans have failed, counted by whoever runs them."""
        self.failures_seen = 0
        """How many of these the owner has been told of: later plans are meant to follow them."""
        self.waiting: deque[Any] = deque()
        """A ring's jobs that wait for the one under way, in order."""
        self.busy = False
        """Whether a ring has a job of this partition under way."""

    def execute(self, plan: Plan) -> SyncDurations:
        """Run the steps in order with blocking calls; return how long each Sync took."""
        self.refuse_fenced(plan)
        durations: list[int] = []
        for number, step in enumerate(plan):
            if type(step) is WriteFile:
                self._write_here(number, step)
            elif type(step) is Sync:
                durations.append(self._sync_here(number, step))
            else:
                self.run_step(number, step)
        return tuple(durations)

    def _write_here(self, number: int, step: WriteFile) -> None:
        """Run a write as `run_step` does, at once: a lone writer's rounds are made of these."""
        file = self._table.get((self.number, step.file))
        offset, data = step.offset, step.data
        if file is None or file.reach == UNKNOWN:
            self.run_step(number, step)
            return
        if offset + len(data) > file.reserved:
            self.make_room(file, offset + len(data))
        file.dirty = True
        reach, file.reach = file.reach, UNKNOWN  # until all bytes are there
        try:
            written = _write_all(file.descriptor, offset, data)
        except OSError as error:
            self.refuse(number, step, error)
        file.reach = max(reach, offset + written) if written else reach

    def _sync_here(self, number: int, step: Sync) -> int:
        """Run a sync as `run_step` does, at once; return how long it took."""
        file = self._table.get((self.number, step.file))
        begin = time.monotonic_ns()
        if file is None:
            self.run_step(number, step)
            return time.monotonic_ns() - begin
        try:
            os.fdatasync(file.descriptor)
        except OSError as error:
            self.refuse(number, step, SyncRefused(error.errno or errno.EIO))
        took = time.monotonic_ns() - begin
        file.on_synced()
        return took

    def refuse_fenced(self, plan: Plan) -> None:
        """Raise FileFenced when the plan touches a fenced file or directory."""
        if not self._fences:
            return
        for step in plan:
            for name in _touched(step):
                if name in self._fences:
                    raise FileFenced(name, self._fences[name])

    def fence(self, name: str, reason: str) -> None:
        """Let no later plan touch `name`."""
        self._fences.setdefault(name, reason)

    @property
    def fenced(self) -> tuple[str, ...]:
        """The names that no plan may touch any more."""
        return tuple(self._fences)

    def run_step(self, number: int, step: Step) -> None:
        """Run one step; raise PlanFailed, and fence what it was about when it was a sync."""
        try:
            work, settle = self.halves(step)
            settle(work())
        except (OSError, SyncRefused) as error:
            self.refuse(number, step, error)

    def refuse(self, number: int, step: Step, error: OSError | SyncRefused) -> NoReturn:
        """Raise what a step's error means for its plan."""
        if isinstance(error, SyncRefused):
            self.fail(number, step, error.code, sync=True, file=error.file)
        self.fail(number, step, error.errno or errno.EIO)

    def fail(
        self, number: int, step: Step, code: int, *, sync: bool = False, file: str | None = None
    ) -> NoReturn:
        """Raise the failure of a step; one of the sync itself leaves a fence behind."""
        name = file or _touched(step)[0]
        if sync:
            self.fence(name, os.strerror(code))
        raise plan_failed(number, step, name, code, sync=sync)

    def file(self, name: str) -> OpenFile:
        """Return the open file, opening it where necessary."""
        key = (self.number, name)
        file = self._table.get(key)
        if file is None:
            file = OpenFile(self._directories.open_file(name, os.O_RDWR), dirty=True)
            if not stat.S_ISREG(os.fstat(file.descriptor).st_mode):
                os.close(file.descriptor)
                raise PathRefused("not a regular file", path=name)
            self._table.add(key, file)
        return file

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write all of `data`, however the kernel divides it."""
        work, settle = self._write(name, offset, data)
        settle(work())

    def _write(self, name: str, offset: int, data: bytes) -> Halves:
        file = self.file(name)
        file.dirty = True
        reach, file.reach = file.reach, UNKNOWN  # until all bytes are there
        if offset + len(data) > file.reserved:
            self.make_room(file, offset + len(data))

        def settle(written: int) -> None:
            if reach != UNKNOWN:
                file.reach = max(reach, offset + written) if written else reach

        return Halves(lambda: _write_all(file.descriptor, offset, data), settle)

    def make_room(self, file: OpenFile, end: int) -> None:
        """Reserve the next step of a file that is to grow up to `end`, where it is a growing one.

        Where there is no room for a whole step the write itself must tell whether it fits.
        """
        if not file.reserved < file.reserve_to:
            return
        target = min(max(end, file.reserved + RESERVE_STEP_BYTES), file.reserve_to)
        try:
            held = reserve(file.descriptor, target - file.reserved, file.reserved)
        except OSError:
            held = False
        if held:
            file.reserved = target
        else:
            file.reserve_to = 0

    def dirty_files(self, step: SyncFiles) -> list[tuple[str, OpenFile]]:
        """Return those of the step's files that have anything to sync."""
        found = [(name, self.file(name)) for name in step.files]
        return [(name, file) for name, file in found if file.dirty]

    def sync_call(self, files: list[tuple[str, OpenFile]]) -> Callable[[], SyncFailure]:
        """Return what makes these files durable; any thread may call it, with their descriptors."""
        if self._trusts_syncfs is None:
            self._trusts_syncfs = trusts_syncfs(self._directories.root)
        directory, whole = self._directories.root, self._trusts_syncfs
        descriptors = [file.descriptor for _, file in files]
        return lambda: sync_all(directory, descriptors, whole=whole)

    def close(self) -> None:
        """Close the files and the directories."""
        self._table.discard_partition(self.number)
        self._directories.close()

    def halves(self, step: Step) -> Halves:
        """Divide a step into what may block and what is noted behind it."""
        match step:
            case WriteFile():
                return self._write(step.file, step.offset, step.data)
            case Sync():
                file = self.file(step.file)
                return Halves(
                    lambda: _sync(os.fdatasync, file.descriptor), lambda _: file.on_synced()
                )
            case SyncFiles():
                return self._sync_files(step)
            case Create():
                return Halves(lambda: self._create(step), lambda made: self._created(step, made))
            case Truncate():
                file = self.file(step.file)
                file.dirty = True
                file.reach = UNKNOWN
                return Halves(lambda: os.ftruncate(file.descriptor, step.size_bytes), _nothing)
            case Rename():
                return Halves(lambda: self._rename(step), lambda _: self._renamed(step))
            case DeleteFile():
                key = (self.number, step.file)
                return Halves(lambda: self._delete(step), lambda _: self._table.discard(key))
            case SyncDirectory():
                return Halves(lambda: self._sync_directory(step), _nothing)
            case MakeDirectory():
                return Halves(lambda: self._make_directory(step), _nothing)
            case _:
                assert_never(step)

    def _sync_directory(self, step: SyncDirectory) -> None:
        _sync(os.fsync, self._directories.open(step.directory))

    def _sync_files(self, step: SyncFiles) -> Halves:
        files = self.dirty_files(step)

        def settle(failed: SyncFailure) -> None:
            if failed is not None:
                raise SyncRefused(failed[1], files[failed[0]][0])
            for _, file in files:
                file.on_synced()

        return Halves(self.sync_call(files), settle)

    def _create(self, step: Create) -> tuple[int, int]:
        """Return its descriptor, and how much room is reserved for it."""
        descriptor = self._directories.open_file(step.file, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        first = min(step.reserve_bytes, RESERVE_STEP_BYTES)
        held = False
        try:
            if first:
                held = reserve(descriptor, first)
        except OSError:
            # Without its room the file is of no use, and would stop the plan's next attempt.
            os.close(descriptor)
            parent, name = self._directories.parent(step.file)
            os.unlink(name, dir_fd=parent)
            raise
        return descriptor, first if held else 0

    def _created(self, step: Create, made: tuple[int, int]) -> None:
        descriptor, reserved = made
        file = OpenFile(descriptor, dirty=False)
        if reserved:
            file.reserved, file.reserve_to = reserved, step.reserve_bytes
        self._table.add((self.number, step.file), file)

    def _rename(self, step: Rename) -> None:
        source_parent, source = self._directories.parent(step.source)
        target_parent, target = self._directories.parent(step.target)
        mode = os.stat(source, dir_fd=source_parent, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise PathRefused("not a regular file", path=step.source)
        os.rename(source, target, src_dir_fd=source_parent, dst_dir_fd=target_parent)

    def _renamed(self, step: Rename) -> None:
        if step.source != step.target:
            self._table.move((self.number, step.source), (self.number, step.target))

    def _delete(self, step: DeleteFile) -> None:
        with suppress(FileNotFoundError):
            parent, name = self._directories.parent(step.file)
            os.unlink(name, dir_fd=parent)

    def _make_directory(self, step: MakeDirectory) -> None:
        made = ""
        for part in parts_of(step.directory) if step.directory else []:
            parent = self._directories.open(made)
            try:
                os.mkdir(part, 0o700, dir_fd=parent)
            except FileExistsError:
                there = os.stat(part, dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISDIR(there.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, part) from None
            made = f"{made}/{part}" if made else part


def _nothing(_result: object) -> None:
    """Nothing is noted behind this step."""


def _write_all(descriptor: int, offset: int, data: bytes) -> int:
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        rest = memoryview(data)[written:]
        written += os.pwrite(descriptor, rest, offset + written)
    return written


def _sync(call: Callable[[int], None], descriptor: int) -> None:
    try:
        call(descriptor)
    except OSError as error:
        raise SyncRefused(error.errno or errno.EIO) from error


def _touched(step: Step) -> tuple[str, ...]:
    """Name what a step is about, a directory with `/` behind it; its own subject comes first."""
    match step:
        case WriteFile() | Sync() | Truncate():
            return (step.file,)
        case SyncFiles():
            return step.files
        case Create() | DeleteFile():
            return (step.file, directory_of(step.file) + "/")
        case Rename():
            directories = (directory_of(step.source) + "/", directory_of(step.target) + "/")
            return (step.source, step.target, *directories)
        case SyncDirectory() | MakeDirectory():
            return (step.directory + "/",)
        case _:
            assert_never(step)
