"""The built page as one file that travels with the sources: packed, checked, unpacked. Pure.

The archive is a tar under xz. Its first member names the digest of the sources that it was built
from; beside it lies its own digest, so that a damaged checkout says so instead of serving it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE_ARCHIVE: Final = "page.tar.xz"
PAGE_DIGEST: Final = "page.tar.xz.sha256"
SOURCES: Final = "sources.sha256"
"""The member that says which sources the others were built from."""
INDEX: Final = "index.html"
UNPACKED_BYTES_MAX: Final = 4 << 20
MEMBERS_MAX: Final = 64
_COMPRESSED_FROM: Final = 512
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_NOT_SOURCES: Final = frozenset({"node_modules", "build"})


class ConsoleUnreadable(Exception):
    """The archive is not the one that was built, or is none at all."""


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """One file of the page, ready to be sent either way."""

    kind: str
    body: bytes
    gzipped: bytes | None
    """None where it would not be worth it."""
    tag: str


def source_digest(files: Mapping[str, bytes]) -> str:
    """Return the digest of sources by their names: each name and each length counts."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()


def read_sources(place: Path) -> dict[str, bytes]:
    """Read the sources of the page, without what npm and a build put beside them."""
    return {
        str(each.relative_to(place)): each.read_bytes()
        for each in place.rglob("*")
        if each.is_file() and not _NOT_SOURCES & set(each.relative_to(place).parts)
    }


def pack_console(files: Mapping[str, bytes], sources: str) -> bytes:
    """Return the archive of built files; equal files and sources give equal bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, body in (SOURCES, f"{sources}\n".encode()), *sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return lzma.compress(out.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def unpack_console(packed: bytes, digest: str) -> tuple[str, dict[str, ConsoleFile]]:
    """Return the digest of the sources, and the files by name. Raises ConsoleUnreadable."""
    if [hashlib.sha256(packed).hexdigest()] != digest.split()[:1]:
        raise ConsoleUnreadable("the console's archive is not the one that was built")
    members = _members(_decompress(packed))
    sources = members.pop(SOURCES, b"").decode("ascii", "replace").strip()
    if INDEX not in members or not sources:
        raise ConsoleUnreadable("the console's archive has no page in it")
    return sources, {name: _file(name, body) for name, body in members.items()}


def _decompress(packed: bytes) -> bytes:
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=256 << 20)
    try:
        found = reader.decompress(packed, max_length=UNPACKED_BYTES_MAX + 1)
    except lzma.LZMAError as error:
        raise ConsoleUnreadable(f"the console's archive is damaged: {error}") from error
    if len(found) > UNPACKED_BYTES_MAX or not reader.eof:
        raise ConsoleUnreadable("the console's archive is longer than a page is")
    return found


def _members(tar: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            for member in archive:
                reader = archive.extractfile(member) if member.isreg() else None
                if reader is None or len(found) == MEMBERS_MAX:
                    raise ConsoleUnreadable("the console's archive has what no page has")
                found[member.name] = reader.read()
    except tarfile.TarError as error:
        raise ConsoleUnreadable(f"the console's archive is damaged: {error}") from error
    return found


def _file(name: str, body: bytes) -> ConsoleFile:
    kind = _KINDS.get(Path(name).suffix, "application/octet-stream")
    small = gzip.compress(body, 9, mtime=0) if len(body) >= _COMPRESSED_FROM else None
    return ConsoleFile(kind, body, small, hashlib.sha256(body).hexdigest()[:32])
