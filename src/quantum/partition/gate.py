"""What a partition may do under the state of the control plane's copy (quantumqtt §§4.6.1, 10.6).

Pure. Ruling C8: what reads through the log is closed all the same. An operation of MQTT is a row,
or two, of the specification's matrix; what the matrix closes is `PERMANENT_DURABILITY`, which a
client sees as 0x88 in CONNACK and 0x89 in DISCONNECT (C11), and never as 'Not authorized'. An
exchange between partitions waits while either side is not fit to take part in it. A cluster
without a control plane has no such states: its files are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from clustor.control import AuthFacts, AuthOperation, decide_auth
from clustor.raft.control_plane import CacheState
from clustor.raft.fallback import BlockingReason
from clustor.raft.reads import FailedClause


class ClientOperation(StrEnum):
    """What clients ask for."""

    START = "a new session"
    START_WITH_RULES = "a new session that rules are asked about"
    RESUME = "a session that is kept"
    AUTHENTICATE = "a token, or a proof given again"
    SUBSCRIBE = "a subscription"
    PUBLISH = "a publish"


_FRESH: Final = (AuthOperation.SESSION_START, False)
_ROWS: Final[Mapping[ClientOperation, tuple[tuple[AuthOperation, bool], ...]]] = {
    ClientOperation.START: (_FRESH,),
    ClientOperation.START_WITH_RULES: (_FRESH, (AuthOperation.ACL_EVALUATION, True)),
    ClientOperation.RESUME: ((AuthOperation.SESSION_START, True),),
    ClientOperation.AUTHENTICATE: (
        (AuthOperation.TOKEN_INTROSPECTION, True),
        (AuthOperation.RE_AUTHENTICATION, True),
    ),
    ClientOperation.SUBSCRIBE: (
        (AuthOperation.ACL_EVALUATION, True),
        (AuthOperation.GATED_READ, True),
    ),
    ClientOperation.PUBLISH: ((AuthOperation.ACL_EVALUATION, True),),
}
"""The rows of the matrix that an operation needs, and whether it reads what the group holds."""


@dataclass(frozen=True, slots=True)
class OperationGate:
    """One partition at its leader: the copy's state, its group's latch, its quarantine."""

    cache_state: CacheState
    blocking: BlockingReason
    """What asserts strict fallback; NONE: it is not asserted."""
    clause: FailedClause
    """What forbids reads through the log (C8)."""
    quarantine: str = ""
    """Why the replica must not write; empty: it may."""


HEALTHY: Final = OperationGate(CacheState.FRESH, BlockingReason.NONE, FailedClause.NONE)
OPEN: Final[Mapping[ClientOperation, str]] = {}


@lru_cache(maxsize=256)
def refusals(gate: OperationGate) -> Mapping[ClientOperation, str]:
    """Return what is closed, and the sentence for it; an empty mapping: everything is open."""
    if gate.quarantine:
        words = f"PERMANENT_DURABILITY: the partition is in quarantine ({gate.quarantine})"
        return dict.fromkeys(ClientOperation, words)
    closed = ((each, _refusal(each, gate)) for each in ClientOperation)
    return {each: words for each, words in closed if words} or OPEN


def _refusal(operation: ClientOperation, gate: OperationGate) -> str:
    for row, reads in _ROWS[operation]:
        facts = AuthFacts(
            cache_state=gate.cache_state,
            strict_fallback=gate.blocking is not BlockingReason.NONE,
            read_gate_passes=gate.clause is FailedClause.NONE,
            reads_state=reads,
        )
        reason = decide_auth(row, facts)
        if reason is not None:
            because = gate.blocking.value if facts.strict_fallback else gate.clause.value
            return (
                f"PERMANENT_DURABILITY: ControlPlaneUnavailable{{{reason.value}}} for "
                f"{row.value} ({because})"
            )
    return ""


class Side(StrEnum):
    """The two partitions of an exchange."""

    SESSION = "session"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class HeldExchange:
    """Which side holds an exchange, and the sentence for it."""

    side: Side
    reason: str


def hold_reason(gate: OperationGate) -> str:
    """Say why a partition takes no part in exchanges now; empty: it does (§4.6.1)."""
    if gate.cache_state is CacheState.EXPIRED:
        return "ControlPlaneUnavailable{CacheExpired}"
    if gate.quarantine:
        return f"Quarantine{{{gate.quarantine}}}"
    if gate.blocking is not BlockingReason.NONE:
        return f"StrictFallback{{{gate.blocking.value}}}"
    return ""


def decide_exchange(session: str, topic: str) -> HeldExchange | None:
    """Say whether an exchange is held, by the reasons of its two sides; the session's is first."""
    if session:
        return HeldExchange(Side.SESSION, session)
    return HeldExchange(Side.TOPIC, topic) if topic else None
