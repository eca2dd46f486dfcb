"""What can go wrong with an archive.

ArchiveError
├── ArchiveMisuse         our caller named a place that cannot be meant
├── ArchiveForeign        the place holds another cluster's archive
├── ArchiveFormatUnknown  written by a later release
├── ArchiveMissing        an object that the manifest lists is not there
├── ArchiveDamaged        bytes, or the chain of records, are not what was written
├── ArchiveConflict       another archiver added a record first: read again
└── ArchiveUnreachable    the store does not answer: try again
"""

from __future__ import annotations


class ArchiveError(Exception):
    """Root: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class ArchiveMisuse(ArchiveError):
    """A place or a name that cannot be meant."""


class ArchiveForeign(ArchiveError):
    """The archive is another cluster's; nothing was written."""


class ArchiveFormatUnknown(ArchiveError):
    """A format version that this release does not know."""


class ArchiveMissing(ArchiveError):
    """An object that is listed, or asked for, is not there."""


class ArchiveDamaged(ArchiveError):
    """An object or a record is not what was written."""


class ArchiveConflict(ArchiveError):
    """Somebody else added this record first; nothing was written."""


class ArchiveUnreachable(ArchiveError):
    """The store does not answer, or refuses. Trying again may help."""
