"""Where the objects of a partition are, below an archive's root.

<tenant>/<number>/segments/<first>-<last>.<blake3>     a segment as it was on the leader's disk
<tenant>/<number>/snapshots/<base>.<blake3>            a snapshot's manifest and its chunks
<tenant>/<number>/manifest/<seq>.json                  one record of the chain that lists them

_groups/control/0/…, _groups/kv/<number>/…             the same of the cluster's own groups
_backups/<milliseconds>.json                           points that can be gone back to
_backups/<milliseconds>.scheduled, .verified           marks of such a point
_backups/drills/<milliseconds>.json                    when going back was practised
"""

from __future__ import annotations

import re

from quantum.archive.types import PrgId

MANIFEST_FOLDER = "manifest"
GROUPS_FOLDER = "_groups"
_RECORD = re.compile(r"([A-Za-z0-9][A-Za-z0-9._~-]*)/(\d{1,9})/manifest/(\d{20})\.json")
"""Tenants are named as the control plane names them; one that was made again has a `~` in it."""


def groups_url(url: str) -> str:
    """Return where the cluster's own groups are archived, for an archive of tenants' messages."""
    head, mark, query = url.partition("?")
    return f"{head.rstrip('/')}/{GROUPS_FOLDER}{mark}{query}"


def folder(prg: PrgId) -> str:
    return f"{prg.tenant}/{prg.number}/"


def record_name(prg: PrgId, seq: int) -> str:
    return f"{folder(prg)}manifest/{seq:020d}.json"


def manifest_folder(prg: PrgId) -> str:
    return f"{folder(prg)}manifest/"


def segment_name(prg: PrgId, first: int, last: int, digest: str) -> str:
    return f"{folder(prg)}segments/{first:020d}-{last:020d}.{digest}"


def snapshot_name(prg: PrgId, base_index: int, digest: str) -> str:
    return f"{folder(prg)}snapshots/{base_index:020d}.{digest}"


def record_of(name: str) -> tuple[PrgId, int] | None:
    """Say which record a name is; None for any other object."""
    found = _RECORD.fullmatch(name)
    return None if found is None else (PrgId(found[1], int(found[2])), int(found[3]))
