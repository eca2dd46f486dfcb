"""Users of tenants and their passwords: kept as hashes, checked beside the loop.

The control plane keeps a key `users.NAME` for each user of a tenant (`quantum users add`), and this
node's copy of it is asked. A hash takes a tenth of a second to check, on purpose; so a few threads
do it, and what was right once is remembered by a digest that only this process can make.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from quantum.config.live import USER_PREFIX
from quantum.tenancy import (
    SALT_BYTES,
    SCRAM_MECHANISMS,
    ScramCredential,
    derive_credential,
    is_scram_password,
)
from quantum.tenants.kept_passwords import KeptPassword, read_kept

IDENTITY_PREFIX: Final = "user:"
"""In front of a user's name in its identity: no certificate's name is taken for it."""
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_COST: Final = (14, 8, 5)
"""log2 n, r and p of scrypt: 16 MiB and about a tenth of a second."""
_COST_MAX: Final = (17, 16, 16)
_MEMORY_MAX: Final = 256 << 20
_THREADS: Final = max(1, (os.cpu_count() or 2) // 2)
"""Half of the cores: the loop needs one."""
_WAITING_MAX: Final = 64
"""So many checks wait at once, which is less than the time that a CONNECT has; more are refused."""
_WAITING_OF_TENANT_MAX: Final = 16
_REMEMBERED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PasswordPolicy:
    """Who must show what, beside what the TLS policy asks for."""

    password: str = "optional"  # noqa: S105  # a word of the policy
    allows_nobody: bool = False
    """Whether who shows nothing at all may come over TLS: only on loopback."""


def keep_password(password: bytes) -> str:
    """Return all that is kept of a password: what checks it in clear, and what SCRAM needs."""
    scram = {
        each: derive_credential(each, password, os.urandom(SALT_BYTES)) for each in SCRAM_MECHANISMS
    }
    return KeptPassword(hash_password(password), scram).text()


def hash_password(password: bytes, salt: bytes | None = None) -> str:
    """Return the hash that checks a password in clear."""
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    log_n, r, p = _COST
    return f"$scrypt$ln={log_n},r={r},p={p}${_text(salt)}${_text(_derive(password, salt, _COST))}"


def is_password(password: bytes, kept: str) -> bool:
    """Say whether a password is the one; what cannot be read lets nobody in."""
    found = read_kept(kept)
    if not found.scrypt:
        return any(is_scram_password(each, password, one) for each, one in found.scram.items())
    try:
        cost, salt, key = _read(found.scrypt)
        return hmac.compare_digest(_derive(password, salt, cost), key)
    except ValueError:
        return False


def _derive(password: bytes, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    log_n, r, p = cost
    fixed = hashlib.sha256(password).digest()  # scrypt's HMAC takes `x` and `x\0` for one key
    return hashlib.scrypt(
        fixed, salt=salt, n=1 << log_n, r=r, p=p, maxmem=_MEMORY_MAX, dklen=_KEY_BYTES
    )


def _read(kept: str) -> tuple[tuple[int, int, int], bytes, bytes]:
    _, method, numbers, salt, key = kept.split("$")
    named = dict(each.split("=") for each in numbers.split(","))
    cost = (int(named["ln"]), int(named["r"]), int(named["p"])) if len(named) == 3 else (0, 0, 0)
    bounded = all(0 < each <= most for each, most in zip(cost, _COST_MAX, strict=True))
    if method != "scrypt" or not bounded:
        raise ValueError("no hash that is known here")
    return cost, base64.b64decode(salt), base64.b64decode(key)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


class UserWords(Protocol):
    """What the control plane says of tenants, as this node's copy has it."""

    def settings(self, tenant: str) -> Mapping[str, object]: ...


class Passwords:
    """The users of a node's tenants."""

    def __init__(self) -> None:
        self.words: UserWords | None = None
        self.policy = PasswordPolicy()
        self._threads: ThreadPoolExecutor | None = None
        self._secret = os.urandom(_KEY_BYTES)
        self._right: dict[bytes, None] = {}
        self._waiting: Counter[str] = Counter()  # by tenant

    def has_users(self, tenant: str) -> bool:
        """Say whether a tenant has users at all."""
        return any(key.startswith(USER_PREFIX) for key in self._settings(tenant))

    def is_user(self, tenant: str, identity: str) -> bool:
        """Say whether an identity that a password gave is still a user's."""
        return USER_PREFIX + identity.removeprefix(IDENTITY_PREFIX) in self._settings(tenant)

    def scram(self, tenant: str, name: str, mechanism: str) -> ScramCredential | None:
        """Return what is kept for a mechanism of SCRAM; None: nothing, or no such user."""
        kept = read_kept(self._settings(tenant).get(USER_PREFIX + name))
        return kept.scram.get(mechanism)

    def scram_like(self, tenant: str, name: str, mechanism: str) -> ScramCredential | None:
        """Return some user's credential, always the same for a name: decoys look like it."""
        users = [each for each in self._settings(tenant).items() if each[0].startswith(USER_PREFIX)]
        if not users:
            return None
        drawn = hmac.digest(self._secret, name.encode(), "sha256")
        start = int.from_bytes(drawn[:4], "big") % len(users)
        for _, kept in users[start:] + users[:start]:
            found = read_kept(kept).scram.get(mechanism)
            if found is not None:
                return found
        return None

    def judge(self, tenant: str, name: str, password: bytes, then: Callable[[bool], None]) -> bool:
        """Call `then` in the loop with whether it is that user's password.

        False: so many wait already that it is not asked, and `then` not called. One that guesses
        passwords keeps out nobody whose password was right before, and no other tenant's clients.
        """
        kept = self._settings(tenant).get(USER_PREFIX + name)
        # Who is no user costs as much time as who is: names cannot be told by it.
        hashed = kept if isinstance(kept, str) else _NOBODY
        digest = hmac.digest(self._secret, b"\0".join((hashed.encode(), password)), "sha256")
        if digest in self._right:
            then(True)  # noqa: FBT003
            return True
        if self._waiting[tenant] >= _WAITING_OF_TENANT_MAX:
            return False
        if self._waiting.total() >= _WAITING_MAX:
            return False
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="passwords")
        self._waiting[tenant] += 1
        loop = asyncio.get_running_loop()

        def settled(is_right: bool) -> None:
            self._waiting[tenant] -= 1
            if is_right:
                self._remember(digest)
            then(is_right)

        def work() -> None:
            found = is_password(password, hashed) and kept is not None
            loop.call_soon_threadsafe(settled, found)

        self._threads.submit(work)
        return True

    def _remember(self, digest: bytes) -> None:
        if len(self._right) >= _REMEMBERED_MAX:
            self._right.clear()
        self._right[digest] = None

    def _settings(self, tenant: str) -> Mapping[str, object]:
        return {} if self.words is None else self.words.settings(tenant)


_NOBODY: Final = (
    f"$scrypt$ln={_COST[0]},r={_COST[1]},p={_COST[2]}${_text(bytes(16))}${_text(bytes(32))}"
)
