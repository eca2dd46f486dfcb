"""The files that a process runs from, compared with a signed release when it starts.

pki/release-keys.json   whom to believe; where it is, a node starts from a verified release only
pki/release.json        the release: digests of all files, and the signature

It shows that files were changed, by anybody without the key. It is no defence against somebody who
changes this very code, nor does it look at what Python compiles into `__pycache__`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, TypeVar

import msgspec

import clustor
from clustor.runtime.errors import ReleaseUnverified
from clustor.runtime.keys.operator_keys import Office
from clustor.security import KeyState, KeyUse
from clustor.security.release import (
    ReleaseKey,
    ReleaseManifest,
    SignedRelease,
    judge_release,
    release_bytes,
)

RELEASE_FILE: Final = "release.json"
RELEASE_KEYS_FILE: Final = "release-keys.json"
PACKAGES: Final = ("clustor", "slipstream", "quantum")
_KINDS: Final = (".py", ".so", ".typed")
_T = TypeVar("_T")


def packages_root() -> Path:
    """Return the directory that the packages are in."""
    return Path(clustor.__file__).resolve().parent.parent


def digests_below(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of the packages; raises OSError."""
    files = [path for name in PACKAGES for path in (root / name).rglob("*") if path.is_file()]
    files += root.glob("quantum_hot__mypyc*.so")
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(files)
        if path.suffix in _KINDS
    }


def release_here(
    office: Office, version: str, now_ms: int
) -> tuple[SignedRelease, tuple[ReleaseKey, ...]]:
    """Sign what this process runs from, and say which keys releases are believed for."""
    manifest = ReleaseManifest(
        version=version, released_at_ms=now_ms, files=digests_below(packages_root())
    )
    key_id, signature = office.sign_bytes(KeyUse.RELEASE_AUTOMATION, release_bytes(manifest))
    release = SignedRelease(manifest=manifest, key_id=key_id, signature=signature)
    keys = tuple(
        ReleaseKey(
            key_id=office.key_id(entry),
            public_key=office.public_key(entry).hex(),
            activates_at_ms=entry.activated_at_ms,
            retires_at_ms=entry.ends_at_ms,
        )
        for entry in office.registry.of(KeyUse.RELEASE_AUTOMATION)
        if entry.activated_at_ms is not None and entry.state is not KeyState.ZEROIZED
    )
    return release, keys


def check_release(pki: Path, root: Path | None = None) -> str | None:
    """Return the version of the release that runs here; None: nobody asks for one.

    Raises ReleaseUnverified.
    """
    if not (pki / RELEASE_KEYS_FILE).exists():
        return None
    keys = _read(pki / RELEASE_KEYS_FILE, tuple[ReleaseKey, ...])
    release = _read(pki / RELEASE_FILE, SignedRelease)
    problem = judge_release(release, keys, digests_below(root or packages_root()))
    if problem:
        raise ReleaseUnverified(
            "this is not the release that was signed",
            version=release.manifest.version,
            problem=problem,
        )
    return release.manifest.version


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise ReleaseUnverified("a release cannot be read", file=str(path)) from error
