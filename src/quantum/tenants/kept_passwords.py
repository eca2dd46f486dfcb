"""What is kept of one user's password: hashes in one text, never the password.

`quantum users add` keeps a scrypt hash, which is the dearest to guess and checks passwords that
come in clear, and a credential for each mechanism of SCRAM. A user that an administrator's Kafka
client made has the latter alone, one that an older release made the former alone.

    $scrypt$ln=14,r=8,p=5$SALT$KEY $SCRAM-SHA-256$i=16384$SALT$STORED$SERVER $SCRAM-SHA-512$…
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quantum.tenancy import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    SCRAM_MECHANISMS,
    ScramCredential,
    key_bytes,
)

_SCRYPT: Final = "scrypt"


@dataclass(frozen=True, slots=True)
class KeptPassword:
    """One user's hashes."""

    scrypt: str = ""
    """As `hash_password` makes it; empty: there is none."""
    scram: Mapping[str, ScramCredential] = field(default_factory=dict)
    """By mechanism."""

    def __bool__(self) -> bool:
        """Say whether there is any hash that could let the user in."""
        return bool(self.scrypt or self.scram)

    def text(self) -> str:
        """Return what is written down."""
        parts = [self.scrypt] if self.scrypt else []
        for mechanism, each in sorted(self.scram.items()):
            keys = "$".join(map(_encoded, (each.salt, each.stored_key, each.server_key)))
            parts.append(f"${mechanism}$i={each.iterations}${keys}")
        return " ".join(parts)

    def with_scram(self, mechanism: str, credential: ScramCredential) -> KeptPassword:
        """Give a mechanism another credential.

        The scrypt hash is of another password, for all that anybody knows: it goes, and passwords
        in clear are checked by SCRAM's keys from then on.
        """
        return KeptPassword("", {**self.scram, mechanism: credential})

    def without_scram(self, mechanism: str) -> KeptPassword:
        left = {name: each for name, each in self.scram.items() if name != mechanism}
        return KeptPassword(self.scrypt, left)


def read_kept(text: object) -> KeptPassword:
    """Read what was written down; a part that cannot be read lets nobody in."""
    scrypt, scram = "", {}
    for part in text.split(" ") if isinstance(text, str) else ():
        _, _, rest = part.partition("$")
        method = rest.partition("$")[0]
        if method == _SCRYPT:
            scrypt = part
        elif (found := _read_scram(method, part)) is not None:
            scram[method] = found
    return KeptPassword(scrypt, scram)


def _read_scram(mechanism: str, part: str) -> ScramCredential | None:
    fields = part.split("$")
    if mechanism not in SCRAM_MECHANISMS or len(fields) != 6 or fields[2][:2] != "i=":
        return None
    try:
        iterations = int(fields[2][2:])
        salt, stored, server = (base64.b64decode(each, validate=True) for each in fields[3:])
    except (binascii.Error, ValueError):
        return None
    is_whole = len(stored) == len(server) == key_bytes(mechanism)
    is_bounded = ITERATIONS_MIN <= iterations <= ITERATIONS_MAX and 0 < len(salt) <= SALT_BYTES_MAX
    return ScramCredential(salt, iterations, stored, server) if is_whole and is_bounded else None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
