"""What can go wrong with streams.

LogError
└── StreamError
    ├── StreamMisuse         our caller asked for something that cannot be meant
    ├── StreamFenced         a plan failed; nothing more is planned until the next start
    ├── UnknownStream        a partition that was never defined, or was removed
    ├── UnknownPolicy        a custom quorum policy that nobody registered
    ├── StreamOutOfOrder     a change does not continue its partition
    ├── StreamOutOfRange     a read before the start or behind the end of a partition
    └── ViewExpired          a trim or a removal took a file since the view was taken

Damaged bytes raise the log's own errors, so that they are classified alike (clustor §9.4):
ChecksumMismatch needs repair, AuthenticationFailed is quarantine, MissingFile is a loss.
"""

from __future__ import annotations

from clustor.log.errors import LogError


class StreamError(LogError):
    """Root of this room's errors."""


class StreamMisuse(StreamError):
    """Our caller asked for something that cannot be meant."""


class StreamFenced(StreamError):
    """A plan failed, so what is on disk is not known; the next start finds out."""


class UnknownStream(StreamError):
    """The partition was never defined here."""


class UnknownPolicy(StreamError):
    """A custom quorum policy is named that is not registered."""


class StreamOutOfOrder(StreamError):
    """A change does not continue its partition: `facts` say what was expected."""


class StreamOutOfRange(StreamError):
    """A read outside of what the partition holds; `facts` give its start and its end."""


class ViewExpired(StreamError):
    """A file was removed after the view was taken: take a new one."""
