"""Where the files of the snapshots stand below the partition's directory (clustor §7.1)."""

from __future__ import annotations

import re
from typing import Final

from clustor.log.steps import FileName
from clustor.log.types import LogIndex, Term
from clustor.snapshot.types import ChunkId

SNAPSHOT_DIRECTORY: Final = "snapshot"
CHUNKS_DIRECTORY: Final = "snapshot/chunks"
INCOMING_DIRECTORY: Final = "snapshot/incoming"
AUTHORIZATION_LOG: Final = FileName("snapshot/authorization.log")
INCOMING_MANIFEST: Final = FileName("snapshot/incoming/manifest.json")
MANIFEST_NAME: Final = "manifest.json"

_MANIFEST_DIRECTORY = re.compile(r"\d+-\d+(\.\d+)?")


def manifest_directory(term: Term, index: LogIndex, generation: int = 0) -> str:
    """Name a manifest's directory.

    A snapshot may have to be emitted again at the same index (a new key epoch in an idle
    partition); it gets the next `generation`, since it must never replace the manifest that is
    authoritative until the new one is authorised.
    """
    suffix = f".{generation}" if generation else ""
    return f"{SNAPSHOT_DIRECTORY}/{term}-{index}{suffix}"


def manifest_file(term: Term, index: LogIndex, generation: int = 0) -> FileName:
    return FileName(f"{manifest_directory(term, index, generation)}/{MANIFEST_NAME}")


def is_manifest_directory(name: str) -> bool:
    """Say whether a name below `snapshot/` is one that `manifest_directory` gives."""
    return _MANIFEST_DIRECTORY.fullmatch(name) is not None


def chunk_file(chunk: ChunkId) -> FileName:
    return FileName(f"{CHUNKS_DIRECTORY}/{chunk}")
