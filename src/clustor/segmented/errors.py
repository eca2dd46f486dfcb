"""What can go wrong with a segmented log.

LogError
└── SegmentedError
    ├── SegmentedMisuse      our caller asked for something that cannot be meant
    ├── SegmentedFenced      a plan failed; nothing more is planned until recovery
    ├── UnknownPartition     a partition that was never defined, or was removed
    ├── UnknownPolicy        a custom quorum policy that nobody registered
    ├── MalformedEnvelope    a log entry that is no list of partition batches
    ├── EntryOutOfOrder      a batch does not continue its partition
    ├── IndexOutOfRange      a read before the start or behind the end of a partition
    ├── ViewExpired          retention or compaction took a file since the view was taken
    └── MetadataBehindLog    the log was cut where the metadata does not vouch for the partitions

Damaged bytes raise the log's own errors, so that they are classified alike (clustor §9.4):
ChecksumMismatch needs repair, AuthenticationFailed is quarantine, MissingFile is a loss.
"""

from __future__ import annotations

from clustor.log.errors import LogError


class SegmentedError(LogError):
    """Root of this room's errors."""


class SegmentedMisuse(SegmentedError):
    """Our caller asked for something that cannot be meant."""


class SegmentedFenced(SegmentedError):
    """A plan failed, so what is on disk is not known; recovery finds out."""


class UnknownPartition(SegmentedError):
    """The partition was never defined here."""


class UnknownPolicy(SegmentedError):
    """A custom quorum policy is named that is not registered."""


class MalformedEnvelope(SegmentedError):
    """A log entry is not a well-formed list of partition batches."""


class EntryOutOfOrder(SegmentedError):
    """A batch does not continue its partition: `facts` say what was expected."""


class IndexOutOfRange(SegmentedError):
    """A read outside of what the partition holds; `facts` give its start and its end."""


class ViewExpired(SegmentedError):
    """A file was removed after the view was taken: take a new one."""


class MetadataBehindLog(SegmentedError):
    """The log no longer holds entries that the metadata does not prove to be in partitions."""
