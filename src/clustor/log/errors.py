"""What can go wrong with a log.

LogError
├── LogMisuse            our caller asked for something the log cannot mean
├── LogFenced            the log takes no appends until it is repaired; says since what
├── CorruptLog           bytes are not what was written
│   ├── ChecksumMismatch     a CRC failed where no key had to vouch (clustor §9.4: needs repair)
│   └── AuthenticationFailed a tag or a MAC failed (clustor §9.4: quarantine)
├── MissingFile          a file that the rest of the log proves must be there is not
├── UnsupportedFormat    written by a version that this one does not know
└── KeyUnavailable       no key for an epoch, or the wrong one
    └── KeyEpochReplay       an epoch went backwards
"""

from __future__ import annotations


class LogError(Exception):
    """Root of the log's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class LogMisuse(LogError):
    """Our caller asked for something that the log cannot mean."""


class LogFenced(LogError):
    """The log takes no more appends; `facts` say since what."""


class CorruptLog(LogError):
    """Bytes on disk are not what was written."""


class ChecksumMismatch(CorruptLog):
    """A CRC does not match its bytes."""


class AuthenticationFailed(CorruptLog):
    """An AEAD tag or a segment MAC does not match its bytes."""


class MissingFile(LogError):
    """A file that must be there is not."""


class UnsupportedFormat(LogError):
    """A format version, suite or record that this release does not know."""


class KeyUnavailable(LogError):
    """The key for an epoch is not in the ring, or it is the wrong one."""


class KeyEpochReplay(KeyUnavailable):
    """A key epoch that is not newer than the one before it."""
