"""The keys of the control plane's configuration that brokers act on, and when each takes effect.

A key that is set there wins over flag, environment and file: those are the bootstrap. A value
that is not allowed changes nothing, and the API refuses it before it is written down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quantum.config import kinds
from quantum.config.kinds import SettingKind, Value
from quantum.config.settings import about, kind_of, shown_default


class Takes(StrEnum):
    """When a broker takes a value up."""

    LIVE = "live"
    NEW_CONNECTIONS = "live, for connections from now on"
    RESTART = "after the next start of each node"
    NEVER = "no broker takes it from here"


@dataclass(frozen=True, slots=True)
class LiveKey:
    """A key, where it may be set, and what it does."""

    kind: SettingKind
    takes: Takes
    about: str
    of_tenant: bool = False
    """Whether it may be set for one tenant; else for the cluster and for a node."""
    of_cluster: bool = True
    """Whether it may be set for the whole cluster."""
    default: str = ""
    """What holds where nobody sets it, in words; of a setting of `quantum up`, its own default."""


def _setting(name: str, takes: Takes) -> tuple[str, LiveKey]:
    return name, LiveKey(kind_of(name), takes, about(name), default=shown_default(name))


def _rate(name: str, of: str) -> tuple[str, LiveKey]:
    kind = kinds.count(0, 2**53 - 1)
    words = f"{of} a second; 0: no bound"
    return name, LiveKey(kind, Takes.LIVE, words, of_tenant=True, default="0")


_COUNTED: Final = {
    "publishes": "publishes",
    "publish_bytes": "bytes of publishes",
    "subscribes": "subscriptions",
    "connects": "connections",
}

LIVE_KEYS: Final[Mapping[str, LiveKey]] = dict(
    [
        *(
            _setting(name, Takes.NEW_CONNECTIONS)
            for name in (
                "packet_bytes_max",
                "connect_bytes_max",
                "keep_alive_seconds_max",
                "session_expiry_seconds_max",
                "receive_maximum",
                "topic_alias_maximum",
            )
        ),
        *(
            _setting(name, Takes.RESTART)
            for name in ("connections_max", "connections_per_second", "first_packet_seconds")
        ),
        *(_rate(f"rates.{each}", f"of a tenant: {of}") for each, of in _COUNTED.items()),
        *(
            _rate(f"connection_rates.{each}", f"of a connection: {of}")
            for each, of in _COUNTED.items()
        ),
        (
            "tenant_mqtt",
            LiveKey(
                kinds.address(plaintext=True),
                Takes.LIVE,
                "a tenant's own plaintext door, in development; node N adds 10 (N - 1) to the port",
                of_tenant=True,
                of_cluster=False,
                default="off",
            ),
        ),
        (
            "token_keys",
            LiveKey(
                kinds.key_set(),
                Takes.LIVE,
                "whose tokens let a tenant's devices in, beside the files of a node",
                of_tenant=True,
                of_cluster=False,
                default="none",
            ),
        ),
        (
            "token_auth_epoch",
            LiveKey(
                kinds.count(0, 2**31 - 1),
                Takes.LIVE,
                "tokens of an older auth_epoch let nobody in, and who came by one must go",
                of_tenant=True,
                of_cluster=False,
                default="0",
            ),
        ),
        (
            "tenant_prg_count",
            LiveKey(
                kinds.count(1, 512),
                Takes.LIVE,
                "partitions of a tenant's ring; 3 at the least for production tenants",
                of_tenant=True,
                default="1",
            ),
        ),
    ]
)
USER_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
USER_PREFIX: Final = "users."
SET: Final = "(set)"
"""What is shown of a password's hash, and what leaves it as it is where it is sent back."""
"""In front of the key of each user of a tenant, whose value is a password's hash."""
_USER: Final = LiveKey(
    kinds.password_hash(), Takes.LIVE, "a user of a tenant", of_tenant=True, of_cluster=False
)
TENANT_KEYS: Final = frozenset(name for name, key in LIVE_KEYS.items() if key.of_tenant)
NODE_KEYS: Final = frozenset(LIVE_KEYS) - TENANT_KEYS


def read_value(key: str, raw: object) -> Value:
    """Read a value; raises ValueError with a sentence for what is not allowed."""
    found = live_key(key)
    assert found is not None
    try:
        return found.kind.read(raw)
    except ValueError:
        shown = "" if found is _USER else f", not {raw!r}"
        raise ValueError(f"{key} must be {found.kind.allowed}{shown}") from None


def live_key(key: str) -> LiveKey | None:
    """Return what a key is; None: no broker acts on it."""
    return _USER if key.startswith(USER_PREFIX) else LIVE_KEYS.get(key)


def is_tenants(key: str) -> bool:
    """Say whether a key may be set for one tenant."""
    found = live_key(key)
    return found is not None and found.of_tenant


def effects(document: Mapping[str, object], *, of_tenant: bool) -> dict[str, str]:
    """Say of each key of a document when brokers take it up."""
    return {name: takes(name, of_tenant=of_tenant).value for name in sorted(document)}


def takes(key: str, *, of_tenant: bool) -> Takes:
    """Say when brokers take a key up that is set for a tenant, or else for cluster or node."""
    found = live_key(key)
    if found is None or not (found.of_tenant if of_tenant else found.of_cluster):
        return Takes.NEVER
    return found.takes


def mistakes(document: Mapping[str, object]) -> list[str]:
    """Return a sentence for each value that no broker could take."""
    found = []
    for key, raw in sorted(document.items()):
        if live_key(key) is not None:
            try:
                read_value(key, raw)
            except ValueError as error:
                found.append(str(error))
    return found
