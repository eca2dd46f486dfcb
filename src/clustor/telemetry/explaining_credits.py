"""Why clients may send no more, and what they are told about it: WhyCreditZero, WhyCreditHint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clustor import wire as w
from clustor.flow import CreditHint, IngestStatus, ThrottleReason
from clustor.telemetry.why import Guardrail, Why, WhyQuestion, replica_names


@dataclass(frozen=True, slots=True)
class CreditFacts:
    """What the admission of writes decided at its last look; its own words and numbers."""

    leads: bool
    leader_id: int | None
    reason: ThrottleReason | None
    ingest: IngestStatus
    hint: CreditHint
    entry_credits: int
    byte_credits: int
    entry_credit_max: int
    byte_credit_max: int
    credit_share: float
    pressures: tuple[tuple[ThrottleReason, float], ...]
    lags: tuple[tuple[int, int, str], ...]
    """Replica, bytes behind, class of the lag."""
    lag_slack_bytes: int
    refused_total: int
    hard_block: bool


_THROTTLE: Final = {
    ThrottleReason.WAL_DEVICE: ("the disk is slower than it may be", "look at the disk"),
    ThrottleReason.FOLLOWER_LAG: (
        "the quorum is slower than it may be, or a follower is far behind",
        "look at the followers' disks and networks",
    ),
    ThrottleReason.APPLY_BUDGET: (
        "more writes are under way than the credits allow",
        "send less at once, or spread the load over more partitions",
    ),
    ThrottleReason.DISK_SOFT: ("the disk is nearly full", "free some room"),
    ThrottleReason.DISK_HARD: (
        "the disk is so full that the log could fail",
        "free some room: writes come back by themselves",
    ),
}


def explain_credit_zero(facts: CreditFacts) -> Why:
    """Say why no more writes are admitted, or that some are."""
    short = facts.entry_credits <= 0 or facts.byte_credits <= 0
    holds = facts.leads and (short or facts.ingest is IngestStatus.BLOCKED)
    clause, sentence, remedy = _credit_words(facts, holds=holds)
    reason = _wire_reason(facts.reason or ThrottleReason.APPLY_BUDGET)
    return Why(
        WhyQuestion.CREDIT_ZERO,
        holds,
        clause,
        sentence,
        remedy,
        _credit_guardrails(facts),
        _behind(facts),
        (
            ("reason", reason if holds else None),
            ("entry_credits", max(0, facts.entry_credits)),
            ("byte_credits", max(0, facts.byte_credits)),
            ("lag_bytes", max((lag for _, lag, _ in facts.lags), default=0)),
        ),
    )


def _credit_words(facts: CreditFacts, *, holds: bool) -> tuple[str, str, str]:
    if not facts.leads:
        where = "nobody leads it" if facts.leader_id is None else f"node {facts.leader_id} does"
        return "NotLeader", f"this replica admits no writes because it does not lead: {where}", ""
    share = f"{facts.credit_share:.0%} of the credits are given"
    left = f"{max(0, facts.entry_credits)} entries and {max(0, facts.byte_credits)} bytes are left"
    if facts.hard_block:
        sentence = "an operator's structural_hard_block refuses every write"
        return (
            "StructuralHardBlock",
            sentence,
            "take `flow.structural_hard_block` out of every node's cluster.json",
        )
    if not holds:
        slowed = f", slowed by {facts.reason}" if facts.reason is not None else ""
        return "None", f"writes are admitted ({share}, {left}{slowed})", ""
    because, remedy = _THROTTLE[facts.reason or ThrottleReason.APPLY_BUDGET]
    return str(facts.reason or ThrottleReason.APPLY_BUDGET), f"{because}: {share}, {left}", remedy


def explain_credit_hint(facts: CreditFacts) -> Why:
    """Say why clients are told to recover, to hold or to shed."""
    holds = facts.leads and facts.hint is not CreditHint.RECOVER
    share = f"{facts.credit_share:.0%} of the credits are given"
    told = {
        CreditHint.RECOVER: "clients may send",
        CreditHint.HOLD: "clients are told to keep their pace",
        CreditHint.SHED: "clients are told to send less",
    }[facts.hint]
    because, remedy = _THROTTLE[facts.reason] if facts.reason is not None else ("", "")
    if holds and not remedy:
        remedy = "wait a moment: it recovers by itself"
    sentence = f"{told}: {share}" + (f", because {because}" if because else "")
    return Why(
        WhyQuestion.CREDIT_HINT,
        holds,
        str(facts.hint) if facts.leads else "NotLeader",
        sentence if facts.leads else "this replica gives no credits because it does not lead",
        remedy,
        _credit_guardrails(facts),
        _behind(facts),
        (
            ("credit_hint", w.CreditHintCode[facts.hint.name]),
            ("throttle_reason", _wire_reason(facts.reason) if facts.reason is not None else None),
        ),
    )


def _wire_reason(reason: ThrottleReason) -> w.ThrottleReasonCode:
    return w.ThrottleReasonCode[reason.name]


def _credit_guardrails(facts: CreditFacts) -> tuple[Guardrail, ...]:
    worst = max((lag for _, lag, _ in facts.lags), default=0)
    return (
        Guardrail("entry_credits", max(0, facts.entry_credits), facts.entry_credit_max),
        Guardrail("byte_credits", max(0, facts.byte_credits), facts.byte_credit_max),
        Guardrail("credit_share_permille", int(facts.credit_share * 1000), 1000),
        Guardrail("follower_lag_bytes", max(0, worst), facts.lag_slack_bytes),
        *(
            Guardrail(f"pressure_permille.{reason}", max(0, int(1000 * pressure)), 1000)
            for reason, pressure in facts.pressures
        ),
    )


def _behind(facts: CreditFacts) -> tuple[str, ...]:
    return replica_names(member for member, _, lag_class in facts.lags if lag_class != "None")
