"""From the text that a user writes to a source."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from quantum.lake.archive.directory_source import DirectorySource
from quantum.lake.archive.keys import KeyProvider
from quantum.lake.archive.source import LogSource
from quantum.lake.errors import BadAddress

CLUSTER: Final = "cluster:"


def open_source(where: str, keys: KeyProvider) -> LogSource:
    """Open a source; what it reads is read when it is asked.

        path/of/var, path/of/var/node-1   the directory of a stopped broker, or of one node
        file:///…, s3://bucket/prefix, …  an archive
        cluster:HOST:PORT                 a running cluster, by the admin address of any node
        cluster:HOST:PORT+URL             the same; what it has compacted comes from its archive

    Raises BadAddress, and what the source raises when it looks.
    """
    if where.startswith(CLUSTER):
        raise BadAddress("not built yet", where=where)
    if urlsplit(where).scheme:
        raise BadAddress("not built yet", where=where)
    return DirectorySource.at(Path(where), keys)
