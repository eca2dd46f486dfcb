"""Points that an archive can be gone back to: which entry of every partition, and its digest.

The archive itself is written all the time; a backup is a record beside it, `_backups/<ms>.json`,
made when everything through these entries is in the store and was read back. It is created once
and never changed. A MAC under the keys of the first partition vouches for it.

Beside it are marks, of which the names are all that counts: `<ms>.scheduled` (a schedule made it,
and may let it go) and `<ms>.verified` (it was read back after it had been written down). They vouch
for nothing: who goes back authenticates everything again. `drills/<ms>.json` says when a restore
was practised. Releases that know of no marks do not see them.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import rfc8785

from clustor.log.keys import KeyRing
from clustor.log.types import LogId, MacEpoch, PartitionId
from quantum.archive.backup_planning import StoredBackup
from quantum.archive.errors import ArchiveDamaged, ArchiveFormatUnknown, ArchiveMissing
from quantum.archive.listing import Listing
from quantum.archive.objects import Objects

FOLDER: Final = "_backups/"
FORMAT: Final = "quantum-backup"
_NAME: Final = re.compile(r"_backups/(\d{15})\.json")
_PART: Final = re.compile(r"_backups/(\d{15})\.(json|scheduled|verified)")
_DRILL: Final = re.compile(r"_backups/drills/(\d{15})\.json")
_BYTES_MAX: Final = 16 << 20
_MAC_DOMAIN: Final = LogId(b"quantum backup\x00\x01")


class BackupPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One partition: its state behind `index` has this digest."""

    prg: str
    index: int
    digest: str


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A moment of a whole archive."""

    made_ms: int
    points: tuple[BackupPoint, ...]
    mac_epoch: int
    format: str = FORMAT
    format_version: int = 1
    mac: str = ""
    groups: tuple[BackupPoint, ...] | msgspec.UnsetType = msgspec.UNSET
    """The cluster's own groups; not written where there are none, as by releases before."""

    @property
    def group_points(self) -> tuple[BackupPoint, ...]:
        return () if self.groups is msgspec.UNSET else self.groups

    @property
    def name(self) -> str:
        return f"{FOLDER}{self.made_ms:015d}.json"


@dataclass(frozen=True, slots=True)
class BackupsFound:
    """What one look at the store finds."""

    backups: tuple[StoredBackup, ...] = ()
    """The oldest first."""
    drilled_ms: int | None = None
    """When a restore was last practised, and gave what was backed up."""


def find_backups(objects: Objects) -> BackupsFound:
    """List what there is of backups, by one listing of names."""
    parts: dict[int, set[str]] = {}
    drills: list[int] = []
    for name in objects.names(FOLDER):
        if part := _PART.fullmatch(name):
            parts.setdefault(int(part[1]), set()).add(part[2])
        elif drill := _DRILL.fullmatch(name):
            drills.append(int(drill[1]))
    found = (
        StoredBackup(made_ms, "json" in has, "verified" in has, "scheduled" in has)
        for made_ms, has in sorted(parts.items())
    )
    return BackupsFound(tuple(found), max(drills, default=None))


def mark_scheduled(objects: Objects, made_ms: int) -> None:
    """Say that a schedule makes this backup; before it is written down, or it would stay."""
    objects.create(_mark(made_ms, "scheduled"), b"{}\n")


def mark_verified(objects: Objects, made_ms: int, verified_ms: int) -> None:
    """Say that this backup was read back, and when."""
    said = msgspec.json.encode({"verified_ms": verified_ms}) + b"\n"
    objects.create(_mark(made_ms, "verified"), said)


def delete_backup(objects: Objects, made_ms: int) -> None:
    """Let a scheduled backup go; what is left of it if this is cut short is found again."""
    for part in ("verified", "json", "scheduled"):
        objects.delete(_mark(made_ms, part))


def record_drill(objects: Objects, drilled_ms: int, report: dict[str, Any]) -> None:
    """Write down that a restore was practised, and what came of it."""
    name = f"{FOLDER}drills/{drilled_ms:015d}.json"
    objects.create(name, msgspec.json.encode(report) + b"\n")


def _mark(made_ms: int, part: str) -> str:
    return f"{FOLDER}{made_ms:015d}.{part}"


def write_backup(objects: Objects, backup: Backup, keys: KeyRing) -> None:
    """Create the record. Raises ArchiveDamaged where there is one of this very moment."""
    sealed = msgspec.structs.replace(backup, mac=_mac(backup, keys))
    if not objects.create(backup.name, _canonical(sealed)):
        raise ArchiveDamaged("there is a backup of this moment already", object=backup.name)


def list_backups(objects: Objects) -> list[int]:
    """Return when backups were made, the oldest first."""
    found = (_NAME.fullmatch(name) for name in objects.names(FOLDER))
    return sorted(int(each[1]) for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class OldestNeed:
    """Where the oldest backup stands that can be gone back to, and what it begins with."""

    index: int
    first: int


def oldest_need(objects: Objects, listing: Listing) -> OldestNeed | None:
    """Return which entries a backup needs to be gone back to; None: no backup needs any.

    A later backup never needs an earlier entry, so the oldest that can still be gone back to
    says it. MACs are not looked at: who may write here may delete as well.
    """
    bases = [row.base_index for row in listing.snapshots]
    for made_ms in list_backups(objects):
        points = read_backup(objects, made_ms, None).points
        index = next((each.index for each in points if each.prg == str(listing.prg)), None)
        if index is None:
            continue  # it is older than the partition
        base = max((each for each in bases if each <= index), default=0)
        if base or listing.first <= 1:
            return OldestNeed(index, base + 1)
    return None


def read_backup(objects: Objects, made_ms: int | None, keys: KeyRing | None) -> Backup:
    """Read a backup, the newest for None; with keys, one that somebody with them wrote.

    Raises ArchiveMissing, ArchiveFormatUnknown, ArchiveDamaged and KeyUnavailable.
    """
    known = list_backups(objects)
    if not known or made_ms not in (None, *known):
        raise ArchiveMissing("there is no such backup", made_ms=made_ms)
    chosen = known[-1] if made_ms is None else made_ms
    name = f"{FOLDER}{chosen:015d}.json"
    try:
        found = msgspec.json.decode(objects.get(name, _BYTES_MAX), type=Backup)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArchiveDamaged("a backup cannot be read", object=name) from error
    if (found.format, found.format_version) != (FORMAT, 1):
        raise ArchiveFormatUnknown("a backup of a format that is not known", object=name)
    if keys is not None and not hmac.compare_digest(found.mac, _mac(found, keys)):
        raise ArchiveDamaged("a backup's MAC does not match", object=name)
    return found


def _canonical(backup: Backup) -> bytes:
    members: Any = msgspec.to_builtins(backup)
    return rfc8785.dumps(members)


def _mac(backup: Backup, keys: KeyRing) -> str:
    key = keys.mac_key(MacEpoch(backup.mac_epoch), PartitionId(0), _MAC_DOMAIN)
    bare = _canonical(msgspec.structs.replace(backup, mac=""))
    return hmac.digest(key, bare, "sha256").hex()
