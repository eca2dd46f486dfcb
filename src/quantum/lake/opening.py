"""From the text that a user writes to a source."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from quantum.archive.names import MANIFEST_FOLDER
from quantum.lake.archive.directory_source import DirectorySource
from quantum.lake.archive.falling_through import FallThroughSource
from quantum.lake.archive.keys import KeyProvider
from quantum.lake.archive.object_source import ArchiveSource
from quantum.lake.archive.source import LogSource
from quantum.lake.errors import BadAddress
from quantum.lake.feed.client import ClusterSource

CLUSTER: Final = "cluster:"


def open_source(where: str, keys: KeyProvider) -> LogSource:
    """Open a source; what it reads is read when it is asked.

        path/of/var, path/of/var/node-1   the directory of a stopped broker, or of one node
        file:///…, s3://bucket/prefix, …  an archive; a directory that is one may be a plain path
        cluster:HOST:PORT[,HOST:PORT…]    a running cluster, by admin addresses of its nodes
        cluster:HOST:PORT+URL             the same; what it has compacted comes from its archive

    Raises BadAddress, and what the source raises when it looks.
    """
    if where.startswith(CLUSTER):
        addresses, plus, url = where.removeprefix(CLUSTER).partition("+")
        live = ClusterSource.at(addresses, keys)
        return FallThroughSource(live, ArchiveSource(_url(url), keys)) if plus else live
    if urlsplit(where).scheme:
        return ArchiveSource(where, keys)
    try:
        return DirectorySource.at(Path(where), keys)
    except BadAddress:
        if any(Path(where).glob(f"*/*/{MANIFEST_FOLDER}")):
            return ArchiveSource(_url(where), keys)
        raise


def _url(where: str) -> str:
    """Take a path for an archive's, unless it is neither whole nor there."""
    path = Path(where)
    return path.absolute().as_uri() if where and (path.is_absolute() or path.is_dir()) else where
