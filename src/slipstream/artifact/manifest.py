"""The manifest of an artifact: which fold, at which cursor, and a digest of every file."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Self

import msgspec
from blake3 import blake3

from slipstream.errors import ArtifactInvalid, SlipstreamError
from slipstream.types import WatchCursor

SCHEMA_VERSION: Final = 1
MANIFEST_NAME: Final = "MANIFEST.json"
DATA_NAME: Final = "data"
_CHUNK: Final = 1024 * 1024
_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class ArtifactFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the payload, relative to `data/`."""

    path: str
    size: int
    blake3: str


class ExportManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an artifact says of itself; the encoded bytes are its own content address."""

    schema_version: int
    backend: str
    format_generation: int
    cursor_hex: str
    files: tuple[ArtifactFile, ...]

    @property
    def cursor(self) -> WatchCursor:
        """The cursor that the payload is exactly consistent with."""
        return WatchCursor.decode(bytes.fromhex(self.cursor_hex))

    @property
    def rank(self) -> int:
        """What a pointer compares: the cursor's revision, 0 for an empty fold."""
        return int.from_bytes(self.cursor.position, "big")

    def encode(self) -> bytes:
        """Give the one encoding of this manifest."""
        return msgspec.json.encode(self)

    @property
    def address(self) -> str:
        """The content address: the first eight bytes of BLAKE3 over the encoding, in hex."""
        return address_of(self.encode())

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Read a manifest from an untrusted place; raises `ArtifactInvalid`."""
        try:
            manifest = msgspec.json.decode(raw, type=cls)
            _check(manifest)
            if manifest.encode() != raw:
                raise ArtifactInvalid("the manifest is not in its one encoding")
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise ArtifactInvalid("not a manifest", cause=str(error)) from error
        except ArtifactInvalid:
            raise
        except SlipstreamError as error:
            raise ArtifactInvalid("not a manifest", cause=str(error)) from error
        return manifest


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Asks a running `watch_applied` to export its fold between two flushes."""

    directory: Path
    reply: asyncio.Future[ExportManifest]

    @classmethod
    def to(cls, directory: Path | str) -> Self:
        """Ask for an export into `directory`; await `reply` on the same event loop."""
        return cls(Path(directory), asyncio.get_running_loop().create_future())


def address_of(manifest_bytes: bytes) -> str:
    """Give the content address of an encoded manifest."""
    return blake3(manifest_bytes).hexdigest()[:16]


def _check(manifest: ExportManifest) -> None:
    if manifest.schema_version != SCHEMA_VERSION:
        raise ArtifactInvalid("an unknown schema", schema_version=manifest.schema_version)
    WatchCursor.decode(bytes.fromhex(manifest.cursor_hex))
    seen: set[str] = set()
    for file in manifest.files:
        parts = PurePosixPath(file.path).parts
        plain = parts and "/".join(parts) == file.path and not {"..", "/"} & set(parts)
        if not plain or file.path in seen or file.size < 0 or not _HEX_DIGEST.match(file.blake3):
            raise ArtifactInvalid("a file of the manifest is not plain", path=file.path)
        seen.add(file.path)


def describe_files(directory: Path) -> tuple[ArtifactFile, ...]:
    """Digest every file under `directory`, in order of their paths."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return tuple(_describe(directory, path) for path in found)


def _describe(directory: Path, path: Path) -> ArtifactFile:
    hasher = blake3()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            size += len(chunk)
    return ArtifactFile(path.relative_to(directory).as_posix(), size, hasher.hexdigest())
