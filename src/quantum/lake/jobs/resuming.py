"""A run that was cut short goes on behind the tasks that it finished.

What a task gave is appended to a file when it is known. A later run of the same job, with the
same arguments, takes it from there instead of doing it again. The file goes when the job is done,
so that nobody takes an old answer for a new one.
"""

from __future__ import annotations

import os
import pickle
import stat
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from blake3 import blake3

from quantum.lake.jobs.errors import BadResume
from quantum.lake.jobs.runner import Runner

Task = TypeVar("Task")
Result = TypeVar("Result")

_MAGIC: Final = b"quantum-lake-resume-1\n"
_HEAD: Final = struct.Struct("<32s32sI")  # the task's name, the result's digest, its length


class ResumingRunner:
    """A runner over another one, with a memory of what is done."""

    def __init__(self, below: Runner, path: Path) -> None:
        """Raises BadResume for a file that others may have written, or may write."""
        self._below = below
        self._file = _open(path)
        weakref.finalize(self, self._file.close)
        self._done = _read(self._file, path)

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        names = [name_of(work, task) for task in tasks]
        missing = [nth for nth, name in enumerate(names) if name not in self._done]
        found = self._below.run(work, [tasks[nth] for nth in missing])
        fresh = {
            names[nth]: pickle.dumps(result) for nth, result in zip(missing, found, strict=True)
        }
        self._keep(fresh)
        return [pickle.loads(self._done[name]) for name in names]  # noqa: S301  # ours, see _read

    def _keep(self, fresh: dict[bytes, bytes]) -> None:
        if not fresh:
            return
        file = self._file
        if not file.seek(0, os.SEEK_END):
            file.write(_MAGIC)
        for name, data in fresh.items():
            file.write(_HEAD.pack(name, blake3(data).digest(), len(data)) + data)
        file.flush()
        os.fsync(file.fileno())
        self._done |= fresh

    def close(self) -> None:
        """Let go of the file; it stays for a later run."""
        self._file.close()

    def forget(self, path: Path) -> None:
        """Remove the file, unless something else has its name by now."""
        with suppress(FileNotFoundError):
            if os.path.samestat(path.lstat(), os.fstat(self._file.fileno())):
                path.unlink()


@contextmanager
def resuming(below: Runner, path: Path | None) -> Iterator[Runner]:
    """Give a runner that remembers, where a file is named; the file goes if the job ends well."""
    if path is None:
        yield below
        return
    runner = ResumingRunner(below, path)
    try:
        yield runner
        runner.forget(path)
    finally:
        runner.close()


def name_of(work: Callable[[Any], Any], task: object) -> bytes:
    """Name a task by all that it is given. What has no words of its own has never been done."""
    call = work if isinstance(work, partial) else partial(work)
    words = f"{call.func.__module__}.{call.func.__qualname__} {call.args!r} {task!r}"
    return blake3(words.encode()).digest()


def _open(path: Path) -> BinaryIO:
    """Open the file once: what is judged is what is read, whatever its name is given to since.

    What it holds is run when it is loaded, so nobody else may ever have been able to write it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise BadResume("cannot open this file", file=str(path), cause=error.strerror) from error
    file = os.fdopen(descriptor, "r+b")
    status = os.fstat(descriptor)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o022 or status.st_nlink > 1:
        file.close()
        raise BadResume("others may have written this file", file=str(path))
    return file


def _read(file: BinaryIO, path: Path) -> dict[bytes, bytes]:
    """Read what is whole; an end that was cut off is done again. Raises BadResume."""
    data = file.read()
    if not data:
        return {}
    if not data.startswith(_MAGIC):
        file.close()
        raise BadResume("this is no file of finished tasks", file=str(path))
    done: dict[bytes, bytes] = {}
    at = len(_MAGIC)
    while at + _HEAD.size <= len(data):
        name, digest, length = _HEAD.unpack_from(data, at)
        result = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(result) < length or blake3(result).digest() != digest:
            break
        done[name] = result
        at += _HEAD.size + length
    if at < len(data):  # so that what is appended can be read
        file.truncate(at)
    return done
