"""Quantumqtt §10.6: which authentication and authorisation work at which state of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clustor.raft.control_plane import CacheState
from clustor.raft.reads import ReadRefusal


class AuthOperation(StrEnum):
    SESSION_START = "mTLS session start"
    RE_AUTHENTICATION = "mTLS re-auth"
    TOKEN_INTROSPECTION = "Token introspection"  # noqa: S105  # not a secret
    ACL_EVALUATION = "ACL evaluation"
    GATED_READ = "Retained/subscription reads"
    ROTATION = "Cert/CA rotation, JWKS refresh"


class AuthColumn(StrEnum):
    NOT_EXPIRED = "CP Fresh/Cached/Stale"
    EXPIRED = "CP Expired"
    STRICT_FALLBACK = "strict_fallback=true"


class AuthRule(StrEnum):
    ALLOWED = "Allowed"  # by what the last fresh cache said
    READ_GATE = "PerReadGate"
    WHEN_FRESH = "WhenFresh"
    READ_FREE_ONLY = "ReadFreeOnly"  # §14.2 allows writes: what reads nothing may
    FAIL_CLOSED = "PERMANENT_DURABILITY"


AUTH_MATRIX: Final[Mapping[AuthOperation, Mapping[AuthColumn, AuthRule]]] = {
    AuthOperation.SESSION_START: {
        AuthColumn.NOT_EXPIRED: AuthRule.ALLOWED,
        AuthColumn.EXPIRED: AuthRule.FAIL_CLOSED,
        AuthColumn.STRICT_FALLBACK: AuthRule.READ_FREE_ONLY,
    },
    AuthOperation.RE_AUTHENTICATION: {
        AuthColumn.NOT_EXPIRED: AuthRule.ALLOWED,
        AuthColumn.EXPIRED: AuthRule.FAIL_CLOSED,
        AuthColumn.STRICT_FALLBACK: AuthRule.FAIL_CLOSED,
    },
    AuthOperation.TOKEN_INTROSPECTION: {
        AuthColumn.NOT_EXPIRED: AuthRule.ALLOWED,
        AuthColumn.EXPIRED: AuthRule.FAIL_CLOSED,
        AuthColumn.STRICT_FALLBACK: AuthRule.FAIL_CLOSED,
    },
    AuthOperation.ACL_EVALUATION: {
        AuthColumn.NOT_EXPIRED: AuthRule.ALLOWED,
        AuthColumn.EXPIRED: AuthRule.FAIL_CLOSED,
        AuthColumn.STRICT_FALLBACK: AuthRule.FAIL_CLOSED,
    },
    AuthOperation.GATED_READ: {
        AuthColumn.NOT_EXPIRED: AuthRule.READ_GATE,
        AuthColumn.EXPIRED: AuthRule.FAIL_CLOSED,
        AuthColumn.STRICT_FALLBACK: AuthRule.FAIL_CLOSED,
    },
    AuthOperation.ROTATION: {
        AuthColumn.NOT_EXPIRED: AuthRule.WHEN_FRESH,
        AuthColumn.EXPIRED: AuthRule.FAIL_CLOSED,
        AuthColumn.STRICT_FALLBACK: AuthRule.FAIL_CLOSED,
    },
}


@dataclass(frozen=True, slots=True)
class AuthFacts:
    """What a decision looks at. `reads_state`: the operation reads what the group holds."""

    cache_state: CacheState
    strict_fallback: bool
    read_gate_passes: bool
    reads_state: bool = True


def auth_column(facts: AuthFacts) -> AuthColumn:
    """Choose the column. Two of them may hold at once: the stricter one speaks."""
    if facts.cache_state is CacheState.EXPIRED:
        return AuthColumn.EXPIRED
    return AuthColumn.STRICT_FALLBACK if facts.strict_fallback else AuthColumn.NOT_EXPIRED


def decide_auth(operation: AuthOperation, facts: AuthFacts) -> ReadRefusal | None:
    """Say why an operation fails closed (it surfaces as PERMANENT_DURABILITY); None: it may go on.

    What is refused here is never answered 'Not Authorized' (quantumqtt §10.5).
    """
    fails = {
        AuthRule.ALLOWED: False,
        AuthRule.READ_GATE: not facts.read_gate_passes,
        AuthRule.WHEN_FRESH: facts.cache_state is not CacheState.FRESH,
        AuthRule.READ_FREE_ONLY: facts.reads_state,
        AuthRule.FAIL_CLOSED: True,
    }
    rule = AUTH_MATRIX[operation][auth_column(facts)]
    return _reason(operation, facts) if fails[rule] else None


def _reason(operation: AuthOperation, facts: AuthFacts) -> ReadRefusal:
    if facts.cache_state is CacheState.EXPIRED:
        return ReadRefusal.CACHE_EXPIRED
    rotates = operation is AuthOperation.ROTATION and facts.cache_state is not CacheState.FRESH
    if facts.cache_state is CacheState.STALE or rotates:
        return ReadRefusal.CACHE_NOT_FRESH
    return ReadRefusal.NEEDED_FOR_READ_INDEX
