"""What can go wrong with a table.

TableError
├── TableMisuse      our caller broke the contract
├── NoTable          there is no table at this place
├── TableExists      there is one already
├── RangeTaken       another writer committed these offsets: nothing was added, nothing is lost
├── RangeGap         a commit would leave offsets out
├── FileGone         a file that was to be replaced is not in the table any more
├── Contended        other writers were always quicker
├── CommitUnknown    nobody can say whether the commit happened; the next one will know
└── TableDamaged     the log contradicts itself, or a file is not what its commit says
"""

from __future__ import annotations


class TableError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class TableMisuse(TableError):
    """Our caller broke the contract."""


class NoTable(TableError):
    """There is no table at this place."""


class TableExists(TableError):
    """There is a table already."""


class RangeTaken(TableError):
    """Another writer committed these offsets: nothing was added, nothing is lost."""


class RangeGap(TableError):
    """A commit would leave offsets out."""


class FileGone(TableError):
    """A file that was to be replaced is not in the table any more."""


class Contended(TableError):
    """Other writers were always quicker."""


class CommitUnknown(TableError):
    """Nobody can say whether the commit happened; whoever reads the log next knows."""


class TableDamaged(TableError):
    """The log contradicts itself, or a file is not what its commit says."""
