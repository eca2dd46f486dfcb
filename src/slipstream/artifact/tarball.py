"""Artifacts as one stream: written file by file, read back with nothing trusted."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

from slipstream.artifact.manifest import DATA_NAME, MANIFEST_NAME, ArtifactFile, ExportManifest
from slipstream.errors import ArtifactInvalid

_CHUNK: Final = 1024 * 1024
_BLOCK: Final = tarfile.BLOCKSIZE
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024


def tar_chunks(artifact: Path, manifest: ExportManifest) -> Iterator[bytes]:
    """Give an artifact as a tar, the manifest first, a chunk at a time."""
    raw = manifest.encode()
    yield _header(MANIFEST_NAME, len(raw)) + raw + _padding(len(raw))
    for file in manifest.files:
        yield _header(f"{DATA_NAME}/{file.path}", file.size)
        sent = 0
        with (artifact / DATA_NAME / file.path).open("rb") as source:
            while chunk := source.read(_CHUNK):
                sent += len(chunk)
                yield chunk
        if sent != file.size:
            raise ArtifactInvalid("a file changed while it was sent", path=file.path)
        yield _padding(file.size)
    yield bytes(2 * _BLOCK)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def unpack(chunks: Iterator[bytes], wanted: bytes, directory: Path) -> ExportManifest:
    """Write an artifact from its stream into an empty directory, and verify all of it.

    `wanted` is the manifest that the pointer gave: the embedded one must be those bytes, every
    file must be listed in it with its size and digest, and none may be missing.
    """
    manifest = ExportManifest.decode(wanted)
    left = {f"{DATA_NAME}/{file.path}": file for file in manifest.files}
    try:
        with tarfile.open(fileobj=io.BufferedReader(_ChunkReader(chunks)), mode="r|") as archive:
            members = iter(archive)
            _unpack_manifest(archive, next(members, None), wanted, directory)
            for member in members:
                file = left.pop(member.name, None)
                if file is None or not member.isreg() or member.size != file.size:
                    raise ArtifactInvalid("the payload holds what it should not", path=member.name)
                _unpack_file(archive, member, file, directory)
    except (tarfile.TarError, EOFError) as error:
        raise ArtifactInvalid("the payload is torn", cause=str(error)) from error
    if left:
        raise ArtifactInvalid("the payload misses files", missing=len(left))
    return manifest


def _unpack_manifest(
    archive: tarfile.TarFile, member: tarfile.TarInfo | None, wanted: bytes, directory: Path
) -> None:
    if member is None or member.name != MANIFEST_NAME or member.size != len(wanted):
        raise ArtifactInvalid("the payload's manifest is not the pointer's")
    source = archive.extractfile(member)
    if source is None or source.read() != wanted:
        raise ArtifactInvalid("the payload's manifest is not the pointer's")
    (directory / DATA_NAME).mkdir()
    (directory / MANIFEST_NAME).write_bytes(wanted)


def _unpack_file(
    archive: tarfile.TarFile, member: tarfile.TarInfo, file: ArtifactFile, directory: Path
) -> None:
    source = archive.extractfile(member)
    assert source is not None, "a regular member has content"
    target = directory / DATA_NAME / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    hasher = blake3()
    with target.open("xb") as sink:
        while chunk := source.read(_CHUNK):
            hasher.update(chunk)
            sink.write(chunk)
    if hasher.hexdigest() != file.blake3:
        raise ArtifactInvalid("a file of the payload is not what was exported", path=file.path)


def manifest_bytes_in(head: bytes) -> int:
    """Give how many bytes of a tar hold its first member, from its first block."""
    try:
        entry = tarfile.TarInfo.frombuf(head, "utf-8", "strict")
    except tarfile.TarError as error:
        raise ArtifactInvalid("not a payload", cause=str(error)) from error
    if entry.name != MANIFEST_NAME or entry.size > MANIFEST_BYTES_MAX:
        raise ArtifactInvalid("not a payload", first=entry.name)
    return entry.size


class _ChunkReader(io.RawIOBase):
    """A stream of chunks as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # the stub wants any writable buffer
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(bytes(chunk))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
