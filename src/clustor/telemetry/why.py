"""Why a group does not do what it should: the explanations of clustor §13.2.

Nothing is decided here a second time. The facts carry the word of the gate itself (the clause
that an election, an emission or the admission of a write stopped at), and an explanation puts
that word into a sentence, with the numbers that it was decided by. The JSON is the wire's own
mirror of the envelope, with `question`, `holds`, `clause`, `sentence` and `remedy` beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
import rfc8785

from clustor import wire as w

SCHEMA_VERSION: Final = 1
ID_CHARACTERS_MAX: Final = 128
SENTENCE_CHARACTERS_MAX: Final = 2_048


class WhyQuestion(StrEnum):
    """The six questions, spelled as in §13.2, and one of our own."""

    NOT_LEADER = "WhyNotLeader"
    CREDIT_ZERO = "WhyCreditZero"
    SNAPSHOT_BLOCKED = "WhySnapshotBlocked"
    DISK_BLOCKED = "WhyDiskBlocked"
    QUARANTINED = "WhyQuarantined"
    CREDIT_HINT = "WhyCreditHint"
    DURABILITY_MODE = "WhyDurabilityMode"


def question_of(text: str) -> WhyQuestion | None:
    """Read a question in the specification's casing, or as `not-leader`."""
    wanted = text.lower().removeprefix("why").replace("-", "").replace("_", "")
    return next((each for each in WhyQuestion if each.lower().removeprefix("why") == wanted), None)


@dataclass(frozen=True, slots=True)
class ExplanationPlace:
    """Where and when an explanation was made: the header of every envelope (§8.2)."""

    generated_at: int
    partition_id: int
    routing_epoch: int
    durability_mode_epoch: int
    decision_trace_id: str


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A number that took part in the decision: what was seen, and what is allowed."""

    name: str
    observed: int
    bound: int


@dataclass(frozen=True, slots=True)
class Why:
    """One explanation. `holds` says whether what was asked about is so at all."""

    question: WhyQuestion
    holds: bool
    clause: str
    sentence: str
    remedy: str = ""
    guardrails: tuple[Guardrail, ...] = ()
    involved: tuple[str, ...] = ()
    body: tuple[tuple[str, object], ...] = ()
    """Members of the envelope beside the header; enumerations are the wire's."""


def encode_why(place: ExplanationPlace, why: Why) -> bytes:
    """Write canonical JSON of at most 32 KiB; wide integers are decimal strings."""
    page = w.page_of(one[:ID_CHARACTERS_MAX] for one in why.involved)
    members: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "generated_at": str(place.generated_at),
        "partition_id": str(place.partition_id),
        "routing_epoch": str(place.routing_epoch),
        "durability_mode_epoch": place.durability_mode_epoch,
        "decision_trace_id": place.decision_trace_id,
        "guardrail_deltas": [
            {"name": each.name, "observed": str(each.observed), "bound": str(each.bound)}
            for each in sorted(why.guardrails, key=lambda each: each.name)
        ],
        "involved": _page(page),
        "question": why.question.value,
        "holds": why.holds,
        "clause": why.clause,
        "sentence": why.sentence[:SENTENCE_CHARACTERS_MAX],
        "remedy": why.remedy[:SENTENCE_CHARACTERS_MAX],
    }
    members |= {name: _member(value) for name, value in why.body if value is not None}
    encoded = rfc8785.dumps(members)  # type: ignore[arg-type]  # text, flags and lists of them
    assert len(encoded) <= w.EXPLAIN_BODY_BYTES_MAX, "bounded by the ids' number and length"
    return encoded


def _page(page: w.IdPageBody) -> dict[str, object]:
    left_off = str(page.truncated_ids_count)
    shown: dict[str, object] = {"ids": page.ids, "truncated_ids_count": left_off}
    if page.continuation_token is not None:
        shown["continuation_token"] = page.continuation_token
    return shown


def _member(value: object) -> object:
    if isinstance(value, w.WireEnum):
        return value.spelling
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def plain(place: ExplanationPlace, why: Why) -> object:
    """Return the same as an object, for who does not want bytes."""
    return msgspec.json.decode(encode_why(place, why))


def replica_names(members: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"replica-{member}" for member in sorted(members))
