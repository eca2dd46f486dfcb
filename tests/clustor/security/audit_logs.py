"""Small audit logs for tests, from a key that is the same in every run."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.security import (
    Anchor,
    AuditChain,
    AuditEvent,
    TrustedKey,
    key_id_of,
    trust,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
KEY_ID = key_id_of(KEY.public_key().public_bytes_raw())
TRUSTED = trust(TrustedKey(KEY.public_key().public_bytes_raw()))


def event(number: int) -> AuditEvent:
    return AuditEvent(
        who=f"spiffe://dev/operator/{number}",
        what="RegisterNode",
        outcome="Done",
        at_ms=1_000 + number,
        object=f"node/{number}",
        tenant="acme",
        trace_id=f"{number:032x}",
        facts={"zone": "a"},
    )


def new_chain(key: Ed25519PrivateKey = KEY, log_id: str = "log-1") -> AuditChain:
    return AuditChain(log_id, key.sign, key_id_of(key.public_key().public_bytes_raw()))


def small_log(
    *, batches: int = 3, events: int = 4, tail: int = 0, key: Ed25519PrivateKey = KEY
) -> tuple[list[bytes], Anchor]:
    """Return a log of a few sealed batches and an open tail, and its anchor."""
    chain = new_chain(key)
    lines = [chain.begin_file(1, 1_000)]
    number = 0
    for _ in range(batches):
        for _ in range(events):
            lines.append(chain.append(event(number)))
            number += 1
        lines.append(chain.seal(2_000 + number))
    anchor = chain.anchor()
    lines += [chain.append(event(number + more)) for more in range(tail)]
    return lines, anchor
