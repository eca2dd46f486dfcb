"""What the rows and the Spark source refuse, beside what a source of logs raises (`errors`).

LakeError
├── BadOption             an option or an argument that means nothing here
├── OffsetAhead           a query read further than the log goes
├── EntryUnreadable       an authentic entry that this release cannot understand
├── UnknownSchemaVersion  columns of a later release
└── JavaMissing           Spark needs a Java that is not here

A query that failed goes on where it stopped once the cause is gone: offsets move only over what
was read.
"""

from __future__ import annotations

from quantum.lake.errors import LakeError


class BadOption(LakeError):
    """An option or an argument that means nothing here."""


class OffsetAhead(LakeError):
    """A query read further than the log goes: this is another log, or a copy that lags behind."""


class EntryUnreadable(LakeError):
    """An entry is authentic, and still not what this release writes."""


class UnknownSchemaVersion(LakeError):
    """Columns of a later release than this one."""


class JavaMissing(LakeError):
    """Spark needs a Java of version 17 or later, and there is none."""
