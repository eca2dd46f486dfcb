"""Where a reader's keys come from. A provider names them; it never holds, shows or sends them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from clustor.log.errors import ChecksumMismatch, KeyUnavailable, UnsupportedFormat
from clustor.log.keyfile import decode_keyring, open_keyring, parse_kek
from clustor.log.keys import KeyRing
from clustor.runtime.keys.store import KEYRING_FILE, find_keyring, load_keyring
from quantum.archive.feed_page import key_name
from quantum.archive.types import PrgId
from quantum.lake.errors import WrongKey

RING_SUFFIX = "_KEYRING"
KEK_SUFFIX = "_KEK"

journal = logging.getLogger("quantum.lake")


class KeyProvider(Protocol):
    """Gives the key ring of a partition's tenant. Picklable: executors ask it where they run."""

    def keyring(self, prg: PrgId) -> KeyRing:
        """Return the ring, or raise WrongKey."""


@cache
def _say_above(found: str, directory: str) -> None:
    """Say once that a directory has no ring of its own: another cluster's may be meant."""
    journal.warning("%s has no keys: those of %s are taken, the nearest above", directory, found)


@dataclass(frozen=True, slots=True)
class DirectoryKeys:
    """Keys in files: `<directory>/<tenant>/` where that is, else the directory's own ring.

    The directory is a node's or a broker's data directory, its `keys`, or one made for readers.
    `key_file` holds the key-encryption key where it is kept elsewhere.
    """

    directory: str
    key_file: str | None = None

    def keyring(self, prg: PrgId) -> KeyRing:
        root = Path(self.directory)
        key_file = None if self.key_file is None else Path(self.key_file)
        own = root / prg.tenant
        try:
            found = own if (own / KEYRING_FILE).is_file() else find_keyring(root)
            if not found.is_relative_to(root.resolve()):
                _say_above(str(found), self.directory)
            return load_keyring(found, key_file)
        except (KeyUnavailable, ChecksumMismatch, UnsupportedFormat) as error:
            wanted = f"{KEYRING_FILE} of tenant {prg.tenant}"
            facts: dict[str, Any] = {"wanted": wanted, "given": self} | error.facts
            facts.pop("directory", None)  # it is what was given
            raise WrongKey(error.reason, prg=prg, **facts) from error

    def __str__(self) -> str:
        return f"directory {self.directory}"


@dataclass(frozen=True, slots=True)
class EnvironmentKeys:
    """Keys in the environment: `<name>_KEYRING`, a `keyring.json`, and `<name>_KEK`, 64 hex digits.

    `<name>_<TENANT>_…` goes before, for a tenant with keys of its own.
    """

    name: str

    def keyring(self, prg: PrgId) -> KeyRing:
        tenant = "".join(c if c.isalnum() else "_" for c in prg.tenant).upper()
        for prefix in (f"{self.name}_{tenant}", self.name):
            ring, kek = os.environ.get(prefix + RING_SUFFIX), os.environ.get(prefix + KEK_SUFFIX)
            if ring is not None and kek is not None:
                try:
                    return open_keyring(decode_keyring(ring.encode()), parse_kek(kek))
                except (KeyUnavailable, ChecksumMismatch, UnsupportedFormat) as error:
                    facts: dict[str, Any] = error.facts | {"variable": prefix}
                    raise WrongKey(error.reason, prg=prg, **facts) from error
        wanted = f"{self.name + RING_SUFFIX} and {self.name + KEK_SUFFIX}"
        raise WrongKey("no key in the environment", prg=prg, wanted=wanted, given="neither")

    def __str__(self) -> str:
        return f"environment {self.name}"


def given_by(keys: KeyProvider, prg: PrgId) -> str:
    """Say which key a provider gives, by its name, and where it is from."""
    try:
        return f"{key_name(keys.keyring(prg))} of {keys}"
    except WrongKey:
        return str(keys)
