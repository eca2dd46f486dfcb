"""What can go wrong when a log is read from outside.

LakeError
├── BadAddress           our caller named a source that cannot be meant
├── UnknownFormat        written by a release that this one does not know
├── LogGone              entries are not there any more; says which
├── DamagedBlock         bytes are not what was written
├── WrongKey             no key for what was read, or the wrong one
├── NotPermitted         whoever serves the log refuses this reader
└── SourceUnreachable    nobody answers, or nobody may answer now: try again
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quantum.archive.types import PrgId


class LakeError(Exception):
    """Root: a sentence for people, `facts` for machines, and where in which log.

    `prg` and `index` are None where the error is not about a partition or an entry. Pickles, so
    that an executor's error reaches the driver as it is.
    """

    def __init__(
        self, reason: str, *, prg: PrgId | None = None, index: int | None = None, **facts: object
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.prg = prg
        self.index = index
        self.facts = {name: str(value) for name, value in facts.items()}

    def __str__(self) -> str:
        where = {} if self.prg is None else {"prg": str(self.prg)}
        if self.index is not None:
            where["index"] = str(self.index)
        details = ", ".join(f"{name}={value}" for name, value in (where | self.facts).items())
        return f"{self.reason} ({details})" if details else self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.reason, dict(self.__dict__))


class BadAddress(LakeError):
    """The source that was named cannot be meant."""


class UnknownFormat(LakeError):
    """A format version that this release does not know."""


class LogGone(LakeError):
    """Entries from `first` through `last` are not in this source, though they once were written.

    `readable_from` is the next index that can be read, None where there is none.
    """

    def __init__(
        self,
        reason: str,
        *,
        prg: PrgId,
        first: int,
        last: int,
        readable_from: int | None = None,
        **facts: object,
    ) -> None:
        super().__init__(reason, prg=prg, index=first, first=first, last=last, **facts)
        self.first = first
        self.last = last
        self.readable_from = readable_from


class DamagedBlock(LakeError):
    """Bytes of the log are not what was written; what was yielded before is good."""


class WrongKey(LakeError):
    """The key for an epoch is missing, or it is the wrong one."""


class NotPermitted(LakeError):
    """This reader may not read that tenant's log."""


class SourceUnreachable(LakeError):
    """Nobody answers, or who answers may not serve now. Trying again later may help."""


@contextmanager
def while_reading(prg: PrgId, index: int) -> Iterator[None]:
    """Let an error that names neither say which partition was read, and from which index on."""
    try:
        yield
    except LakeError as error:
        error.prg = prg if error.prg is None else error.prg
        error.index = index if error.index is None else error.index
        raise


def _rebuilt(kind: type[LakeError], reason: str, members: dict[str, Any]) -> LakeError:
    error = kind.__new__(kind, reason)
    error.args = (reason,)
    error.__dict__.update(members)
    return error
